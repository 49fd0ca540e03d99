#include <heddle/core/aligned_vector.hpp>
#include <heddle/interop/span.hpp>

#include <gtest/gtest.h>

using namespace heddle;

namespace {

static_assert(tensor_of<std::span<float>, 1> && tensor_of<std::span<const int, 3>, 1> && tensor_of<std::vector<float16>, 1> && tensor_of<const std::vector<int>&, 1> &&
              tensor_of<std::array<double, 4>, 1> && tensor_of<aligned_vector<float>, 1>);
static_assert(!tensor<std::vector<bool>> && !tensor<float[4]> && !tensor<std::vector<float>*>);
static_assert(writable_tensor<std::vector<float>> && !writable_tensor<const std::vector<float>> && writable_tensor<const std::span<float>> && !writable_tensor<std::span<const float>> &&
              !writable_tensor<const std::array<float, 2>>);

// A call as the library writes it.
template <tensor_of<1> X, writable_tensor Y>
void halve(const X& x, Y&& y) {
  const auto from = view_of(x);
  const auto to = view_of(y);
  require_shape("halve", "y", to, from.shape());
  for (std::int64_t i = 0; i < from.extent(0); ++i) to(i) = from(i) / 2;
}

}  // namespace

TEST(span, hands_over_its_memory) {
  std::vector<float> v{2, 4, 6};
  std::array<float, 3> a{};
  aligned_vector<float> aligned(3);
  EXPECT_EQ(view_of(v).data(), v.data());
  EXPECT_EQ(view_of(a).data(), a.data());
  halve(v, a);
  halve(std::span<const float>(a), aligned);
  halve(aligned, std::span(v));
  EXPECT_EQ(a, (std::array<float, 3>{1, 2, 3}));
  EXPECT_EQ(v, (std::vector<float>{0.25f, 0.5f, 0.75f}));
  EXPECT_THROW(halve(v, std::span(a).first(2)), error);
  EXPECT_EQ(view_of(std::vector<int>{}).extent(0), 0);
}
