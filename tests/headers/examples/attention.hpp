#include <heddle/attention/attend.hpp>
#include <heddle/core/thread_team.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>
#include <vector>

namespace examples {
inline heddle::page_pool<heddle::codec::f16> pool{{.num_layers = 1, .num_pages = 4, .num_kv_heads = 8, .head_dim = 128}};
inline heddle::tensor_view<float, 3> q{}, out{};
inline heddle::tensor_view<float, 2> lse{};
namespace of_adaptors {
inline auto cache = pool[heddle::sequence_id{}].layer(0);
}
namespace of_attend {
inline std::span<const heddle::sequence_id> sequences;
inline std::span<const std::int32_t> indptr;
inline std::span<std::byte> memory;
inline int l = 0;
}  // namespace of_attend
namespace of_compose {
inline heddle::sequence_id id;
inline auto prefix = pool[id].layer(0);
inline std::span<const float> sink_logits;
}  // namespace of_compose
namespace of_source {
inline heddle::sequence_id id;
inline heddle::tensor_view<const float, 3> remote_out{};
inline heddle::tensor_view<const float, 2> remote_lse{};
}  // namespace of_source
namespace of_merge {
inline heddle::tensor_view<const float, 3> prefix_out{}, suffix_out{};
inline heddle::tensor_view<const float, 2> prefix_lse{}, suffix_lse{};
}  // namespace of_merge
}  // namespace examples
