#include <heddle/core/thread_team.hpp>
#include <heddle/position/rope.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "support/reference/rope.hpp"

using namespace heddle;

namespace {

using positions_t = std::vector<std::int32_t>;

std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> law;
  std::vector<float> x(n);
  for (float& v : x) v = law(engine);
  return x;
}
template <class T>
std::vector<T> narrowed(const std::vector<float>& x) {
  std::vector<T> y;
  for (const float v : x) y.push_back(T(v));
  return y;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
template <class Pairing>
constexpr reference::pairing reference_of = std::is_same_v<Pairing, half_split> ? reference::pairing::half_split : reference::pairing::interleaved;

struct shape {
  std::int64_t rows, heads, head_dim, rotary_dim;
};
const shape shapes[] = {{1, 1, 2, 2}, {3, 2, 6, 4}, {2, 3, 64, 64}, {5, 2, 80, 32}, {2, 1, 128, 128}, {2, 3, 99, 66}, {2, 2, 576, 512}, {2, 1, 258, 258}};
const positions_t wanted_positions{1, -1, 4095, 131071, -77};

template <class Pairing>
class rope_pairing : public testing::Test {};
using pairings = testing::Types<half_split, interleaved>;
TYPED_TEST_SUITE(rope_pairing, pairings);

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const error& e) {
    return e.what();
  }
  return "accepted";
}
#define EXPECT_REFUSED(text, ...) EXPECT_NE(refusal([&] { __VA_ARGS__; }).find(text), std::string::npos) << refusal([&] { __VA_ARGS__; })

}  // namespace

TEST(rope, the_two_pairings_differ) {
  const positions_t one{1};
  float a[] = {1, 2, 3, 4}, b[] = {1, 2, 3, 4};
  rope<interleaved>{{.head_dim = 4}}.rotate(tensor_view{a, extents{1, 4}}, one);
  rope<half_split>{{.head_dim = 4}}.rotate(tensor_view{b, extents{1, 4}}, one);
  const double interleaved_values[] = {-1.142640, 1.922076, 2.959851, 4.029800}, half_split_values[] = {-1.984111, 1.959901, 2.462378, 4.019800};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(a[i], interleaved_values[i], 1e-6);
    EXPECT_NEAR(b[i], half_split_values[i], 1e-6);
  }
}

TYPED_TEST(rope_pairing, equals_the_definition) {
  for (const shape& s : shapes) {
    const rope<TypeParam> r{{.head_dim = s.head_dim, .rotary_dim = s.rotary_dim, .base = 5e5}};
    const auto theta = reference::rope_frequencies(s.rotary_dim, 5e5);
    const positions_t positions(wanted_positions.begin(), wanted_positions.begin() + s.rows);
    const auto before = normal(static_cast<std::size_t>(s.rows * s.heads * s.head_dim), 1);
    auto after = before;
    r.rotate(tensor_view{after.data(), extents{s.rows, s.heads, s.head_dim}}, positions);
    for (std::int64_t row = 0; row < s.rows; ++row)
      for (std::int64_t head = 0; head < s.heads; ++head) {
        const auto at = (row * s.heads + head) * s.head_dim;
        const auto expected = reference::rope({before.begin() + at, before.begin() + at + s.head_dim}, positions[static_cast<std::size_t>(row)], theta, reference_of<TypeParam>);
        for (std::int64_t c = 0; c < s.head_dim; ++c) {
          const double got = after[static_cast<std::size_t>(at + c)], want = expected[static_cast<std::size_t>(c)];
          if (c < s.rotary_dim) ASSERT_NEAR(got, want, 2e-6) << "head_dim " << s.head_dim << " row " << row << " channel " << c;
          else ASSERT_EQ(got, want);
        }
      }
  }
}

TYPED_TEST(rope_pairing, narrow_elements_are_rotated_in_float_and_rounded_once) {
  const auto check = [&]<class T>(T) {
    for (const shape& s : shapes) {
      const rope<TypeParam> r{{.head_dim = s.head_dim, .rotary_dim = s.rotary_dim}};
      const positions_t positions(wanted_positions.begin(), wanted_positions.begin() + s.rows);
      auto x = narrowed<T>(normal(static_cast<std::size_t>(s.rows * s.heads * s.head_dim), 2));
      std::vector<float> wide(x.begin(), x.end());
      r.rotate(tensor_view{x.data(), extents{s.rows, s.heads, s.head_dim}}, positions);
      r.rotate(tensor_view{wide.data(), extents{s.rows, s.heads, s.head_dim}}, positions);
      EXPECT_TRUE(same_bits(x, narrowed<T>(wide))) << "head_dim " << s.head_dim;
    }
  };
  check(float16{});
  check(bfloat16{});
}

TYPED_TEST(rope_pairing, bits_of_a_row_depend_on_its_values_and_position_only) {
  constexpr std::int64_t rows = 37, heads = 12, dim = 128;
  const rope<TypeParam> r{{.head_dim = dim, .rotary_dim = 96}};
  positions_t positions;
  for (int i = 0; i < rows; ++i) positions.push_back(i * i - 50);
  const auto input = normal(rows * heads * dim, 3);
  auto whole = input;
  r.rotate(tensor_view{whole.data(), extents{rows, heads, dim}}, positions);

  auto single = input;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t head = 0; head < heads; ++head)
      r.rotate(tensor_view{single.data() + (row * heads + head) * dim, extents{1, dim}}, std::span(positions).subspan(static_cast<std::size_t>(row), 1));
  EXPECT_TRUE(same_bits(whole, single));

  thread_team team{3};
  auto threaded = input;
  r.rotate(tensor_view{threaded.data(), extents{rows, heads, dim}}, positions, {.executor = team});
  EXPECT_TRUE(same_bits(whole, threaded));

  const rope_table table{r, positions};
  auto by_table = input;
  table.rotate(tensor_view{by_table.data(), extents{rows, heads, dim}}, {.executor = team});
  EXPECT_TRUE(same_bits(whole, by_table));

  // channels first, rows backwards
  std::vector<float> strided(input.size());
  const tensor_view<float, 3> odd{strided.data() + rows - 1, extents{rows, heads, dim}, extents{-1, rows, heads * rows}};
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t c = 0; c < dim; ++c) odd(i, h, c) = input[static_cast<std::size_t>((i * heads + h) * dim + c)];
  r.rotate(odd, positions);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t c = 0; c < dim; ++c) ASSERT_EQ(odd(i, h, c), whole[static_cast<std::size_t>((i * heads + h) * dim + c)]);
}

TEST(rope, both_pairings_give_the_same_bits_in_another_order) {
  constexpr std::size_t dim = 80;
  const positions_t position{12345};
  auto half = normal(dim, 4);
  std::vector<float> pairs(dim);
  for (std::size_t f = 0; f < dim / 2; ++f) pairs[2 * f] = half[f], pairs[2 * f + 1] = half[f + dim / 2];
  rope<half_split>{{.head_dim = dim}}.rotate(tensor_view{half.data(), extents{1, dim}}, position);
  rope<interleaved>{{.head_dim = dim}}.rotate(tensor_view{pairs.data(), extents{1, dim}}, position);
  for (std::size_t f = 0; f < dim / 2; ++f) EXPECT_TRUE(pairs[2 * f] == half[f] && pairs[2 * f + 1] == half[f + dim / 2]);
}

TYPED_TEST(rope_pairing, rotations_form_a_group) {
  constexpr std::size_t dim = 64;
  const rope<TypeParam> r{{.head_dim = dim}};
  const auto q = normal(dim, 5), k = normal(dim, 6);
  const auto rotated = [&](std::vector<float> x, std::initializer_list<std::int32_t> path) {
    for (const std::int32_t p : path) r.rotate(tensor_view{x.data(), extents{1, dim}}, positions_t{p});
    return x;
  };
  const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
  };
  const auto expect_near = [](const std::vector<float>& a, const std::vector<float>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
  };
  expect_near(rotated(q, {1000, 234}), rotated(q, {1234}));
  expect_near(rotated(q, {777, -777}), q);
  EXPECT_EQ(rotated(q, {0}), q);
  EXPECT_NEAR(dot(rotated(q, {4321}), rotated(q, {4321})), dot(q, q), 1e-4);
  EXPECT_NEAR(dot(rotated(q, {50}), rotated(k, {20})), dot(rotated(q, {100030}), rotated(k, {100000})), 1e-4);

  auto back = rotated(q, {777});
  r.rotate_back(tensor_view{back.data(), extents{1, dim}}, positions_t{777});
  expect_near(back, q);
}

TEST(rope, far_positions_keep_the_accuracy_of_near_ones) {
  constexpr std::size_t dim = 64;
  const rope<half_split> r{{.head_dim = dim}};
  const auto theta = reference::rope_frequencies(dim, 1e4);
  for (const std::int32_t p : {1 << 20, 1 << 24, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    auto x = normal(dim, 7);
    // theta itself is a rounded number: allow for its last bits at this distance
    const double slack = 2e-6 + 8 * std::fabs(static_cast<double>(p)) * 1e-15;
    const auto expected = reference::rope({x.begin(), x.end()}, p, theta, reference::pairing::half_split);
    r.rotate(tensor_view{x.data(), extents{1, dim}}, positions_t{p});
    for (std::size_t i = 0; i < dim; ++i) EXPECT_NEAR(x[i], expected[i], slack) << p;
    // the fastest pair has theta = 1 exactly
    EXPECT_NEAR(x[0], expected[0], 1e-6) << p;
  }
}

TYPED_TEST(rope_pairing, relocation_equals_rotation_from_scratch) {
  constexpr std::int64_t rows = 4, heads = 2, dim = 48;
  const yarn_scaling yarn{.factor = 16, .original_length = 4096};
  const rope<TypeParam> r{{.head_dim = dim, .rotary_dim = 32, .scaling = yarn}};
  const positions_t from{7, 9, 4000, 4001}, to{7, 8, 9, 100000}, via{0, -5, 1, 2};
  const auto keys = normal(rows * heads * dim, 8);
  const auto view = [&](std::vector<float>& x) { return tensor_view{x.data(), extents{rows, heads, dim}}; };
  auto old = keys, fresh = keys;
  r.rotate(view(old), from);
  r.rotate(view(fresh), to);
  auto moved = old, in_two_steps = old;
  r.relocate(view(moved), from, to);
  r.relocate(view(in_two_steps), from, via);
  r.relocate(view(in_two_steps), via, to);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_NEAR(moved[i], fresh[i], 1e-5);
    EXPECT_NEAR(in_two_steps[i], fresh[i], 1e-5);
  }
  const auto stays = static_cast<std::size_t>(heads * dim);
  EXPECT_EQ(std::memcmp(moved.data(), old.data(), stays * sizeof(float)), 0);

  old[0] = -0.f, old[1] = std::numeric_limits<float>::quiet_NaN(), old[2] = std::numeric_limits<float>::infinity();
  auto same = old;
  r.relocate(view(same), to, to);
  EXPECT_TRUE(same_bits(same, old));
}

TYPED_TEST(rope_pairing, relocation_between_lengths_uses_both_frequencies) {
  constexpr std::int64_t dim = 32;
  std::vector<double> near(dim / 2, 1.), far(dim / 2, 5.);
  const auto at = [&](std::int64_t length, double factor) {
    return rope<TypeParam>{{.head_dim = dim, .scaling = longrope_scaling{near, far, 64, factor}, .sequence_length = length}};
  };
  const auto old = at(64, 2), grown = at(65, 16);
  const positions_t from{3, 60}, to{1, 60};
  const auto keys = normal(2 * dim, 9);
  auto moved = keys, fresh = keys;
  old.rotate(tensor_view{moved.data(), extents{2, dim}}, from);
  grown.relocate(tensor_view{moved.data(), extents{2, dim}}, old, from, to);
  grown.rotate(tensor_view{fresh.data(), extents{2, dim}}, to);
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_NEAR(moved[i], fresh[i], 1e-5);
}

TYPED_TEST(rope_pairing, the_magnitude_applies_once_and_to_rotated_channels_only) {
  constexpr std::int64_t dim = 8, rotary = 4;
  const yarn_scaling yarn{.factor = 16, .original_length = 4096};
  const rope<TypeParam> r{{.head_dim = dim, .rotary_dim = rotary, .scaling = yarn}};
  std::vector<float> x{3, 0, 0, 0, 5, 6, 7, 8};
  const auto view = tensor_view{x.data(), extents{1, dim}};
  const auto norm = [&] { return std::sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]); };
  r.rotate(view, positions_t{100});
  EXPECT_NEAR(norm(), 3 * 1.277259f, 1e-5);
  r.relocate(view, positions_t{100}, positions_t{3});
  EXPECT_NEAR(norm(), 3 * 1.277259f, 1e-5);
  r.rotate_back(view, positions_t{3});
  EXPECT_NEAR(x[0], 3, 1e-6);
  for (std::size_t i = 4; i < 8; ++i) EXPECT_EQ(x[i], static_cast<float>(i + 1));
}

TEST(rope, a_nan_stays_in_its_pair) {
  constexpr std::size_t dim = 64;
  auto x = normal(2 * dim, 10);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  rope<half_split>{{.head_dim = dim}}.rotate(tensor_view{x.data(), extents{1, 2, dim}}, positions_t{9});
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(x[i]), i == 5 || i == 5 + dim / 2) << i;
}

TEST(rope, a_table_can_be_assigned_anew) {
  const rope<interleaved> wide{{.head_dim = 128}}, slim{{.head_dim = 6}};
  rope_table table{wide, positions_t{1, 2, 3}};
  table.assign(slim, positions_t{5});
  auto x = normal(6, 11), y = x;
  table.rotate(tensor_view{x.data(), extents{1, 6}});
  slim.rotate(tensor_view{y.data(), extents{1, 6}}, positions_t{5});
  EXPECT_TRUE(same_bits(x, y));
  EXPECT_EQ(table.rows(), 1u);
}

TEST(rope, no_rows_and_no_heads_are_legal) {
  const rope<half_split> r{{.head_dim = 4}};
  float x[4] = {1, 2, 3, 4};
  r.rotate(tensor_view{x, extents{0, 3, 4}}, positions_t{});
  r.rotate(tensor_view{x, extents{1, 0, 4}}, positions_t{5});
  rope_table{r, positions_t{}}.rotate(tensor_view{x, extents{0, 4}});
  EXPECT_EQ(x[0], 1);
}

TEST(rope, refuses_bad_arguments_and_writes_nothing) {
  EXPECT_REFUSED("'rotary_dim' is 7; expected an even number", rope<half_split>{{.head_dim = 7}});
  EXPECT_REFUSED("'rotary_dim' is 7; expected an even number", rope<interleaved>{{.head_dim = 8, .rotary_dim = 7}});
  EXPECT_REFUSED("'rotary_dim' is 10; expected at most head_dim (8)", rope<half_split>{{.head_dim = 8, .rotary_dim = 10}});
  EXPECT_REFUSED("'rotary_dim' is -2", rope<half_split>{{.head_dim = 8, .rotary_dim = -2}});
  EXPECT_REFUSED("'head_dim' is 0", rope<half_split>{{.head_dim = 0}});
  EXPECT_REFUSED("'base' is 0", rope<half_split>{{.head_dim = 8, .base = 0}});
  EXPECT_REFUSED("'base' is NaN", rope<half_split>{{.head_dim = 8, .base = std::nan("")}});
  EXPECT_REFUSED("'sequence_length' is -1", rope<half_split>{{.head_dim = 8, .sequence_length = -1}});

  const rope<half_split> r{{.head_dim = 8}}, other{{.head_dim = 8, .rotary_dim = 4}};
  const auto input = normal(48, 12);
  auto x = input;
  const tensor_view view{x.data(), extents{3, 2, 8}};
  const positions_t three{1, 2, 3}, two{1, 2};
  EXPECT_REFUSED("rope::rotate: argument 'positions' has 2 entries; expected 3", r.rotate(view, two));
  EXPECT_REFUSED("rope::rotate_back: argument 'positions' has 2 entries; expected 3", r.rotate_back(view, two));
  EXPECT_REFUSED("rope::relocate: argument 'from' has 2 entries", r.relocate(view, two, three));
  EXPECT_REFUSED("rope::relocate: argument 'to' has 2 entries", r.relocate(view, three, two));
  EXPECT_REFUSED("argument 'old' has head_dim 8 and rotary_dim 4; expected 8 and 8", r.relocate(view, other, three, three));
  EXPECT_REFUSED("head_dim 6; expected 8", r.rotate(tensor_view{x.data(), extents{3, 2, 6}}, three));
  EXPECT_REFUSED("extent 2 has stride 0", r.rotate(tensor_view{x.data(), extents{3, 2, 8}, extents{8, 0, 1}}, three));
  EXPECT_REFUSED("rope_table::rotate: argument 'table' has 2 entries", rope_table(r, two).rotate(view));
  EXPECT_TRUE(same_bits(x, input));
}

static_assert(rotatable_tensor<tensor_view<float, 3>> && rotatable_tensor<tensor_view<float16, 2>&> && rotatable_tensor<const tensor_view<bfloat16, 3>&>);
static_assert(!rotatable_tensor<tensor_view<const float, 3>> && !rotatable_tensor<tensor_view<float, 1>> && !rotatable_tensor<tensor_view<float, 4>>);
static_assert(!rotatable_tensor<tensor_view<double, 3>> && !rotatable_tensor<tensor_view<std::int32_t, 3>> && !rotatable_tensor<tensor_view<float, 3, device>> && !rotatable_tensor<float*>);
