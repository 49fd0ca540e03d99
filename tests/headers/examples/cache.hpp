#include <heddle/attention/attend.hpp>
#include <heddle/cache/codec/element.hpp>

namespace examples {
namespace of_codec_int4 {
inline float rows[16][64];
}
namespace of_page_pool {
inline int rows = 1, accepted = 1;
inline heddle::tensor_view<float, 3> k[32], v[32], q[32], out;
inline heddle::tensor_view<float, 2> lse;
}  // namespace of_page_pool
}  // namespace examples
