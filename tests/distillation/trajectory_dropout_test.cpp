// The maps against their definition; the loss through them; what dropping a prefix is for.
#include <heddle/distillation/trajectory_dropout.hpp>

#include <heddle/distillation/divergence.hpp>
#include <heddle/distillation/health_metrics.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using ids = std::vector<std::int32_t>;

ids list(const aligned_vector<std::int32_t>& v) { return {v.begin(), v.end()}; }
ids count_up(std::int32_t n, std::int32_t from = 0) {
  ids v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), from);
  return v;
}

TEST(TrajectoryDropout, RowsSeeThePromptAndTheKeptTokensBeforeThem) {
  for (std::uint32_t seed = 0; seed < 200; ++seed)
    for (const bool all : {false, true}) {
      const auto length = static_cast<std::int64_t>(seed % 37);
      const trajectory_dropout options{.rate = 0.4, .all_targets = all, .positions = seed % 2 ? position_ids::original : position_ids::compact};
      const auto rows = drop_trajectory(11, length, {.seed = seed}, options);
      std::size_t pair = 0, kept = 0;
      for (std::int32_t j = 0; j < length; ++j) {
        const bool keep = kept < rows.kept.size() && rows.kept[kept] == j;
        if (keep || all) {
          ASSERT_EQ(rows.teacher_rows[pair], j);                                    // the teacher sees everything
          ASSERT_EQ(rows.student_rows[pair], static_cast<std::int32_t>(kept));      // the kept tokens before j
          ++pair;
        }
        if (keep) {
          ASSERT_EQ(rows.positions[kept], seed % 2 ? 11 + j : 11 + static_cast<std::int32_t>(kept));
          ++kept;
        }
      }
      ASSERT_EQ(kept, rows.kept.size());
      ASSERT_EQ(pair, rows.teacher_rows.size());
      ASSERT_EQ(pair, rows.student_rows.size());
      if (!all) { ASSERT_EQ(list(rows.student_rows), count_up(static_cast<std::int32_t>(kept))); }  // strictly increasing, like kept itself
      for (std::size_t k = 1; k < pair; ++k) ASSERT_LT(rows.teacher_rows[k - 1], rows.teacher_rows[k]);
      for (std::size_t k = 1; k < kept; ++k) ASSERT_LT(rows.kept[k - 1], rows.kept[k]);
    }
}

TEST(TrajectoryDropout, RatesZeroAndOne) {
  const auto none = drop_trajectory(3, 5, {.seed = 1}, {.rate = 0});
  EXPECT_EQ(list(none.kept), count_up(5));
  EXPECT_EQ(list(none.positions), count_up(5, 3));
  EXPECT_EQ(list(none.student_rows), count_up(5));
  EXPECT_EQ(list(none.teacher_rows), count_up(5));
  const auto everything = drop_trajectory(3, 5, {.seed = 1}, {.rate = 1, .all_targets = true});
  EXPECT_TRUE(everything.kept.empty());
  EXPECT_EQ(list(everything.student_rows), ids(5, 0));  // the prompt alone
  EXPECT_EQ(list(everything.teacher_rows), count_up(5));
  EXPECT_NE(message_of([] { drop_trajectory(3, 5, {}, {.rate = 1}); }).find("all_targets"), std::string::npos);
}

TEST(TrajectoryDropout, NumberOfKeptTokens) {
  constexpr int draws = 2000, length = 50;
  for (const double rate : {0.1, 0.5, 0.85}) {
    double sum = 0, squares = 0;
    for (std::uint32_t i = 0; i < draws; ++i) {
      const auto kept = static_cast<double>(drop_trajectory(0, length, {.seed = 3, .request = i}, {.rate = rate}).kept.size());
      sum += kept, squares += kept * kept;
    }
    const double variance = length * rate * (1 - rate);
    EXPECT_NEAR(sum / draws, (1 - rate) * length, 5 * std::sqrt(variance / draws));
    EXPECT_NEAR(squares / draws - sum * sum / draws / draws, variance, 0.2 * variance);
  }
  EXPECT_EQ(list(drop_trajectory(0, 40, {.seed = 5}).kept), list(drop_trajectory(9, 40, {.seed = 5}).kept));
  EXPECT_NE(list(drop_trajectory(0, 40, {.seed = 5}).kept), list(drop_trajectory(0, 40, {.seed = 6}).kept));
}

/// A student whose logits are a function of the tokens it sees.
test::array<double> student_rows(const ids& trajectory, const aligned_vector<std::int32_t>& kept, std::int64_t vocabulary) {
  test::array<double> z(static_cast<std::int64_t>(kept.size()) + 1, vocabulary);
  unsigned seen = 1;
  for (std::int64_t r = 0; r < z.rows; ++r) {
    std::mt19937 random(seen);
    for (std::int64_t v = 0; v < vocabulary; ++v) z(r, v) = std::normal_distribution<double>(0, 1.5)(random);
    if (r + 1 < z.rows) seen = seen * 31 + static_cast<unsigned>(trajectory[static_cast<std::size_t>(kept[static_cast<std::size_t>(r)])]);
  }
  return z;
}

template <class T>
void loss_through_the_maps(double tolerance) {
  const std::int64_t length = 14, vocabulary = 21;
  std::mt19937 random(4);
  ids trajectory;
  for (std::int64_t j = 0; j < length; ++j) trajectory.push_back(static_cast<std::int32_t>(random() % 21));
  auto [teacher, exact_teacher] = test::same_numbers<T>(test::gaussian<double>(length, vocabulary, random));
  for (const bool all : {false, true})
    for (const double rate : {0., 0.5}) {
      const auto rows = drop_trajectory(4, length, {.seed = 8}, {.rate = rate, .all_targets = all});
      auto [student, exact] = test::same_numbers<T>(student_rows(trajectory, rows.kept, vocabulary));
      const auto pairs = per_row(reverse_kl{}, select_rows(student.view(), rows.student_rows), select_rows(teacher.view(), rows.teacher_rows));
      ASSERT_EQ(pairs.size(), static_cast<std::int64_t>(all || rate == 0 ? length : static_cast<std::int64_t>(rows.kept.size())));
      test::array<T> gradient(pairs.size(), vocabulary);
      pairs.backward(std::vector<double>(static_cast<std::size_t>(pairs.size()), 1.), gradient.view());
      for (std::int64_t k = 0; k < pairs.size(); ++k) {
        const auto s = test::softmax(exact, rows.student_rows[static_cast<std::size_t>(k)]), t = test::softmax(exact_teacher, rows.teacher_rows[static_cast<std::size_t>(k)]);
        const double kl = test::kl(s, t);
        EXPECT_NEAR(pairs.values()[static_cast<std::size_t>(k)], kl, tolerance);
        for (std::int64_t v = 0; v < vocabulary; ++v) EXPECT_NEAR(gradient(k, v), s[static_cast<std::size_t>(v)] * (std::log(s[static_cast<std::size_t>(v)] / t[static_cast<std::size_t>(v)]) - kl), tolerance);
      }
      if (rate == 0) {  // the plain loss, bit for bit
        const auto plain = per_row(reverse_kl{}, student.view().slice(0, length), teacher.view());
        for (std::size_t k = 0; k < static_cast<std::size_t>(length); ++k) EXPECT_EQ(pairs.values()[k], plain.values()[k]);
      }
      if (rate > 0 && !all) {  // the same as a full batch in which dropped targets are masked: their gradient is exactly 0
        std::vector<std::uint8_t> mask(static_cast<std::size_t>(length));
        ids row_of_target(static_cast<std::size_t>(length));
        for (std::size_t k = 0; k < rows.kept.size(); ++k) mask[static_cast<std::size_t>(rows.kept[k])] = 1, row_of_target[static_cast<std::size_t>(rows.kept[k])] = static_cast<std::int32_t>(k);
        const auto full = per_row(reverse_kl{}, {.mask = mask}, select_rows(student.view(), row_of_target), teacher.view());
        test::array<T> full_gradient(length, vocabulary);
        full.backward(std::vector<double>(static_cast<std::size_t>(length), 1.), full_gradient.view());
        std::size_t k = 0;
        for (std::int64_t j = 0; j < length; ++j) {
          for (std::int64_t v = 0; v < vocabulary; ++v) EXPECT_EQ(full_gradient(j, v), mask[static_cast<std::size_t>(j)] ? gradient(static_cast<std::int64_t>(k), v) : T(0));
          k += mask[static_cast<std::size_t>(j)];
        }
      }
    }
}
TEST(TrajectoryDropout, TheLossThroughTheMapsInFloat) { loss_through_the_maps<float>(3e-6); }
TEST(TrajectoryDropout, TheLossThroughTheMapsInDouble) { loss_through_the_maps<double>(1e-12); }

// First case of attenuation: a student that puts 1 - delta on a token the teacher disagrees about gets a gradient of order delta ln 1/delta.
TEST(TrajectoryDropout, ConfidenceAttenuatesTheGradientHoweverMuchTheTeacherDisagrees) {
  const std::int64_t vocabulary = 8, steps = 9;
  test::array<double> z(steps, vocabulary), y(steps, vocabulary);
  for (std::int64_t r = 0; r < steps; ++r) {
    const double delta = std::pow(10., -static_cast<double>(r + 1));
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      z(r, v) = v == 0 ? std::log1p(-delta) : std::log(delta / 7 * (v == 1 ? 2.5 : v == 2 ? 0.5 : 0.8));
      y(r, v) = v == 1 ? 3 : v == 0 ? -1 : 0;
    }
  }
  const auto gradient = test::gradient_of(reverse_kl{}, {}, z, y.view());
  auto copy = gradient;
  std::vector<double> rms(static_cast<std::size_t>(steps)), divergence = test::values_of(reverse_kl{}, {}, z.view(), y.view());
  gradient_rms(rms, {}, copy.view());
  double before = INFINITY;
  for (std::size_t r = 0; r < static_cast<std::size_t>(steps); ++r) {
    const double delta = std::pow(10., -static_cast<double>(r + 1)), norm = rms[r] * std::sqrt(8.);
    EXPECT_GT(divergence[r], 2);                                     // the teacher disagrees all the same
    EXPECT_LT(norm, before);
    EXPECT_TRUE(norm > 0.3 * delta * std::log(1 / delta) && norm < 3 * delta * std::log(1 / delta)) << delta << ' ' << norm;
    before = norm;
  }
}

// Second case: how much a target's gradient owes to the prefix is how much it changes when the prefix is dropped. A student that copies from its prefix shows it.
TEST(TrajectoryDropout, DroppingThePrefixExposesTheRowsThatReliedOnIt) {
  const std::int64_t vocabulary = 6, length = 4;
  test::array<double> full(length, vocabulary), teacher(length, vocabulary);
  for (std::int64_t j = 0; j < length; ++j) {
    full(j, 2) = 9;                                                  // sure of token 2; only rows 1 and 3 because of the prefix
    teacher(j, 3) = 4;
  }
  const auto rows = drop_trajectory(2, length, {}, {.rate = 1, .all_targets = true});
  test::array<double> dropped = full;
  dropped(1, 2) = dropped(3, 2) = 0.5;
  const auto g = test::gradient_of(reverse_kl{}, {}, full, select_rows(teacher.view(), rows.teacher_rows)), h = test::gradient_of(reverse_kl{}, {}, dropped, select_rows(teacher.view(), rows.teacher_rows));
  auto a = g, b = h;
  std::vector<double> change(4), before(4), after(4);
  gradient_rms(change, {}, a.view(), b.view()), gradient_rms(before, {}, a.view()), gradient_rms(after, {}, b.view());
  EXPECT_EQ(change[0], 0);
  EXPECT_EQ(change[2], 0);
  for (const std::size_t j : {1u, 3u}) {
    EXPECT_GT(change[j], 0.05);
    EXPECT_GT(after[j], 3 * before[j]);  // and the correction is stronger
  }
}

TEST(TrajectoryDropout, BadInput) {
  for (const double rate : {-0.1, 1.1, std::nan("")}) EXPECT_THROW(drop_trajectory(1, 5, {}, {.rate = rate, .all_targets = true}), error);
  EXPECT_THROW(drop_trajectory(-1, 5, {}), error);
  EXPECT_THROW(drop_trajectory(1, -5, {}), error);
  EXPECT_TRUE(drop_trajectory(1, 0, {}).teacher_rows.empty());
}

}  // namespace
