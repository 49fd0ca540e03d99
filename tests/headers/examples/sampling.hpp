#include <heddle/core/thread_team.hpp>
#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/parameters.hpp>

namespace examples {
inline heddle::thread_team team{1};
inline std::int64_t vocabulary = 8;
inline heddle::tensor_view<float, 1> logits;
inline std::span<const std::int32_t> committed, path, context;
inline heddle::sampling::chain policy{heddle::sampling::temperature(1.f)};
namespace of_chain {
inline heddle::sampling::parameters parameters_of_a_request;
inline std::span<const std::uint32_t> grammar(const heddle::sampling::history&) { return {}; }
}  // namespace of_chain
namespace of_dry {
inline std::span<float> logits;
inline std::int32_t *counts, *lengths;
}
namespace of_penalties {
inline std::span<float> logits;
inline std::int32_t* counts;
}
namespace of_sample {
inline heddle::tensor_view<float, 2> logits;
inline std::span<const heddle::sampling::chain<>> chains;
inline heddle::tensor_view<std::int32_t, 1> tokens;
inline std::span<const heddle::random_key> keys;
inline std::span<heddle::status> status;
}  // namespace of_sample
}  // namespace examples
