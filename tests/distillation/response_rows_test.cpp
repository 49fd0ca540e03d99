#include <heddle/distillation/response_rows.hpp>

#include <heddle/distillation/concise_traces.hpp>

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using ids = std::vector<std::int32_t>;
using mask = std::vector<std::uint8_t>;

TEST(ResponseRows, RowsPredictTheResponse) {
  const auto rows = anchor_response(ids{5, 6}, ids{7, 8, 9}, ids{1});
  EXPECT_EQ(ids(rows.tokens.begin(), rows.tokens.end()), (ids{1, 5, 6, 7, 8, 9}));
  EXPECT_EQ(ids(rows.targets.begin(), rows.targets.end()), (ids{5, 6, 7, 8, 9}));
  EXPECT_EQ(mask(rows.mask.begin(), rows.mask.end()), (mask{0, 0, 1, 1, 1}));
  EXPECT_EQ(rows.first_row, 2);
  EXPECT_EQ(rows.count, 3);
}

// The same response under another prompt: the same tokens in the same order, prompt rows masked, row k behind the same k tokens of the response.
TEST(ResponseRows, ExchangingThePromptKeepsTheResponse) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    ids plain(1 + random() % 5), brief(1 + random() % 9), response(random() % 12);
    for (auto* list : {&plain, &brief, &response})
      for (auto& t : *list) t = static_cast<std::int32_t>(random() % 100);
    const auto a = anchor_response(brief, response), b = anchor_response(plain, response);
    ASSERT_EQ(a.count, b.count);
    for (const auto* rows : {&a, &b}) {
      ids supervised;
      for (std::size_t i = 0; i < rows->mask.size(); ++i) {
        ASSERT_EQ(rows->targets[i], rows->tokens[i + 1]);
        ASSERT_EQ(rows->mask[i], static_cast<std::int64_t>(i) >= rows->first_row);
        if (rows->mask[i]) supervised.push_back(rows->targets[i]);
      }
      ASSERT_EQ(supervised, response);
    }
  }
}

TEST(ResponseRows, Edges) {
  EXPECT_EQ(anchor_response(ids{1}, ids{}).count, 0);
  EXPECT_TRUE(anchor_response(ids{1}, ids{}).mask.empty());
  EXPECT_EQ(anchor_response(ids{}, ids{2}, ids{1}).mask.size(), 1u);
  EXPECT_NE(message_of([] { anchor_response(ids{}, ids{2}); }).find("prompt"), std::string::npos);
}

TEST(ConciseTraces, CorrectAndShortOnesAreKept) {
  const mask correct = {1, 1, 0, 1, 0, 1};
  const std::vector<std::int64_t> length = {10, 11, 3, 10, 1, 99};
  mask keep(6, 9);
  const auto kept = keep_concise(correct, length, 10, keep, ids{0, 3, 4, 6, 6});
  EXPECT_EQ(keep, (mask{1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(kept.traces, 2);
  EXPECT_EQ(kept.questions, 2);
  EXPECT_EQ(kept.dropped_questions, 2);  // no correct trace is short, and no trace at all
  EXPECT_EQ(keep_concise(correct, length, 100, keep).traces, 4);
}

// A model that reasons at many lengths, right the less often the longer it rambles, becomes its own kept traces: fewer tokens, more right answers.
TEST(ConciseTraces, TheModelBecomesBrieferAndBetter) {
  std::mt19937 random(2);
  constexpr std::size_t questions = 500, samples = 4;
  mask correct(questions * samples), keep(questions * samples);
  std::vector<std::int64_t> length(questions * samples);
  ids indptr;
  double tokens = 0, right = 0, kept_tokens = 0;
  for (std::size_t i = 0; i < length.size(); ++i) {
    if (i % samples == 0) indptr.push_back(static_cast<std::int32_t>(i));
    length[i] = 200 + static_cast<std::int64_t>(random() % 6000);
    correct[i] = static_cast<std::int64_t>(random() % 12000) > length[i];
    tokens += static_cast<double>(length[i]), right += correct[i];
  }
  indptr.push_back(static_cast<std::int32_t>(length.size()));
  const auto kept = keep_concise(correct, length, 2000, keep, indptr);
  for (std::size_t i = 0; i < length.size(); ++i)
    if (keep[i]) {
      EXPECT_TRUE(correct[i]);
      kept_tokens += static_cast<double>(length[i]);
    }
  EXPECT_LT(kept_tokens / static_cast<double>(kept.traces), 0.45 * tokens / static_cast<double>(length.size()));
  EXPECT_LT(right / static_cast<double>(length.size()), 0.8);
  EXPECT_GT(kept.questions, static_cast<std::int64_t>(0.6 * questions));
  EXPECT_EQ(kept.questions + kept.dropped_questions, static_cast<std::int64_t>(questions));
}

TEST(ConciseTraces, BadInput) {
  mask keep(2, 9);
  EXPECT_THROW(keep_concise(mask{1, 1}, std::vector<std::int64_t>{1}, 5, keep), error);
  EXPECT_THROW(keep_concise(mask{1, 1}, std::vector<std::int64_t>{1, -1}, 5, keep), error);
  EXPECT_THROW(keep_concise(mask{1, 1}, std::vector<std::int64_t>{1, 1}, -1, keep), error);
  EXPECT_THROW(keep_concise(mask{1}, std::vector<std::int64_t>{1}, 5, keep), error);
  EXPECT_THROW(keep_concise(mask{1, 1}, std::vector<std::int64_t>{1, 1}, 5, keep, ids{0, 1}), error);
  EXPECT_EQ(keep, mask(2, 9));
}

}  // namespace
