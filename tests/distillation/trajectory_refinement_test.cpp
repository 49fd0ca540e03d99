// The refined law by enumeration and chi-square; the loop against one written out.
#include <heddle/distillation/trajectory_refinement.hpp>

#include "support/errors.hpp"
#include "support/reference/softmax.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using reference::softmax;
using ids = std::vector<std::int32_t>;
using logits = std::vector<float>;
using row = tensor_view<const float, 1>;
constexpr float none = -std::numeric_limits<float>::infinity();

row view(const logits& z) { return {z.data(), extents{static_cast<std::int64_t>(z.size())}}; }

std::vector<double> defined_law(const logits& student, const logits& teacher, const refinement_options& o) {
  const auto s = softmax(student, o.student_temperature);
  auto q = softmax(teacher, static_cast<double>(o.teacher.temperature));
  double sum = 0;
  for (std::size_t v = 0; v < q.size(); ++v) {
    if (s[v] < o.eta * *std::max_element(s.begin(), s.end())) q[v] = 0;
    sum += q[v];
  }
  for (double& x : q) x /= sum;
  return q;
}

logits random_row(std::mt19937& random, std::size_t n, float spread = 1.5f) {
  logits z(n);
  for (float& x : z) x = random() % 9 ? std::normal_distribution<float>(0.f, spread)(random) : none;
  z[random() % n] = 2;
  return z;
}

TEST(TrajectoryRefinement, TokensFollowTheTeacherInsideTheSupportOfThePolicy) {
  std::mt19937 random(1);
  sampling::row_workspace memory(10);
  for (const refinement_options& options : {refinement_options{.eta = 0.1}, {.eta = 0.3, .student_temperature = 2}, {.eta = 0.05, .teacher = {.temperature = 0.7f}}, {.eta = 0}}) {
    const auto student = random_row(random, 10), teacher = random_row(random, 10);
    const auto q = defined_law(student, teacher, options);
    constexpr int draws = 20000;
    std::vector<double> count(10);
    for (std::uint32_t i = 0; i < draws; ++i) {
      const auto next = refined_token(view(student), view(teacher), {}, {.seed = 5, .position = i}, memory, options);
      ASSERT_EQ(next.status, status::ok);
      ASSERT_FALSE(next.fallback);
      ++count[static_cast<std::size_t>(next.token)];
    }
    double chi_square = 0;
    int cells = 0;
    for (std::size_t v = 0; v < 10; ++v) {
      if (q[v] == 0) EXPECT_EQ(count[v], 0) << v;
      else if (q[v] * draws > 5) chi_square += std::pow(count[v] - draws * q[v], 2) / (draws * q[v]), ++cells;
    }
    EXPECT_LT(chi_square, cells + 5 * std::sqrt(2. * cells)) << options.eta;
  }
}

TEST(TrajectoryRefinement, EtaZeroIsTheTeacherAndOneTheStudentsBest) {
  std::mt19937 random(2);
  sampling::row_workspace memory(30);
  for (std::uint32_t i = 0; i < 300; ++i) {
    auto student = random_row(random, 30), teacher = random_row(random, 30);
    const random_key key{.seed = 8, .position = i};
    EXPECT_EQ(refined_token(view(student), view(teacher), {}, key, memory, {.eta = 0}).token, sampling::sample_row(view(teacher), sampling::chain{sampling::parameters{}}, {}, key, memory).token);
    const auto best = static_cast<std::int32_t>(std::max_element(student.begin(), student.end()) - student.begin());
    const auto next = refined_token(view(student), view(teacher), {}, key, memory, {.eta = 1});
    EXPECT_EQ(next.token, best);
    EXPECT_EQ(next.fallback, teacher[static_cast<std::size_t>(best)] == none);
  }
}

TEST(TrajectoryRefinement, DisjointSupportsFallBackAndAreCounted) {
  sampling::row_workspace memory(4);
  const logits student = {1, none, 1, none}, teacher = {none, 1, none, 1};
  const auto next = refined_token(view(student), view(teacher), {}, {}, memory);
  EXPECT_EQ(next.token, 0);  // the lowest id of the two best
  EXPECT_TRUE(next.fallback);
  const auto constant = [](const logits& z) { return [&z](std::span<const std::int32_t>) { return view(z); }; };
  const auto refined = refine_trajectory(ids{3, 3, 3}, 1, constant(student), constant(teacher), {}, memory, {.max_tokens = 5});
  EXPECT_EQ(ids(refined.tokens.begin(), refined.tokens.end()), (ids{3, 0, 0, 0, 0}));
  EXPECT_EQ(refined.fallbacks, 4);
  EXPECT_EQ(refined.first_refined, 1);
}

TEST(TrajectoryRefinement, TheOriginalStaysUpToTheFirstFailure) {
  std::mt19937 random(3);
  const std::size_t n = 20;
  std::vector<logits> rows;
  for (int i = 0; i < 64; ++i) rows.push_back(random_row(random, n, 3));
  const auto model = [&](unsigned salt) { return [&rows, salt](std::span<const std::int32_t> prefix) { return view(rows[(salt + 7 * prefix.size() + static_cast<std::size_t>(prefix.empty() ? 0 : prefix.back())) % 64]); }; };
  const ids original = {4, 9, 1, 0, 17, 3}, end_tokens = {5};
  sampling::row_workspace memory(static_cast<std::int64_t>(n));
  for (std::int64_t f = 0; f <= 6; ++f) {
    const random_key key{.seed = 2, .position = 100};
    const refinement_options options{.eta = 0.2, .max_tokens = 12, .end_tokens = end_tokens};
    const auto refined = refine_trajectory(original, f, model(0), model(31), key, memory, options);
    ids expected(original.begin(), original.begin() + f);
    if (f < 6)
      for (random_key own = key; expected.size() < 12 && (static_cast<std::int64_t>(expected.size()) == f || expected.back() != 5); ++own.position)
        expected.push_back(refined_token(model(0)(expected), model(31)(expected), {}, own, memory, options).token);
    EXPECT_EQ(ids(refined.tokens.begin(), refined.tokens.end()), expected) << f;
    if (f == 6) { EXPECT_EQ(expected, original); }
  }
}

TEST(TrajectoryRefinement, FailuresAndMasks) {
  const std::vector<double> divergence = {0.1, 0.5, 2, INFINITY, 0};
  EXPECT_EQ(first_failure(divergence, 0.5), 2);
  EXPECT_EQ(first_failure(divergence, 3), 3);
  EXPECT_EQ(first_failure(divergence, INFINITY), 5);
  EXPECT_EQ(first_failure(divergence, -1), 0);
  std::vector<std::uint8_t> mask(4, 9);
  refinement_mask(mask, 2);
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{0, 0, 1, 1}));
  refinement_mask(mask, 2, true);
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{1, 1, 1, 1}));
  EXPECT_THROW(refinement_mask(mask, 5), error);
  EXPECT_NE(message_of([] { first_failure(std::vector<double>{0, std::nan("")}, 1); }).find("row 1"), std::string::npos);
  EXPECT_THROW(first_failure(divergence, std::nan("")), error);
}

TEST(TrajectoryRefinement, BadRowsAndParameters) {
  sampling::row_workspace memory(3);
  const logits good = {0, 1, 2}, nan = {0, NAN, none}, infinite = {INFINITY, 0, 0}, empty = {none, none, none};
  EXPECT_EQ(refined_token(view(nan), view(good), {}, {}, memory).status, status::nan_logit);
  EXPECT_EQ(refined_token(view(empty), view(good), {}, {}, memory).status, status::empty_support);
  for (const double eta : {0., 1.}) {  // also where the student's support does not hold the bad column
    EXPECT_EQ(refined_token(view(good), view(nan), {}, {}, memory, {.eta = eta}).status, status::nan_logit) << eta;
    EXPECT_EQ(refined_token(view(good), view(infinite), {}, {}, memory, {.eta = eta}).status, status::inf_logit) << eta;
  }
  EXPECT_EQ(refined_token(view(good), view(nan), {}, {}, memory).token, -1);
  for (const refinement_options& bad : {refinement_options{.eta = -0.1}, {.eta = 1.1}, {.eta = std::nan("")}, {.student_temperature = 0}, {.teacher = {.temperature = -1}}})
    EXPECT_THROW(refined_token(view(good), view(good), {}, {}, memory, bad), error);
  const logits longer(4);
  EXPECT_THROW(refined_token(view(good), view(longer), {}, {}, memory), error);
  const auto model = [&](const logits& z) { return [&z](std::span<const std::int32_t>) { return view(z); }; };
  const auto refined = refine_trajectory(ids{1, 2}, 1, model(good), model(nan), {}, memory);
  EXPECT_EQ(refined.status, status::nan_logit);
  EXPECT_TRUE(refined.tokens.empty());
  EXPECT_THROW(refine_trajectory(ids{1, 2}, 3, model(good), model(good), {}, memory), error);
}

}  // namespace
