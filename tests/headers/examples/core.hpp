#include <cstddef>
#include <cstdint>

namespace examples {
inline void work(std::size_t) {}
namespace of_error {
inline int width = 1;
}
namespace of_simd {
inline float x[32], y[32], a = 2;
inline std::int64_t n = 32;
}  // namespace of_simd
namespace of_softmax_state {
inline float lse_a = 0, lse_b = 0;
}
namespace of_workspace {
inline std::size_t bytes = 1 << 10;
struct {
  std::span<std::byte> workspace;
} inline options;
}  // namespace of_workspace
}  // namespace examples
