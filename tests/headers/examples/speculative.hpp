#include <heddle/attention/attend.hpp>
#include <heddle/attention/sources.hpp>
#include <heddle/sampling/chain.hpp>
#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/draft/candidate_relay.hpp>
#include <heddle/speculative/draft/causal_head.hpp>
#include <heddle/speculative/draft/draft_heads.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft/taps.hpp>
#include <heddle/speculative/draft/transition_spine.hpp>
#include <heddle/speculative/losses/throughput_policy.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>
#include <heddle/speculative/verify/typical.hpp>
#include <vector>

namespace examples {
struct target {
  heddle::tensor_view<const float, 2> score(const heddle::token_tree&) { return {}; }
  heddle::tensor_view<const float, 2> score(std::span<const heddle::token_tree>) { return {}; }
  void keep(std::span<const std::int32_t>) {}
  void keep(std::int32_t, std::span<const std::int32_t>) {}
};
struct block {
  heddle::block_prediction predict(std::span<const std::int32_t>, std::int32_t) { return {}; }
};
struct editing_block : block {
  heddle::block_prediction revise(std::span<const std::int32_t>, std::span<const std::int32_t>) { return {}; }
};
struct continued_block : block {
  heddle::block_prediction predict_after(std::span<const std::int32_t>, std::span<const std::int32_t>, std::int32_t) { return {}; }
};
struct looped_target {
  std::int32_t loops() const { return 4; }
  heddle::tensor_view<const float, 2> advance(const auto&) { return {}; }
  void keep(std::int32_t) {}
  void forget(std::int32_t) {}
};
struct level_head {
  heddle::tensor_view<const float, 2> expand(const heddle::token_tree&, std::span<const std::int32_t>) { return {}; }
};
inline std::int64_t vocabulary = 8;
inline std::span<const std::int32_t> context, prompt;
inline heddle::tensor_view<const float, 2> logits;
inline heddle::sampling::chain policy{heddle::sampling::temperature(1.f)};
inline heddle::verify_workspace memory{8};
inline heddle::draft_tree<heddle::draft_law::independent> tree;
inline std::span<const double> p, q;
inline void print(std::int32_t) {}
namespace of_audit_eviction_mismatch {
inline void full(std::span<const std::int32_t>, std::span<double>) {}
inline void evicted(std::span<const std::int32_t>, std::span<double>) {}
}  // namespace of_audit_eviction_mismatch
namespace of_audit_exactness {
inline std::span<const std::int32_t> speculative;
inline void report(std::int64_t) {}
}  // namespace of_audit_exactness
namespace of_decode_batch {
inline target model;
inline heddle::prompt_lookup drafter_a, drafter_b;
inline heddle::verify::match rule_a, rule_b;
inline std::span<const std::int32_t> a, b;
inline void print(std::size_t, std::span<const std::int32_t>) {}
}  // namespace of_decode_batch
namespace of_decode_loop {
inline target model;
inline heddle::prompt_lookup drafter;
}  // namespace of_decode_loop
namespace of_draft_block_sampler {
inline block model;
}
namespace of_draft_candidate_relay {
inline block model;
inline heddle::relay_weights weights;
inline heddle::candidate_attention_weights attention;
}  // namespace of_draft_candidate_relay
namespace of_draft_candidate_relay_loss {
inline std::span<const double> keep, alternatives;
inline heddle::slot_ranking pools;
inline std::span<const std::int32_t> labels;
inline std::span<double> d_keep, d_alternatives;
}  // namespace of_draft_candidate_relay_loss
namespace of_draft_causal_head {
inline heddle::weight_matrix w1, w2;
}
namespace of_draft_draft_editing {
inline editing_block model;
}
namespace of_draft_draft_heads {
inline std::vector<float> last_hidden;
inline std::int32_t token = 0;
inline std::span<const float> embedding_of(std::int32_t) { return {}; }
inline std::span<const float> unembed(std::span<const float>) { return {}; }
inline std::int32_t argmax(std::span<const float>) { return 0; }
}  // namespace of_draft_draft_heads
namespace of_draft_draft_nodes {
inline std::int32_t root = 0, token = 0;
inline double score = 0;
}  // namespace of_draft_draft_nodes
namespace of_draft_eagle_tree {
inline level_head head;
}
namespace of_draft_head_file {
extern const heddle::draft_heads heads;
}
namespace of_draft_law_rows {
inline heddle::draft_nodes nodes;
inline heddle::keyed_draws draws;
inline std::int64_t position = 0;
inline std::span<const std::int32_t> tokens;
inline std::span<const double> weights;
}  // namespace of_draft_law_rows
namespace of_draft_looped_block {
inline continued_block model;
}
namespace of_draft_looped_block_loss {
inline heddle::tensor_view<const float, 2> first, second;
inline std::span<const std::int32_t> labels, prefixes;
inline heddle::tensor_view<float, 2> d_first, d_second;
}  // namespace of_draft_looped_block_loss
namespace of_draft_pacer {
extern heddle::decode_loop<target, heddle::prompt_lookup, heddle::verify::match, decltype(policy)> loop;
}
namespace of_draft_prefix_schedule {
inline heddle::tensor_view<const double, 2> chances;
inline std::span<const double> passes_per_second;
inline void keep_first(std::int32_t) {}
}  // namespace of_draft_prefix_schedule
namespace of_draft_prefix_attention_head {
inline block model;
inline heddle::weight_matrix w1, wq, w2, keys, values;
}  // namespace of_draft_prefix_attention_head
namespace of_draft_proposal_mix {
inline heddle::tensor_view<const float, 2> first, second;
inline std::span<const std::int32_t> labels;
inline heddle::tensor_view<float, 2> d_first, d_second;
}  // namespace of_draft_proposal_mix
namespace of_draft_taps {
inline examples::block block;
inline heddle::acceptance_weights theta;
}  // namespace of_draft_taps
namespace of_draft_transition_cache_fit {
inline heddle::weight_matrix embedding;
inline heddle::tensor_view<float, 2> cache;
}  // namespace of_draft_transition_cache_fit
namespace of_draft_transition_spine {
struct layers_of_a_block {
  heddle::tensor_view<float, 2> begin(std::span<const std::int32_t>, std::int32_t) { return {}; }
  std::int64_t num_layers() const { return 0; }
  void layer(std::int32_t) {}
  heddle::block_prediction finish() { return {}; }
};
inline layers_of_a_block backbone;
inline heddle::weight_matrix cache, w;
inline std::span<const heddle::spine_layer_weights> layers;
}  // namespace of_draft_transition_spine
namespace of_draft_transition_spine_loss {
inline heddle::tensor_view<const float, 2> cache;
inline std::span<const heddle::tensor_view<const float, 2>> transitions;
inline std::span<const std::int32_t> labels;
inline std::span<const double> lambdas;
inline heddle::tensor_view<float, 2> d_logits;
inline std::span<const heddle::tensor_view<float, 2>> d_transitions;
}  // namespace of_draft_transition_spine_loss
namespace of_draft_tsubame {
inline block model;
}
namespace of_losses_auf {
inline heddle::tensor_view<const float, 2> drafter_logits, base_logits;
inline std::span<const std::int32_t> labels;
inline std::span<const std::uint8_t> valid;
inline heddle::tensor_view<float, 2> gradient, base_gradient;
}  // namespace of_losses_auf
namespace of_losses_block_loss {
inline heddle::tensor_view<const float, 2> drafter_logits;
inline std::span<const std::int32_t> labels;
inline std::span<const std::uint8_t> included;
inline heddle::tensor_view<float, 2> gradient;
}  // namespace of_losses_block_loss
namespace of_losses_block_mask {
inline std::span<const std::int32_t> anchors;
inline std::int64_t context = 0;
inline heddle::tensor_view<std::uint64_t, 2> words;
inline heddle::tensor_view<float, 3> q, k, v, out;
inline heddle::tensor_view<float, 2> lse;
}  // namespace of_losses_block_mask
namespace of_losses_branch_packing {
inline std::span<const std::int32_t> reference, anchors, drafts;
inline heddle::tensor_view<float, 3> q, k, v, out;
inline heddle::tensor_view<float, 2> lse;
}  // namespace of_losses_branch_packing
namespace of_losses_end_to_end {
inline heddle::tensor_view<const float, 2> drafter_logits, target_logits;
inline heddle::tensor_view<float, 2> gradient;
}  // namespace of_losses_end_to_end
namespace of_losses_erase_gates {
inline std::span<const double> probabilities;
inline std::span<const std::uint8_t> scored;
inline std::span<double> gates;
inline std::span<const std::int32_t> corpus_tokens, greedy_tokens;
}  // namespace of_losses_erase_gates
namespace of_losses_greedy_rollout {
inline std::int64_t anchors = 0;
inline heddle::tensor_view<const float, 2> step(std::int64_t, std::span<const std::int32_t>) { return {}; }
inline std::span<const std::int32_t> stop;
inline heddle::tensor_view<const float, 2> drafter_logits;
inline heddle::tensor_view<float, 2> gradient;
}  // namespace of_losses_greedy_rollout
namespace of_losses_inclusion {
inline std::span<std::uint8_t> included;
inline std::span<const std::int32_t> horizons;
inline std::span<const std::uint8_t> revealed;
}  // namespace of_losses_inclusion
namespace of_losses_slot_weights {
inline std::span<const double> acceptances;
inline std::span<const std::uint8_t> included;
inline std::span<double> weights;
}  // namespace of_losses_slot_weights
namespace of_losses_throughput_policy {
inline std::span<const std::int32_t> blocks;
inline heddle::tensor_view<const heddle::losses::round_profile, 3> table;
inline std::int64_t workload = 0, concurrency = 1;
}  // namespace of_losses_throughput_policy
namespace of_losses_top_k_labels {
inline heddle::tensor_view<const float, 2> target_logits, drafter_logits;
inline heddle::tensor_view<std::int32_t, 2> tokens;
inline heddle::tensor_view<float, 2> log_probs, gradient;
inline std::span<std::int32_t> most_likely;
inline std::span<const double> weights;
}  // namespace of_losses_top_k_labels
namespace of_schedule_loop_ahead {
struct lookahead_heads {
  heddle::tensor_view<const float, 2> look_ahead(std::int32_t, std::int32_t) { return {}; }
};
inline looped_target looped;
inline lookahead_heads lookahead;
}  // namespace of_schedule_loop_ahead
namespace of_schedule_wavefront {
inline looped_target looped;
}
namespace of_schedule_wavefront_pipeline {
inline constexpr auto agree = [](auto...) { return true; };
}
namespace of_verdict {
inline heddle::verify::token rule;
inline void append(std::span<const std::int32_t>) {}
}  // namespace of_verdict
namespace of_verify_batch {
inline std::span<const heddle::verify::token> rules;
inline heddle::tensor_view<const std::int32_t, 2> draft_tokens;
inline heddle::tensor_view<const float, 3> draft_laws, logits;
inline std::span<const heddle::sampling::chain<>> chains;
inline heddle::tensor_view<std::int32_t, 2> tokens;
inline heddle::tensor_view<std::int32_t, 1> accepted;
inline std::span<const std::span<const std::int32_t>> contexts;
}  // namespace of_verify_batch
namespace of_verify_saki {
inline heddle::draft_tree<heddle::draft_law::independent> drafts;
inline heddle::tensor_view<const float, 2> teacher_logits;
inline void route(const auto&) {}
}  // namespace of_verify_saki
}  // namespace examples
