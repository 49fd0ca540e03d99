#include <heddle/position/rope.hpp>

#include <vector>

namespace examples {
inline heddle::tensor_view<float, 3> q, k;
inline std::span<const std::int32_t> positions, old_positions, new_positions;
struct layer {
  heddle::tensor_view<float, 3> q, k;
};
inline std::vector<layer> layers;
}  // namespace examples
