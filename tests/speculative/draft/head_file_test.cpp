// Draft heads and their file: the formula in double, the format byte by byte, and everything that a damaged file can be.
#include <gtest/gtest.h>
#include <heddle/core/random.hpp>
#include <heddle/speculative/draft/head_file.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/errors.hpp"

namespace {

using namespace heddle;
using file = aligned_vector<std::byte>;

float some(std::uint32_t i) { return static_cast<float>(uniform({.seed = 3, .index = i}) - 0.5); }

draft_heads small_heads(std::span<const std::int32_t> tokens, std::int64_t d = 5, std::int64_t width = 3, std::int64_t count = 2) {
  draft_heads heads({.hidden_size = d, .width = width, .num_heads = count, .vocabulary_size = 50}, tokens);
  for (std::size_t i = 0; i < heads.weights().size(); ++i) heads.weights()[i] = some(static_cast<std::uint32_t>(i));
  return heads;
}
file file_of(const draft_heads& heads) {
  file out;
  write_head_file(heads, out);
  return out;
}
void put32(file& f, std::size_t offset, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) f[offset + i] = static_cast<std::byte>(value >> (8 * i));
}
// As the format describes it, for files whose contents are wrong on purpose.
void seal(file& f) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = 8; i < f.size(); ++i)
    if (i < 32 || i >= 40) hash = (hash ^ std::to_integer<std::uint64_t>(f[i])) * 0x100000001b3u;
  put32(f, 32, static_cast<std::uint32_t>(hash)), put32(f, 36, static_cast<std::uint32_t>(hash >> 32));
}
bool says(const file& f, const char* part) {
  const std::string text = message_of([&] { (void)read_head_file(f); });
  if (text.find(part) != std::string::npos) return true;
  ADD_FAILURE() << text << " does not say " << part;
  return false;
}

TEST(DraftHeads, MoveTheStateByTheFormula) {
  for (const std::int64_t d : {1, 16, 37}) {
    const auto heads = small_heads({}, d, d == 16 ? 1 : 19, 3);
    std::vector<float> state(static_cast<std::size_t>(d)), embedding(state.size());
    for (std::size_t k = 0; k < state.size(); ++k) state[k] = 4 * some(static_cast<std::uint32_t>(1000 + k)), embedding[k] = some(static_cast<std::uint32_t>(2000 + k)) / 16;
    std::vector<double> expected(state.begin(), state.end());
    draft_head_scratch scratch;
    for (std::int64_t head = 0; head < 3; ++head) {
      double square = 0;
      for (const float e : embedding) square += static_cast<double>(e) * static_cast<double>(e);
      const double rms = std::sqrt(square / static_cast<double>(d));
      std::vector<double> next = expected;
      for (std::int64_t j = 0; j < heads.shape().width; ++j) {
        double a = 0;
        for (std::int64_t k = 0; k < d; ++k) {
          a += static_cast<double>(heads.in(head)(j, k)) * expected[static_cast<std::size_t>(k)];
          a += static_cast<double>(heads.in(head)(j, d + k)) * static_cast<double>(embedding[static_cast<std::size_t>(k)]) / rms;
        }
        for (std::int64_t k = 0; k < d; ++k) next[static_cast<std::size_t>(k)] += static_cast<double>(heads.out(head)(k, j)) * a / (1 + std::exp(-a));
      }
      expected = next;
      heads.advance(head, embedding, state, scratch);
      for (std::size_t k = 0; k < state.size(); ++k) EXPECT_NEAR(state[k], expected[k], 1e-5 * (1 + std::abs(expected[k])));
    }
  }
}

TEST(DraftHeads, WithoutWeightsKeepTheState) {
  const draft_heads heads({.hidden_size = 3, .width = 2, .num_heads = 1, .vocabulary_size = 9});
  std::vector<float> state{1.f, -2.f, 0.f};
  draft_head_scratch scratch;
  heads.advance(0, std::vector<float>(3, 0.f), state, scratch);   // an embedding of zeros has no direction
  EXPECT_EQ(state, (std::vector<float>{1.f, -2.f, 0.f}));
  EXPECT_EQ(heads.draft_vocabulary_size(), 9);
  EXPECT_EQ(heads.token_of(4), 4);
}

TEST(DraftHeads, RefuseWhatDoesNotFit) {
  using shape = draft_head_shape;
  const auto message = [](const shape& s, std::vector<std::int32_t> tokens = {}) { return message_of([&] { draft_heads heads(s, tokens); }); };
  const shape good{4, 2, 3, 10};
  EXPECT_EQ(message(good, {0, 3, 9}), "no error");
  EXPECT_NE(message({0, 2, 3, 10}).find("'hidden_size' is 0"), std::string::npos);
  EXPECT_NE(message({4, (1 << 20) + 1, 3, 10}).find("'width' is 1048577"), std::string::npos);
  EXPECT_NE(message({4, 2, 65, 10}).find("'num_heads' is 65"), std::string::npos);
  EXPECT_NE(message({4, 2, 3, -1}).find("'vocabulary_size' is -1"), std::string::npos);
  EXPECT_NE(message(good, {1, 10}).find("'tokens': entry 1 is 10"), std::string::npos);
  EXPECT_NE(message(good, {3, 3}).find("'tokens': entry 1 is 3"), std::string::npos);
  EXPECT_NE(message(good, {-1}).find("'tokens': entry 0 is -1"), std::string::npos);
  const draft_heads heads(good);
  std::vector<float> three(3), four(4);
  draft_head_scratch scratch;
  EXPECT_NE(message_of([&] { heads.advance(3, four, four, scratch); }).find("'head' is 3"), std::string::npos);
  EXPECT_NE(message_of([&] { heads.advance(0, three, four, scratch); }).find("'embedding' has 3"), std::string::npos);
  EXPECT_NE(message_of([&] { heads.advance(0, four, three, scratch); }).find("'state' has 3"), std::string::npos);
}

TEST(HeadFile, GivesBackWhatWasWritten) {
  const std::int32_t tokens[] = {0, 7, 8, 49};
  for (const std::span<const std::int32_t> kept : {std::span<const std::int32_t>(tokens), std::span<const std::int32_t>()}) {
    const auto heads = small_heads(kept);
    const draft_heads same = read_head_file(file_of(heads));
    EXPECT_EQ(same.shape(), heads.shape());
    EXPECT_TRUE(std::equal(same.tokens().begin(), same.tokens().end(), kept.begin(), kept.end()));
    EXPECT_TRUE(std::equal(same.weights().begin(), same.weights().end(), heads.weights().begin(), heads.weights().end()));
    EXPECT_EQ(file_of(same), file_of(heads));
  }
}

// The format, spelled out: a file written by hand is read, on any machine.
TEST(HeadFile, IsTheFormatThatIsDocumented) {
  file f;
  for (const char c : {'H', 'D', 'L', 'H', 'E', 'A', 'D', 'S'}) f.push_back(static_cast<std::byte>(c));
  f.resize(40 + 4 * (2 + 3));
  std::size_t at = 8;
  for (const std::uint32_t value : {1u, 1u, 1u, 1u, 300u, 2u}) put32(f, at, value), at += 4;
  at = 40;
  for (const std::uint32_t value : {5u, 259u, 0x3f800000u, 0xbf000000u, 0x40490fdbu}) put32(f, at, value), at += 4;   // 1, -1/2, pi
  seal(f);
  const draft_heads heads = read_head_file(f);
  EXPECT_EQ(heads.tokens()[0], 5);
  EXPECT_EQ(heads.tokens()[1], 259);
  EXPECT_EQ(heads.in(0)(0, 0), 1.f);
  EXPECT_EQ(heads.in(0)(0, 1), -0.5f);
  EXPECT_EQ(heads.out(0)(0, 0), 3.14159274f);
  EXPECT_EQ(file_of(heads), f);
}

TEST(HeadFile, CutOrDamagedAnywhereIsRefused) {
  const std::int32_t tokens[] = {1, 2, 40};
  const file whole = file_of(small_heads(tokens, 2, 2, 1));
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_THROW((void)read_head_file(std::span(whole).first(size)), error) << size;
  file longer = whole;
  longer.push_back({});
  EXPECT_TRUE(says(longer, "bytes; expected"));
  for (std::size_t i = 0; i < whole.size(); ++i)
    for (const int bit : {0, 7}) {
      file damaged = whole;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_THROW((void)read_head_file(damaged), error) << i;
    }
}

// Well-formed to the checksum, and still not heads.
TEST(HeadFile, SaysWhatIsWrong) {
  const std::int32_t tokens[] = {1, 2, 40};
  const file whole = file_of(small_heads(tokens, 2, 2, 1));
  const auto with = [&](std::size_t offset, std::uint32_t value) {
    file f = whole;
    put32(f, offset, value);
    seal(f);
    return f;
  };
  EXPECT_TRUE(says({}, "0 bytes; expected a header of 40"));
  EXPECT_TRUE(says(with(0, 0x46554747), "not a draft-head file"));
  EXPECT_TRUE(says(with(8, 2), "version 2; expected 1"));
  EXPECT_TRUE(says(with(12, 0), "'hidden_size' is 0"));
  EXPECT_TRUE(says(with(12, 0xffffffff), "'hidden_size' is 4294967295"));
  EXPECT_TRUE(says(with(12, 1u << 20), "bytes; expected"));   // large sizes are counted, not allocated
  EXPECT_TRUE(says(with(16, 3), "bytes; expected"));
  EXPECT_TRUE(says(with(20, 65), "'num_heads' is 65"));
  EXPECT_TRUE(says(with(24, 0), "'vocabulary_size' is 0"));
  EXPECT_TRUE(says(with(24, 40), "'tokens': entry 2 is 40"));
  EXPECT_TRUE(says(with(28, 51), "draft vocabulary has 51 tokens; expected at most 50"));
  EXPECT_TRUE(says(with(28, 2), "bytes; expected"));
  EXPECT_TRUE(says(with(44, 1), "'tokens': entry 1 is 1"));
  EXPECT_TRUE(says(with(40, 0x80000000), "'tokens': entry 0"));
  EXPECT_TRUE(says(with(52, 0x7fc00000), "a weight is not finite"));
  EXPECT_TRUE(says(with(60, 0x7f800000), "a weight is not finite"));
  file unsealed = whole;
  put32(unsealed, 52, 0x3f800001);
  EXPECT_TRUE(says(unsealed, "checksum"));
}

TEST(HeadFile, WeightsThatAreNotFiniteAreNotWritten) {
  auto heads = small_heads({});
  heads.weights()[7] = std::numeric_limits<float>::quiet_NaN();
  file f{std::byte{42}};
  EXPECT_NE(message_of([&] { write_head_file(heads, f); }).find("not finite"), std::string::npos);
  EXPECT_EQ(f, file{std::byte{42}});
}

}  // namespace
