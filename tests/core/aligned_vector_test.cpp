#include <heddle/core/aligned_vector.hpp>

#include <gtest/gtest.h>

#include <cstdint>

using namespace heddle;

namespace {

struct alignas(256) wide {
  char bytes[256];
};

template <class T>
void expect_alignment(std::uintptr_t alignment) {
  for (std::size_t n = 1; n < 40; ++n) {
    aligned_vector<T> v(n);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(v.data()) % alignment, 0u);
    v.push_back(T{});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(v.data()) % alignment, 0u);
  }
}

}  // namespace

TEST(aligned_vector, starts_on_a_cache_line_or_as_the_type_asks) {
  expect_alignment<char>(64);
  expect_alignment<float>(64);
  expect_alignment<wide>(256);
}

TEST(aligned_vector, is_a_vector) {
  aligned_vector<int> a{1, 2, 3}, b = a, c;
  EXPECT_EQ(a, b);
  c = std::move(b);
  EXPECT_EQ(c, a);
  swap(a, c);
  c.assign(100, 7);
  EXPECT_EQ(c[99], 7);
  EXPECT_EQ(aligned_vector<float>(5), (aligned_vector<float>{0, 0, 0, 0, 0}));
  static_assert(aligned_allocator<int>{} == aligned_allocator<char>{} && std::allocator_traits<aligned_allocator<int>>::is_always_equal::value);
}
