#include <heddle/core/thread_team.hpp>
#include <heddle/distillation/event_set_completion.hpp>
#include <heddle/distillation/health_metrics.hpp>
#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/strict_alignment.hpp>
#include <heddle/distillation/style_debiased_preference.hpp>
#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/row.hpp>
#include <vector>

namespace examples {
using namespace heddle::distillation;
inline heddle::thread_team team{1};
inline heddle::tensor_view<const float, 2> student, teacher, reference;
inline heddle::tensor_view<float, 2> grad, gradient, gradient_of_student;
inline std::span<const std::int32_t> sampled, indptr;
inline std::vector<std::int64_t> student_ends, teacher_ends;
inline std::int64_t rows = 0, vocabulary = 0;
inline std::uint32_t item = 0;
namespace of_attribution_target {
inline heddle::tensor_view<const float, 2> privileged, with_image, without_image;
}
namespace of_byte_vocabulary {
inline std::span<const char> bytes;
inline const std::int64_t offsets[] = {0};
}  // namespace of_byte_vocabulary
namespace of_concise_traces {
inline std::span<const std::uint8_t> correct;
inline std::span<const std::int64_t> length;
inline std::vector<std::uint8_t> keep;
}  // namespace of_concise_traces
namespace of_condition_contrast {
inline heddle::tensor_view<const float, 2> teacher_masked;
}
namespace of_correctness_weights {
inline std::span<const double> correct;
inline std::vector<double> weights;
inline heddle::tensor_view<const float, 2> first, second, third;
}  // namespace of_correctness_weights
namespace of_event_set_completion {
inline std::string_view text;
inline const std::int64_t begins[] = {0};
inline const byte_order student_order{{{}, begins}}, teacher_order{{{}, begins}};
inline heddle::tensor_view<const float, 2> teacher_logits;
}  // namespace of_event_set_completion
namespace of_fused_linear {
inline heddle::tensor_view<const float, 2> hidden, unembedding, teacher_logits;
inline heddle::tensor_view<float, 2> d_hidden, d_unembedding;
}  // namespace of_fused_linear
namespace of_health_metrics {
inline void log(double, double, double) {}
}  // namespace of_health_metrics
namespace of_interpolation {
inline heddle::tensor_view<const float, 1> student, teacher;
inline std::int32_t proposed = 0;
inline double u_accept = 0.5, u_residual = 0.5;
}  // namespace of_interpolation
namespace of_local_unlearning {
inline std::vector<std::uint8_t> sensitive, heads;
}
namespace of_mixed_conditionals {
inline heddle::tensor_view<const float, 1> naive(std::span<const std::int32_t>) { return {}; }
inline heddle::tensor_view<const float, 1> expert(std::span<const std::int32_t>) { return {}; }
inline heddle::sampling::chain policy{heddle::sampling::temperature(1.f)};
inline bool has_the_answer(std::span<const std::int32_t>) { return true; }
inline heddle::sampling::row_workspace memory{8};
inline std::span<const std::int32_t> eos;
}  // namespace of_mixed_conditionals
namespace of_per_row {
inline std::vector<double> my_weights(std::span<const double>) { return {}; }
inline heddle::tensor_view<float, 2> grad_student;
}  // namespace of_per_row
namespace of_residual_subspace {
inline heddle::tensor_view<const double, 2> factor;
inline heddle::tensor_view<const float, 2> h_student, h_teacher;
inline heddle::tensor_view<float, 2> d_hidden, d_hidden_distillation;
}  // namespace of_residual_subspace
namespace of_residual_subspace_fit {
inline heddle::tensor_view<const float, 2> residuals, head, probabilities;
}
namespace of_response_rows {
inline std::span<const std::int32_t> prompt, response;
}
namespace of_reverse_distillation {
inline std::span<const double> advantages;
}
namespace of_routed_supervision {
inline std::span<const std::int32_t> emitted;
inline std::span<const std::uint8_t> corrected;
}  // namespace of_routed_supervision
namespace of_sensitivity_weights {
inline heddle::tensor_view<const float, 2> clean, corrupted, removed;
}
namespace of_set_targets {
inline std::span<const std::int32_t> forms, begins;
}
namespace of_span_dropout {
inline std::size_t spans = 1, length = 1;
inline std::span<const std::int32_t> boundaries;
}  // namespace of_span_dropout
namespace of_strict_alignment {
extern const shared_vocabulary shared;
inline row_partners partners;
}  // namespace of_strict_alignment
namespace of_style_debiased_preference {
inline std::span<const double> factuality, length_difference;
inline std::vector<std::int8_t> orientation;
inline std::vector<double> weights;
inline preference_pairs pairs;
inline preference_gradients gradients;
}  // namespace of_style_debiased_preference
namespace of_trajectory_dropout {
inline std::vector<std::int32_t> prompt, trajectory;
inline void feed(std::int32_t, std::int64_t) {}
}  // namespace of_trajectory_dropout
namespace of_trajectory_refinement {
extern row_losses<float, reverse_kl, 2> rows;
inline std::span<const std::int32_t> original;
inline heddle::tensor_view<const float, 1> student(std::span<const std::int32_t>) { return {}; }
inline heddle::tensor_view<const float, 1> teacher(std::span<const std::int32_t>) { return {}; }
inline heddle::sampling::row_workspace memory{8};
}  // namespace of_trajectory_refinement
namespace of_weak_checkpoints {
inline std::span<const std::int32_t> targets;
inline heddle::tensor_view<const float, 2> strong, weak;
inline std::span<const double> upstream;
inline heddle::tensor_view<float, 2> grad_strong, grad_weak;
}  // namespace of_weak_checkpoints
}  // namespace examples
