// Speculative decoding of a small model: the same text without drafts, with drafts of a fixed length, and with as many as pay.
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft/best_of.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft/suffix_drafter.hpp>
#include <heddle/speculative/draft_pacer.hpp>
#include <heddle/speculative/verify/match.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

// A model that mostly counts upwards modulo 10. Its "cache" is the list of committed tokens.
struct counting_model {
  std::vector<std::int32_t> cache, nodes;
  std::vector<float> logits;

  heddle::tensor_view<const float, 2> score(const heddle::token_tree& tree) {
    nodes.assign(tree.tokens.begin(), tree.tokens.end());
    logits.assign(nodes.size() * 10, 0.f);
    for (std::size_t u = 0; u < nodes.size(); ++u) logits[10 * u + static_cast<std::size_t>((nodes[u] + 1) % 10)] = 5.f;
    return {logits.data(), heddle::extents{static_cast<std::int64_t>(nodes.size()), 10}};
  }
  void keep(std::span<const std::int32_t> path) {
    cache.push_back(nodes[0]);
    for (const std::int32_t node : path) cache.push_back(nodes[static_cast<std::size_t>(node)]);
  }
};

template <class Drafter>
std::vector<std::int32_t> generate(Drafter drafter, heddle::draft_pacer* pacer = nullptr) {
  const std::int32_t prompt[] = {7, 8, 9, 0, 1, 7, 8};
  counting_model model{{7, 8, 9, 0, 1, 7}, {}, {}};
  heddle::decode_loop loop{model, drafter, heddle::verify::match{.seed = 7}, heddle::sampling::chain{heddle::sampling::temperature(0.8f)}, {.prompt = prompt, .max_new_tokens = 40, .draft_length = 6}};
  if (pacer) loop.pace_by(*pacer);
  while (!loop.done())
    for (const std::int32_t token : loop.step()) std::printf("%d ", token);
  std::printf("(%.2f tokens per pass)\n", loop.stats().mean_accepted_tokens());
  return {loop.tokens().begin(), loop.tokens().end()};
}

int main() {
  const auto plain = generate(heddle::no_drafter{}), drafted = generate(heddle::prompt_lookup{});
  heddle::prompt_lookup lookup;
  heddle::suffix_drafter suffix;
  heddle::draft_pacer pacer;  // kept from one text to the next: it learns what the model's passes cost
  const auto paced = generate(heddle::best_of{lookup, suffix}, &pacer);
  return plain == drafted && plain == paced ? 0 : 1;
}
