// Event sets by search through both vocabularies, the loss by its formula, and coverage between two tokenizers made from a text.
#include "distillation/random_vocabulary.hpp"
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/event_set_completion.hpp>
#include <heddle/distillation/loss.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;
using test::infinity;
using test::log_probs;

struct wanted_row {
  std::map<std::string, double> weights;   // of covered rests, renormalised
  double coverage = 0;
  completion_state state = completion_state::entry;
};
std::set<std::size_t> completions(const test::vocabulary& student, const std::string& rest) {
  std::set<std::size_t> tokens;
  for (std::size_t v = 0; v < student.strings.size(); ++v)
    if (student.strings[v].compare(0, rest.size(), rest) == 0) tokens.insert(v);
  return tokens;
}
wanted_row wanted(const test::vocabulary& student, const test::vocabulary& teacher, const std::string& emitted, const log_probs& t) {
  wanted_row row;
  if (emitted.empty()) return row;
  double total = 0, covered = 0;
  for (std::size_t v = 0; v < teacher.strings.size(); ++v) {
    const std::string& token = teacher.strings[v];
    if (token.size() > emitted.size() && token.compare(0, emitted.size(), emitted) == 0) {
      total += std::exp(t[v]);
      const std::string rest = token.substr(emitted.size());
      if (!completions(student, rest).empty() && t[v] > -infinity) covered += std::exp(t[v]), row.weights[rest] += std::exp(t[v]);
    }
  }
  row.state = total == 0 ? completion_state::no_teacher_mass : covered == 0 ? completion_state::uncovered : completion_state::supervised;
  if (total > 0) row.coverage = covered / total;
  for (auto& [rest, w] : row.weights) w /= covered;
  return row;
}
double completion_loss(const wanted_row& row, const test::vocabulary& student, const log_probs& s) {
  double loss = 0;
  for (const auto& [rest, w] : row.weights) {
    double mass = 0;
    for (const std::size_t v : completions(student, rest)) mass += std::exp(s[v]);
    loss -= w * std::log(mass);
  }
  return loss;
}

// Random vocabularies over four bytes: many nested sets, equal strings, empty tokens.
TEST(EventSetCompletion, TargetsAndLossOfRandomVocabularies) {
  std::mt19937 random(1);
  std::map<completion_state, int> seen;
  for (int trial = 0; trial < 60; ++trial) {
    const test::vocabulary student = test::random_vocabulary(30 + random() % 40, random), teacher = test::random_vocabulary(30 + random() % 40, random);
    const byte_order student_order(student.view()), teacher_order(teacher.view());
    const auto width = static_cast<std::int64_t>(student.strings.size());
    array<double> y = test::gaussian<double>(3, static_cast<std::int64_t>(teacher.strings.size()), random);
    for (double& x : y.values)
      if (random() % 8 == 0) x = -infinity;
    std::string text;
    std::vector<partial_event> events;
    for (int i = 0; i < 8; ++i) {
      const std::string emitted = test::random_bytes(random() % 3, random);
      events.push_back({static_cast<std::int32_t>(random() % 3), static_cast<std::int64_t>(text.size()), static_cast<std::int64_t>(text.size() + emitted.size())});
      text += emitted;
    }
    events.push_back({});
    const double tau = 0.7;
    const event_set_targets targets(student_order, teacher_order, text, events, y.view(), tau);
    std::vector<wanted_row> rows;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const auto& e = events[i];
      rows.push_back(e.teacher_row < 0 ? wanted_row{} : wanted(student, teacher, text.substr(static_cast<std::size_t>(e.begin), static_cast<std::size_t>(e.end - e.begin)), test::log_softmax(y, e.teacher_row, tau)));
      const auto row = static_cast<std::int64_t>(i);
      ++seen[rows[i].state];
      EXPECT_EQ(targets.states()[i], rows[i].state);
      EXPECT_EQ(targets.mask()[i], rows[i].state == completion_state::supervised);
      EXPECT_NEAR(targets.coverage()[i], rows[i].coverage, 1e-12);
      EXPECT_EQ(targets.events(row).size(), rows[i].weights.size());
      std::set<std::size_t> columns;
      double weight = 0;
      for (const auto& [rest, w] : rows[i].weights) columns.merge(completions(student, rest));
      for (const auto& e2 : targets.events(row)) weight += e2.weight;
      EXPECT_EQ(std::set<std::size_t>(targets.columns(row).begin(), targets.columns(row).end()), columns);
      EXPECT_TRUE(std::is_sorted(targets.columns(row).begin(), targets.columns(row).end()));
      if (rows[i].state == completion_state::supervised) {
        EXPECT_NEAR(weight, 1, 1e-12);
      }
    }
    for (const auto state : {completion_state::entry, completion_state::supervised, completion_state::no_teacher_mass, completion_state::uncovered})
      EXPECT_EQ(targets.count(state), std::count_if(rows.begin(), rows.end(), [&](const wanted_row& r) { return r.state == state; }));

    if (trial % 6) continue;
    const test::named_rows<1> z{test::gaussian<double>(static_cast<std::int64_t>(events.size()), width, random)};
    test::check_laws<event_set_completion, 1>(event_set_completion(targets), z, [&](std::int64_t i, const auto&, const auto& at) { return completion_loss(rows[static_cast<std::size_t>(i)], student, at); }, {.temperature = 1.2});
  }
  EXPECT_GT(seen[completion_state::supervised], 100);
  EXPECT_GT(seen[completion_state::uncovered], 0);
  EXPECT_GT(seen[completion_state::no_teacher_mass], 10);
}

TEST(EventSetCompletion, OnlyTheMassOfTheSetCounts) {
  const test::vocabulary student({"un", "able", "a", "ab", "x"}), teacher({"unab", "unx", "un"});
  const byte_order student_order(student.view()), teacher_order(teacher.view());
  array<double> y(1, 3), z(1, 5), gradient(1, 5);
  y(0, 1) = -infinity;
  const std::vector<partial_event> events{{0, 0, 2}};
  const event_set_targets targets(student_order, teacher_order, "un", events, y.view());
  const auto value = [&](double able, double ab) {   // C("ab") = {able, ab}
    z(0, 0) = std::log(0.3), z(0, 1) = std::log(able), z(0, 2) = std::log(0.1), z(0, 3) = std::log(ab), z(0, 4) = std::log(0.1);
    return loss(z.view(), event_set_completion(targets), gradient.view(), {.mask = targets.mask()}).value;
  };
  for (const double share : {0.01, 0.2, 0.4, 0.49}) {
    EXPECT_NEAR(value(share, 0.5 - share), -std::log(0.5), 1e-12);
    for (const std::int64_t v : {0, 2, 4}) EXPECT_NEAR(gradient(0, v), std::exp(z(0, v)), 1e-12);
    EXPECT_NEAR(gradient(0, 1), share * (1 - 1 / 0.5), 1e-12);
  }
  // one form more in the set, one more way to be right
  const test::vocabulary shorter({"una", "unx", "un"});
  const byte_order shorter_order(shorter.view());
  const event_set_targets wider(student_order, shorter_order, "un", events, y.view());
  EXPECT_NEAR(loss(z.view(), event_set_completion(wider), no_gradient).value, -std::log(0.6), 1e-12);

  // no student mass where the teacher asks for some
  z(0, 1) = z(0, 3) = -infinity;
  const auto impossible = loss(z.view(), event_set_completion(targets), gradient.view());
  EXPECT_EQ(impossible.row_status[0], status::infinite_divergence);
  for (const double g : gradient.values) EXPECT_EQ(g, 0);
}

TEST(EventSetCompletion, SetsOfVanishingMassHaveFiniteLosses) {
  const test::vocabulary student({"a", "b"}), teacher({"aa", "ab", "b"});
  const byte_order student_order(student.view()), teacher_order(teacher.view());
  array<float> y(1, 3), z(1, 2), gradient(1, 2);
  const std::vector<partial_event> events{{0, 0, 1}};
  const event_set_targets targets(student_order, teacher_order, "ab", events, y.view());   // "a" and "b" complete with weight 1/2 each
  z(0, 1) = -1000;
  const auto result = loss(z.view(), event_set_completion(targets), gradient.view());
  EXPECT_EQ(result.row_status[0], status::ok);
  EXPECT_NEAR(result.value, 500, 1e-9);
  EXPECT_NEAR(gradient(0, 0), 0.5, 1e-6);
  EXPECT_NEAR(gradient(0, 1), -0.5, 1e-6);
}

TEST(EventSetCompletion, Errors) {
  const test::vocabulary student({"a", "b"}), teacher({"aa", "ab", "b"});
  const byte_order student_order(student.view()), teacher_order(teacher.view());
  array<float> y(2, 3), z(1, 2), wide(1, 3), many(2, 2);
  const auto fails = [&](const partial_event& e, double temperature = 1) { return message_of([&] { event_set_targets(student_order, teacher_order, "ab", std::vector<partial_event>{e}, y.view(), temperature); }); };
  EXPECT_NE(fails({2, 0, 1}).find("entry 0 names the teacher row 2"), std::string::npos);
  EXPECT_NE(fails({0, 1, 3}).find("names the bytes 1 to 3"), std::string::npos);
  EXPECT_NE(fails({0, 1, 0}).find("names the bytes 1 to 0"), std::string::npos);
  EXPECT_NE(fails({0, 0, 1}, 0).find("'teacher_temperature' is 0"), std::string::npos);
  EXPECT_NE(message_of([&] { event_set_targets(student_order, student_order, "ab", {}, y.view()); }).find("extent 1 is 3"), std::string::npos);
  y(1, 1) = NAN;
  const std::vector<partial_event> events{{1, 0, 1}};
  const event_set_targets bad(student_order, teacher_order, "ab", events, y.view());
  EXPECT_EQ(bad.states()[0], completion_state::bad_teacher);
  EXPECT_EQ(bad.mask()[0], 0);
  EXPECT_NE(message_of([&] { loss(wide.view(), event_set_completion(bad), no_gradient); }).find("vocabulary of 2 tokens; expected 3"), std::string::npos);
  EXPECT_NE(message_of([&] { loss(many.view(), event_set_completion(bad), no_gradient); }).find("has 1 rows"), std::string::npos);
}

// Two tokenizers that merge frequent pairs, each learned on a text of its own: the share of the teacher's open mass that one student token completes. These
// vocabularies are tiny and the teacher's is the larger one; vocabularies of full size leave less over.
std::vector<std::string> learn(std::vector<std::string> pieces, int merges) {
  std::set<std::string> vocabulary;
  for (int byte = 1; byte < 128; ++byte) vocabulary.insert(std::string(1, static_cast<char>(byte)));
  for (; merges > 0; --merges) {
    std::map<std::pair<std::string, std::string>, int> pairs;
    for (std::size_t i = 1; i < pieces.size(); ++i)
      if (pieces[i - 1].back() != ' ') ++pairs[{pieces[i - 1], pieces[i]}];
    if (pairs.empty()) break;
    const auto best = std::max_element(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
    std::vector<std::string> merged;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      if (i + 1 < pieces.size() && pieces[i] == best.first && pieces[i + 1] == best.second) merged.push_back(best.first + best.second), ++i;
      else merged.push_back(pieces[i]);
    vocabulary.insert(best.first + best.second), pieces = merged;
  }
  return {vocabulary.begin(), vocabulary.end()};
}
std::vector<std::int64_t> longest_match(const std::string& text, const std::vector<std::string>& tokens) {
  std::vector<std::int64_t> ends;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t longest = 1;
    for (const auto& token : tokens)
      if (token.size() > longest && text.compare(at, token.size(), token) == 0) longest = token.size();
    ends.push_back(static_cast<std::int64_t>(at += longest));
  }
  return ends;
}

TEST(EventSetCompletion, OneTokenCompletesMostOfTheTeachersMass) {
  // words drawn by a Zipf law from syllables, so that both halves share frequent words and differ in rare ones
  std::mt19937 random(5);
  const std::string syllables[] = {"ta", "ren", "mi", "o", "sku", "le", "an", "ti", "vor", "e", "ling", "pa"};
  std::vector<std::string> dictionary;
  for (int w = 0; w < 300; ++w) {
    std::string word;
    for (auto n = 1 + random() % 3; n > 0; --n) word += syllables[random() % 12];
    dictionary.push_back(word + " ");
  }
  const auto text_of = [&](int words) {
    std::string text;
    for (int i = 0; i < words; ++i) text += dictionary[static_cast<std::size_t>(std::exp(std::uniform_real_distribution<double>(0, std::log(300.))(random))) - 1];
    return text;
  };
  const auto pieces = [](const std::string& text) {
    std::vector<std::string> single;
    for (const char c : text) single.emplace_back(1, c);
    return single;
  };
  const auto student_tokens = learn(pieces(text_of(800)), 120), teacher_tokens = learn(pieces(text_of(800)), 200);
  const test::vocabulary student(student_tokens), teacher(teacher_tokens);
  const byte_order student_order(student.view()), teacher_order(teacher.view());
  const std::string text = text_of(300);
  const auto student_ends = longest_match(text, student_tokens), teacher_ends = longest_match(text, teacher_tokens);
  const auto events = partial_events(align(student_ends, teacher_ends), student_ends);
  // the teacher predicts its own next token, and spreads the rest evenly
  array<float> y(static_cast<std::int64_t>(teacher_ends.size()), teacher_order.size());
  for (std::size_t j = 0; j < teacher_ends.size(); ++j) {
    const auto begin = static_cast<std::size_t>(j ? teacher_ends[j - 1] : 0);
    const std::string token = text.substr(begin, static_cast<std::size_t>(teacher_ends[j]) - begin);
    y(static_cast<std::int64_t>(j), std::lower_bound(teacher_tokens.begin(), teacher_tokens.end(), token) - teacher_tokens.begin()) = 6;
  }
  const event_set_targets targets(student_order, teacher_order, text, events, y.view());
  double covered = 0;
  for (std::size_t i = 0; i < events.size(); ++i)
    if (targets.states()[i] == completion_state::supervised || targets.states()[i] == completion_state::uncovered) covered += targets.coverage()[i];
  const double rows = static_cast<double>(targets.count(completion_state::supervised) + targets.count(completion_state::uncovered));
  RecordProperty("coverage", std::to_string(covered / rows) + " of " + std::to_string(rows) + " rows");
  EXPECT_GT(rows, 30);
  EXPECT_GT(covered / rows, 0.7);
  // one tokenizer: no row has a partial event
  const event_set_targets none(student_order, student_order, text, partial_events(align(student_ends, student_ends), student_ends), array<float>(static_cast<std::int64_t>(student_ends.size()), student_order.size()).view());
  EXPECT_EQ(none.count(completion_state::entry), none.size());
}

}  // namespace
