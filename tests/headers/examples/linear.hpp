#include <heddle/core/thread_team.hpp>
#include <heddle/linear/multiply.hpp>
#include <vector>

namespace examples {
inline heddle::thread_team team{1};
inline heddle::tensor_view<float, 2> gate, up, activated, hidden, projected, normed, out;
inline heddle::tensor_view<const float, 1> weight;
namespace of_format {
inline const void* rows_in_the_file = nullptr;
}
namespace of_multiply {
inline heddle::linear::packed_matrix w;
inline heddle::linear::activations x{heddle::linear::precision::f32, 1, 32};
}  // namespace of_multiply
}  // namespace examples
