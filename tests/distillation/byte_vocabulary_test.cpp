// Prefix ranges and shared tokens against a search through all pairs.
#include "distillation/random_vocabulary.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace heddle::distillation;

TEST(ByteVocabulary, TokensBeginningWithAreOneRange) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const test::vocabulary tokens = test::random_vocabulary(1 + random() % 60, random);
    const byte_order order(tokens.view());
    std::vector<std::int32_t> sorted(order.tokens().begin(), order.tokens().end());
    for (std::size_t i = 1; i < sorted.size(); ++i) EXPECT_LE(tokens.as_unsigned(sorted[i - 1]), tokens.as_unsigned(sorted[i]));
    for (int k = 0; k < 20; ++k) {
      const std::string prefix = test::random_bytes(random() % 4, random);
      const auto range = order.beginning_with(prefix);
      std::vector<std::int32_t> found(range.begin(), range.end()), expected;
      for (std::size_t v = 0; v < tokens.strings.size(); ++v)
        if (tokens.strings[v].compare(0, prefix.size(), prefix) == 0) expected.push_back(static_cast<std::int32_t>(v));
      std::sort(found.begin(), found.end());
      EXPECT_EQ(found, expected);
      if (!prefix.empty()) {   // a shorter prefix begins no fewer tokens
        const auto wider = order.beginning_with(prefix.substr(0, prefix.size() - 1));
        EXPECT_LE(wider.data(), range.data());
        EXPECT_GE(wider.data() + wider.size(), range.data() + range.size());
      }
    }
  }
}

TEST(ByteVocabulary, SharedTokens) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const test::vocabulary student = test::random_vocabulary(20 + random() % 60, random), teacher = test::random_vocabulary(20 + random() % 60, random);
    std::vector<std::pair<std::int32_t, std::int32_t>> expected, found;
    for (std::size_t a = 0; a < student.strings.size(); ++a) {
      const std::string& text = student.strings[a];
      const auto first = std::find(student.strings.begin(), student.strings.end(), text), other = std::find(teacher.strings.begin(), teacher.strings.end(), text);
      if (!text.empty() && first - student.strings.begin() == static_cast<std::ptrdiff_t>(a) && other != teacher.strings.end())
        expected.emplace_back(static_cast<std::int32_t>(a), static_cast<std::int32_t>(other - teacher.strings.begin()));
    }
    if (expected.empty()) continue;
    const shared_vocabulary shared(byte_order(student.view()), byte_order(teacher.view()));
    for (const token_pair& pair : shared.pairs()) found.emplace_back(pair.student, pair.teacher);
    EXPECT_EQ(found, expected);
  }
}

TEST(ByteVocabulary, Errors) {
  const test::vocabulary one({"a", ""}), other({"b", ""});
  EXPECT_NE(message_of([&] { shared_vocabulary(byte_order(one.view()), byte_order(other.view())); }).find("no token with bytes in common"), std::string::npos);
  const std::int64_t falling[] = {0, 2, 1}, late[] = {1, 2}, outside[] = {0, 3};
  EXPECT_NE(message_of([&] { byte_order({std::span("abc", 1), falling}); }).find("the offset after token 1 is 1; expected at least 2"), std::string::npos);
  EXPECT_NE(message_of([&] { byte_order({std::span("abc", 2), late}); }).find("do not start with 0"), std::string::npos);
  EXPECT_NE(message_of([&] { byte_order({std::span("abc", 2), outside}); }).find("end at 3; expected the number of bytes, 2"), std::string::npos);
  EXPECT_NE(message_of([&] { byte_order({}); }).find("do not start with 0"), std::string::npos);
}

}  // namespace
