// The head against its formula in double, what it does and does not depend on, and what it can do that no table of the last token can.
#include <heddle/speculative/audit/information_floor.hpp>
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/draft/prefix_attention_head.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/drafted_laws.hpp"
#include "speculative/draft/toy_block.hpp"
#include "support/errors.hpp"

#include <numeric>

namespace {

using namespace heddle;
using namespace enumeration;
using toy::join, toy::operator+, toy::weight;
constexpr std::int64_t V = 6, d = 5, r = 3, slots = 3;

const weight w1(V, r, 1), hidden(slots, d, 2, 1.f), logits(slots, V, 3, 1.f);

struct toy_block_model {
  block_prediction predict(std::span<const std::int32_t>, std::int32_t wanted) const { return {logits.view().slice(0, std::min<std::int64_t>(wanted, slots)), hidden.view()}; }
};
std::vector<float> floats(const row& x) { return {x.begin(), x.end()}; }
std::vector<float> corrected(prefix_attention_head& head, std::int32_t slot, std::int32_t previous) {
  std::vector<float> z = floats(logits.at(slot));
  head.correct(slot, previous, floats(hidden.at(slot)), z);
  return z;
}

TEST(PrefixAttentionHead, EqualsItsFormula) {
  for (const std::int32_t heads : {1, 2})
    for (const std::int64_t n : {1, 2, 7, 40}) {
      const std::int64_t a = 4, c = 3;
      const weight query(heads * a, r + d, 11, 1.f), projection(V, heads * c, 12), keys(n, heads * a, 13, 1.f), values(n, heads * c, 14, 1.f);
      const prefix_features text{keys.view(), values.view()};
      prefix_attention_head head({.embedding = w1.view(), .query = query.view(), .projection = projection.view(), .heads = heads}, text);
      head.start();
      for (std::int32_t slot = 0; slot < slots; ++slot)
        for (std::int32_t previous = 0; previous < V; ++previous) {
          const row q = query.times(join({w1.at(previous), hidden.at(slot)}));
          row read(static_cast<std::size_t>(heads * c), 0.);
          for (std::int32_t h = 0; h < heads; ++h) {
            row share;
            for (std::int32_t j = 0; j < n; ++j) {
              double score = 0;
              for (std::int64_t k = h * a; k < (h + 1) * a; ++k) score += q[static_cast<std::size_t>(k)] * keys.at(j)[static_cast<std::size_t>(k)];
              share.push_back(std::exp(score / 2));   // sqrt(a)
            }
            const double sum = std::accumulate(share.begin(), share.end(), 0.);
            for (std::int32_t j = 0; j < n; ++j)
              for (std::int64_t k = h * c; k < (h + 1) * c; ++k) read[static_cast<std::size_t>(k)] += share[static_cast<std::size_t>(j)] / sum * values.at(j)[static_cast<std::size_t>(k)];
          }
          const row expected = logits.at(slot) + projection.times(read);
          const auto z = corrected(head, slot, previous);
          for (std::size_t v = 0; v < V; ++v) ASSERT_NEAR(static_cast<double>(z[v]), expected[v], 2e-6);
        }
    }
}

TEST(PrefixAttentionHead, WithoutTextValuesOrProjectionItIsDFlashBitForBit) {
  const weight query(4, r + d, 11), projection(V, 3, 12), zero(V, 3, 1, 0.f), none(V, 0, 1), keys(5, 4, 13), values(5, 3, 14), no_values(5, 0, 1);
  const prefix_features empty{}, text{keys.view(), values.view()}, narrow{keys.view(), no_values.view()};
  prefix_attention_head heads[] = {prefix_attention_head({w1.view(), query.view(), projection.view()}, empty), prefix_attention_head({w1.view(), query.view(), zero.view()}, text),
                                   prefix_attention_head({w1.view(), query.view(), none.view()}, narrow)};
  for (auto& head : heads)
    for (std::int32_t slot = 0; slot < slots; ++slot) EXPECT_EQ(corrected(head, slot, 2), floats(logits.at(slot)));
}

// Rows that are appended to the text are seen at once; tokens of the block before the last are not.
TEST(PrefixAttentionHead, DependsOnTheTextAndTheLastToken) {
  const weight query(4, r + d, 11, 1.f), projection(V, 3, 12), keys(5, 4, 13, 1.f), values(5, 3, 14, 1.f);
  prefix_features text{keys.view().slice(0, 4), values.view().slice(0, 4)};
  prefix_attention_head head({w1.view(), query.view(), projection.view()}, text);
  head.start(), corrected(head, 0, 1);
  const auto after_one = corrected(head, 1, 3);
  head.start(), corrected(head, 0, 5);
  EXPECT_EQ(corrected(head, 1, 3), after_one);
  EXPECT_NE(corrected(head, 1, 4), after_one);
  text = {keys.view(), values.view()};
  EXPECT_NE(corrected(head, 1, 3), after_one);
}

TEST(PrefixAttentionHead, VerificationKeepsTheTargetsLaw) {
  const weight query(4, r + d, 11, 1.f), projection(V, 3, 12, 1.f), keys(5, 4, 13, 1.f), values(5, 3, 14, 1.f);
  const prefix_features text{keys.view(), values.view()};
  const prefix_attention_head head({w1.view(), query.view(), projection.view()}, text);
  const world w = make_world(V, "random", 31);
  const auto distance_by = [&](const auto& rule) {
    toy_block_model model;
    every_choice draws;
    block_sampler<toy_block_model, prefix_attention_head, scripted_draws> drafter{model, head, {.num_slots = 2}, scripted_draws{&draws}};
    return distance(emitted_law(drafter, draws, w, rule, 2, 2), target_law(w, 2));
  };
  EXPECT_LT(distance_by(verify::token{}), 1e-12);
  EXPECT_LT(distance_by(verify::block{}), 1e-12);
}

// A target that goes on as the text did after the same token. Keys say which token a row follows, values which token it is: the head finds it. A table of the last
// token, the best there is for these texts, cannot be accepted more often than their information floor allows.
TEST(PrefixAttentionHead, ReadsWhatFollowedInThisText) {
  std::vector<float> unit(V * V, 0.f), select(V * V, 0.f);
  for (std::size_t v = 0; v < V; ++v) unit[v * V + v] = 1.f, select[v * V + v] = 20.f;
  const tensor_view<const float, 2> identity{unit.data(), extents{V, V}};
  std::vector<float> projection = unit;
  for (float& x : projection) x *= 4.f;
  prefix_features text;
  prefix_attention_head head({.embedding = identity, .query = {select.data(), extents{V, V}}, .projection = {projection.data(), extents{V, V}}}, text);
  std::mt19937 random(5);
  std::vector<double> laws;
  double rejected = 0;
  const int texts = 60;
  for (int i = 0; i < texts; ++i) {
    std::vector<std::int32_t> cycle(V);   // every token has one successor
    std::iota(cycle.begin(), cycle.end(), 0);
    std::shuffle(cycle.begin(), cycle.end(), random);
    std::vector<float> keys(V * V, 0.f), values(V * V, 0.f);
    std::int32_t successor = -1;
    for (std::size_t j = 0; j < V; ++j) {
      const auto before = static_cast<std::size_t>(cycle[j]), token = static_cast<std::size_t>(cycle[(j + 1) % V]);
      keys[j * V + before] = values[j * V + token] = 1.f;
      if (before == 2) successor = static_cast<std::int32_t>(token);
    }
    text = {{keys.data(), extents{V, V}}, {values.data(), extents{V, V}}};
    std::vector<float> z(V, 0.f);
    head.correct(0, 2, {}, z);
    double sum = 0;
    for (const float x : z) sum += std::exp(static_cast<double>(x));
    for (std::int32_t v = 0; v < V; ++v) {
      laws.push_back(v == successor ? .9 : .02);
      rejected += std::abs(std::exp(static_cast<double>(z[static_cast<std::size_t>(v)])) / sum - laws.back()) / (2 * texts);
    }
  }
  const double floor = audit::information_floor(tensor_view<const double, 2>{laws.data(), extents{texts, V}});
  EXPECT_GT(floor, 0.5);
  EXPECT_LT(rejected, 0.1);
}

TEST(PrefixAttentionHead, BadInput) {
  const weight query(4, r + d, 11), projection(V, 3, 12), keys(5, 4, 13), values(5, 3, 14), few(4, 3, 15), thin(4, r - 1, 16);
  const prefix_features text{keys.view(), values.view()}, ragged{keys.view(), few.view()};
  const auto message = [&](const prefix_attention_weights& w) { return message_of([&] { prefix_attention_head(w, text); }); };
  EXPECT_NE(message({w1.view(), query.view(), few.view()}).find("'projection'"), std::string::npos);
  EXPECT_NE(message({w1.view(), thin.view(), projection.view()}).find("'query' has 2 columns"), std::string::npos);
  for (const std::int32_t heads : {0, 2, 3}) EXPECT_NE(message({w1.view(), query.view(), projection.view(), heads}).find("'heads'"), std::string::npos);
  prefix_attention_head head({w1.view(), query.view(), projection.view()}, text), uneven({w1.view(), query.view(), projection.view()}, ragged);
  std::vector<float> z(V), h(d), short_h(d - 1), short_z(V - 1);
  EXPECT_NE(message_of([&] { head.correct(0, V, h, z); }).find("token 6 has no row"), std::string::npos);
  EXPECT_NE(message_of([&] { head.correct(0, 1, short_h, z); }).find("hidden states have 4 channels"), std::string::npos);
  EXPECT_NE(message_of([&] { head.correct(0, 1, h, short_z); }).find("rows have 5 logits"), std::string::npos);
  EXPECT_NE(message_of([&] { uneven.correct(0, 1, h, z); }).find("'values'"), std::string::npos);
  EXPECT_EQ(z, std::vector<float>(V));
}

}  // namespace
