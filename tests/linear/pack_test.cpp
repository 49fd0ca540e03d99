#include <heddle/core/thread_team.hpp>
#include <heddle/linear/pack.hpp>

#include "support/errors.hpp"
#include "support/reference/linear.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

namespace {

using namespace heddle;
using linear::format;

constexpr std::array formats{format::f32, format::f16, format::bf16, format::q8_0, format::q4_0, format::q4_1};

/// Random rows as a file holds them, every code possible, scales finite.
std::vector<std::byte> stored_rows(format f, std::int64_t outputs, std::int64_t inputs, unsigned seed) {
  std::vector<std::byte> rows(linear::stored_row_bytes(f, inputs) * static_cast<std::size_t>(outputs));
  std::mt19937 generator(seed);
  for (std::byte& b : rows) b = static_cast<std::byte>(generator());
  if (!linear::is_quantised(f)) {
    for (std::size_t i = f == format::f32 ? 3 : 1; i < rows.size(); i += f == format::f32 ? 4 : 2) rows[i] &= std::byte{0xbf};
    return rows;
  }
  const std::size_t block = linear::block_bytes(f);
  for (std::size_t i = 0; i < rows.size(); i += block) rows[i + 1] &= std::byte{0xbf}, rows[i + 3] &= f == format::q4_1 ? std::byte{0xbf} : std::byte{0xff};
  return rows;
}

TEST(Pack, UnpackedRowsAreTheStoredWeights) {
  thread_team team{2};
  for (const format f : formats)
    for (const auto& [outputs, inputs] : {std::pair{std::int64_t{16}, std::int64_t{32}}, {std::int64_t{37}, std::int64_t{96}}, {std::int64_t{150}, std::int64_t{100}}, {std::int64_t{1}, std::int64_t{1}}}) {
      const std::vector<std::byte> rows = stored_rows(f, outputs, inputs, 5);
      const linear::stored_matrix stored{f, outputs, inputs, rows.data()};
      const linear::packed_matrix packed = linear::pack(stored, {.executor = team});
      std::vector<float> from_stored(static_cast<std::size_t>(inputs)), from_packed(static_cast<std::size_t>(inputs));
      for (std::int64_t o = 0; o < outputs; ++o) {
        linear::unpack_row(stored, o, from_stored);
        linear::unpack_row(packed, o, from_packed);
        for (std::int64_t k = 0; k < inputs; ++k) {
          const auto expected = static_cast<float>(heddle_reference::stored_weight(f, rows.data(), inputs, o, k));
          ASSERT_EQ(from_stored[static_cast<std::size_t>(k)], expected) << linear::name_of(f) << " " << o << " " << k;
          ASSERT_EQ(from_packed[static_cast<std::size_t>(k)], expected) << linear::name_of(f) << " " << o << " " << k;
        }
      }
    }
}

TEST(Pack, StacksMatricesThatShareTheirInput) {
  for (const format f : {format::bf16, format::q4_1}) {
    const auto a = stored_rows(f, 20, 64, 1), b = stored_rows(f, 7, 64, 2);
    const std::array parts{linear::stored_matrix{f, 20, 64, a.data()}, linear::stored_matrix{f, 7, 64, b.data()}};
    alignas(64) static std::byte arena[1 << 16];
    const linear::packed_view w = linear::pack_into(arena, parts);
    EXPECT_EQ(w.outputs, 27);
    std::vector<float> row(64), expected(64);
    for (std::int64_t o = 0; o < 27; ++o) {
      linear::unpack_row(w, o, row);
      o < 20 ? linear::unpack_row(parts[0], o, expected) : linear::unpack_row(parts[1], o - 20, expected);
      ASSERT_EQ(row, expected) << o;
    }
  }
}

TEST(Pack, QuantisesWithinHalfAStep) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> w(48 * 70);
  for (float& x : w) x = normal(generator);
  for (std::size_t i = 0; i < 32; ++i) w[i] = 0;   // a block of zeros
  for (const format f : {format::q8_0, format::q4_0, format::q4_1}) {
    const linear::packed_matrix packed = linear::pack(tensor_view{w.data(), extents{48, 70}}, f);
    std::vector<float> row(70);
    for (std::int64_t o = 0; o < 48; ++o) {
      linear::unpack_row(packed, o, row);
      for (std::size_t first = 0; first < 70; first += 32) {
        const float* x = w.data() + o * 70 + first;
        const std::size_t count = first + 32 < 70 ? 32 : 70 - first;
        const auto [low, high] = std::minmax_element(x, x + count);
        const float largest = std::max(std::fabs(*low), std::fabs(*high));
        // q4_0 spans -8..7 steps of the largest magnitude: the other end may lose up to a whole step
        const float step = f == format::q8_0 ? largest / 127 : f == format::q4_0 ? largest / 8 : (*high - *low) / 15;
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_LE(std::fabs(row[first + i] - x[i]), (f == format::q4_0 ? 1.01f : 0.51f) * step + 1e-3f * largest) << linear::name_of(f) << " " << o << " " << first + i;
      }
    }
  }
}

TEST(Pack, TakesTensorsOfAnyStrides) {
  std::vector<float16> w(6 * 40);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = float16(static_cast<float>(i) - 100.f);
  const linear::packed_matrix packed = linear::pack(tensor_view{w.data(), extents{40, 6}, extents{1, 40}});   // transposed
  EXPECT_EQ(packed.kind(), format::f16);
  float row[6];
  linear::unpack_row(packed, 17, row);
  for (std::size_t k = 0; k < 6; ++k) EXPECT_EQ(row[k], static_cast<float>(w[k * 40 + 17]));
}

TEST(Pack, ErrorsNameTheArgument) {
  const auto expect = [](const std::string& text, const char* part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  std::vector<float> w(64, 1.f), out(31);
  const auto stored = [&](format f, std::int64_t outputs, std::int64_t inputs) { return linear::stored_matrix{f, outputs, inputs, w.data()}; };
  expect(message_of([&] { linear::pack(stored(format::f32, 0, 32)); }), "'outputs' is 0");
  expect(message_of([&] { linear::pack(stored(format::f32, 1, -1)); }), "'inputs' is -1");
  expect(message_of([&] { linear::pack(stored(format::f32, std::int64_t{1} << 40, std::int64_t{1} << 40)); }), "2^48 weights");
  expect(message_of([&] { linear::pack(stored(static_cast<format>(9), 1, 32)); }), "'kind' is 9");
  expect(message_of([&] { linear::pack({format::f32, 1, 32, nullptr}); }), "'rows' is null");
  expect(message_of([&] { linear::pack(std::array{stored(format::f32, 1, 32), stored(format::f16, 1, 32)}); }), "mixes f32 and f16");
  expect(message_of([&] { linear::pack(std::array{stored(format::f32, 1, 32), stored(format::f32, 1, 16)}); }), "mixes 32 and 16 inputs");
  expect(message_of([&] { linear::pack_into(std::span<std::byte>(reinterpret_cast<std::byte*>(w.data()), 64), std::array{stored(format::f32, 1, 32)}); }), "'memory' holds 64 bytes");
  expect(message_of([&] { linear::unpack_row(stored(format::f32, 2, 32), 2, out); }), "'output' is 2");
  expect(message_of([&] { linear::unpack_row(stored(format::f32, 2, 32), 1, out); }), "'out' holds 31 floats");
  w[5] = std::numeric_limits<float>::infinity();
  expect(message_of([&] { linear::pack(tensor_view{w.data(), extents{2, 32}}, format::q8_0); }), "not finite");
  w[5] = 1e30f;
  expect(message_of([&] { linear::pack(tensor_view{w.data(), extents{2, 32}}, format::q4_1); }), "65504");
}

}  // namespace
