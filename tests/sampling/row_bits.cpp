#include <heddle/sampling/row.hpp>
#include "support/bits.hpp"

#include <cstdio>

HEDDLE_BITS(sampling_row, report) {
  using namespace heddle::sampling;
  constexpr std::int64_t vocabulary = 1531;
  heddle_bits::inputs in{10};
  heddle_bits::vector<std::int32_t> context(60);
  for (std::int32_t& token : context) token = static_cast<std::int32_t>(in.next() % 100);
  const heddle::sampling::parameters policies[] = {
      {.temperature = 0.f},
      {.temperature = 0.7f, .top_k = 50, .top_p = 0.9f},
      {.temperature = 1.3f, .min_p = 0.05f},
      {.temperature = 0.9f, .typical_p = 0.6f},
      {.top_p = 0.95f, .repetition_penalty = 1.3f, .presence_penalty = 0.3f, .frequency_penalty = 0.7f},
      {.dry_multiplier = 0.8f, .xtc_probability = 0.5f, .xtc_threshold = 0.05f},
  };
  row_workspace memory(vocabulary);
  int number = 0;
  for (const auto& policy : policies) {
    heddle_bits::vector<std::uint64_t> laws;
    heddle_bits::vector<std::int32_t> tokens;
    heddle_bits::vector<double> log_probs;
    for (std::uint32_t position = 0; position < 20; ++position) {
      auto row = in.uniform(vocabulary);
      for (float& z : row) z = z * z * z * 12.f;
      const heddle::tensor_view logits{row.data(), heddle::extents{vocabulary}};
      const history before{context, {}};
      const heddle::random_key key{.seed = 7, .position = position};
      const chain rules{policy};
      const law l = law_of(logits, rules, before, key, memory);
      laws.insert(laws.end(), l.masses.begin(), l.masses.end());
      laws.insert(laws.end(), l.tokens.begin(), l.tokens.end());
      tokens.push_back(sample_row(logits, rules, before, key, memory).token);
      tokens.push_back(sample_row(logits, rules, before, key, memory, draw::inverse_cdf).token);
      log_probs.push_back(log_prob(logits, tokens.back()));
    }
    char name[64];
    std::snprintf(name, sizeof name, "sampling/%d/laws", number), report.add(name, laws);
    std::snprintf(name, sizeof name, "sampling/%d/tokens", number), report.add(name, tokens);
    std::snprintf(name, sizeof name, "sampling/%d/log_probs", number++), report.add(name, log_probs);
  }
}
