#include <heddle/sampling/chain.hpp>
#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/causal_head.hpp>
#include <heddle/speculative/draft/draft_heads.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft/taps.hpp>
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
namespace of_draft_pacer {
extern heddle::decode_loop<target, heddle::prompt_lookup, heddle::verify::match, decltype(policy)> loop;
}
namespace of_draft_block_sampler {
inline block model;
}
namespace of_draft_causal_head {
inline heddle::weight_matrix w1, w2;
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
namespace of_draft_prefix_schedule {
inline heddle::tensor_view<const double, 2> chances;
inline std::span<const double> passes_per_second;
inline void keep_first(std::int32_t) {}
}  // namespace of_draft_prefix_schedule
namespace of_draft_taps {
inline examples::block block;
inline heddle::acceptance_weights theta;
}  // namespace of_draft_taps
namespace of_draft_tsubame {
inline block model;
}
namespace of_losses_end_to_end {
inline heddle::tensor_view<const float, 2> drafter_logits, target_logits;
inline heddle::tensor_view<float, 2> gradient;
}  // namespace of_losses_end_to_end
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
