#include <heddle/attention/attend.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int4.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>

namespace examples {
namespace of_codec_int4 {
inline float rows[16][64];
}
namespace of_page_table {
inline heddle::page_pool<heddle::codec::f16> pool{{.num_layers = 1, .num_pages = 4, .num_kv_heads = 8, .head_dim = 128}};
}
namespace of_source {
using of_page_table::pool;
inline std::span<const heddle::sequence_id> sequences;
inline std::span<const std::int32_t> indptr;
inline heddle::tensor_view<float, 3> q, out;
inline heddle::tensor_view<float, 2> lse;
}  // namespace of_source
namespace of_tile {
using codec = heddle::codec::f16;
inline constexpr int head_dim = 128, kv_head = 0;
inline auto keys = of_page_table::pool[heddle::sequence_id{}].layer(0);
inline std::byte scratch[1];
}  // namespace of_tile
namespace of_page_pool {
inline int rows = 1, accepted = 1;
inline heddle::tensor_view<float, 3> k[32], v[32], q[32], out;
inline heddle::tensor_view<float, 2> lse;
}  // namespace of_page_pool
}  // namespace examples
