// Texts of several rounds of the decode loop against the target's law: what one round has drawn and looked at must leave the next one free.
#pragma once
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft/block_model.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

namespace rounds {

using namespace heddle;

constexpr std::int64_t vocabulary = 3, slots = 3;
constexpr double target[] = {.5, .3, .2}, proposal[] = {.1, .2, .7};

// The same law after every token, as a target and as the slots of a block.
struct constant_model {
  std::vector<float> rows;
  explicit constant_model(const double (&law)[vocabulary], std::int64_t count = 16) {
    for (std::int64_t i = 0; i < count; ++i)
      for (const double p : law) rows.push_back(static_cast<float>(std::log(p)));
  }
  tensor_view<const float, 2> first(std::int64_t count) const { return {rows.data(), extents{count, vocabulary}}; }
  tensor_view<const float, 2> score(const token_tree& tree) const { return first(static_cast<std::int64_t>(tree.tokens.size())); }
  block_prediction predict(std::span<const std::int32_t>, std::int32_t count) const { return {first(count), {}}; }
  void keep(std::span<const std::int32_t>) const {}
};

struct outcome {
  double chi_square = 0;         // degrees of freedom: 3^length - 1
  double rounds_per_text = 0;
};

// drafter_of(model, request) drafts `draft_length` tokens a round; texts of `length` tokens, one per request.
template <class Rule, class DrafterOf>
outcome texts_of(const DrafterOf& drafter_of, std::size_t length, std::int32_t draft_length, std::uint32_t samples) {
  constant_model model(target), drafts(proposal);
  const sampling::chain policy{sampling::temperature(1.f)};
  const std::int32_t prompt[] = {0};
  std::size_t texts = 1;
  for (std::size_t i = 0; i < length; ++i) texts *= 3;
  std::vector<double> counts(texts, 0.);
  outcome found;
  for (std::uint32_t request = 0; request < samples; ++request) {
    auto drafter = drafter_of(drafts, request);
    decode_loop loop{model, drafter, Rule{.seed = 5, .request = request}, policy, {.prompt = prompt, .max_new_tokens = static_cast<std::int64_t>(length), .draft_length = draft_length}};
    while (!loop.done()) loop.step();
    std::size_t text = 0;
    for (const std::int32_t token : loop.tokens().subspan(1)) text = text * 3 + static_cast<std::size_t>(token);
    ++counts[text];
    found.rounds_per_text += static_cast<double>(loop.stats().rounds) / samples;
  }
  for (std::size_t text = 0; text < texts; ++text) {
    double expected = samples;
    for (std::size_t rest = text, i = 0; i < length; ++i, rest /= 3) expected *= target[rest % 3];
    found.chi_square += (counts[text] - expected) * (counts[text] - expected) / expected;
  }
  return found;
}

}  // namespace rounds
