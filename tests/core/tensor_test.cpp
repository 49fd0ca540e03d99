#include <heddle/core/tensor.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

using namespace heddle;

namespace {

struct foreign_rows {   // becomes a tensor by specialisation
  float data[6] = {0, 1, 2, 3, 4, 5};
};
struct view_of_the_wrong_type {};
struct no_view {};

}  // namespace

template <>
struct heddle::tensor_traits<foreign_rows> {
  static tensor_view<float, 2> view(foreign_rows& r) { return {r.data, extents{2, 3}}; }
  static tensor_view<const float, 2> view(const foreign_rows& r) { return {r.data, extents{2, 3}}; }
};
template <>
struct heddle::tensor_traits<view_of_the_wrong_type> {
  static float* view(view_of_the_wrong_type&) { return nullptr; }
};

namespace {

// tensors
static_assert(tensor<tensor_view<float, 1>> && tensor<const tensor_view<const float16, 4>&> && tensor<tensor_view<int, 2, device>> && tensor<foreign_rows> && tensor<const foreign_rows&>);
// no tensors
static_assert(!tensor<float*> && !tensor<float[6]> && !tensor<int> && !tensor<no_view> && !tensor<view_of_the_wrong_type> && !tensor<extents<2>> && !tensor<void*>);

static_assert(tensor_of<foreign_rows, 2> && !tensor_of<foreign_rows, 1> && matrix<tensor_view<float, 2>> && !matrix<tensor_view<float, 3>> && !matrix<no_view>);
static_assert(host_tensor<foreign_rows> && !device_tensor<foreign_rows> && device_tensor<tensor_view<float, 1, device>> && !host_tensor<tensor_view<float, 1, device>>);
static_assert(writable_tensor<foreign_rows> && !writable_tensor<const foreign_rows> && !writable_tensor<tensor_view<const float, 1>> && writable_tensor<const tensor_view<float, 1>>);
static_assert(same_space<foreign_rows, tensor_view<float, 1>> && !same_space<foreign_rows, tensor_view<float, 1, device>> && !same_space<foreign_rows, no_view>);
static_assert(std::same_as<element_type<const foreign_rows>, float> && std::same_as<space_type<tensor_view<int, 1, device>>, device>);
static_assert(memory_space<host> && memory_space<device> && !memory_space<int>);

// views of mutable elements become views of const ones, and nothing else
static_assert(std::is_convertible_v<tensor_view<float, 2>, tensor_view<const float, 2>> && !std::is_convertible_v<tensor_view<const float, 2>, tensor_view<float, 2>>);
static_assert(!std::is_convertible_v<tensor_view<float, 2>, tensor_view<const float, 2, device>> && !std::is_convertible_v<tensor_view<float, 2>, tensor_view<const float, 3>>);
static_assert(!std::is_convertible_v<tensor_view<float, 2>, tensor_view<const double, 2>> && !std::is_convertible_v<tensor_view<float16, 1>, tensor_view<const bfloat16, 1>>);
// no dereference of device memory on the host
static_assert(!std::is_invocable_v<tensor_view<float, 1, device>, int> && std::is_invocable_v<tensor_view<float, 1>, int> && !std::is_invocable_v<tensor_view<float, 2>, int>);
static_assert(std::is_trivially_copyable_v<tensor_view<float, 3>>);

constexpr int sum_of_column(tensor_view<const int, 2> t, int column) {
  int sum = 0;
  for (std::int64_t i = 0; i < t.extent(0); ++i) sum += t(i, column);
  return sum;
}
constexpr int numbers[6] = {1, 2, 3, 4, 5, 6};
static_assert(sum_of_column({numbers, extents{2, 3}}, 1) == 7);

}  // namespace

TEST(tensor, contiguous_strides) {
  std::vector<int> data(24);
  const tensor_view t{data.data(), extents{2, 3, 4}};
  EXPECT_EQ(t.strides(), (extents{12, 4, 1}));
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(&t(1, 2, 3), data.data() + 23);
  EXPECT_EQ(t.at(1, 2), data.data() + 20);
  EXPECT_EQ(t.at(), data.data());
  EXPECT_EQ((tensor_view<int, 2>{data.data(), extents{0, 5}}.size()), 0);
}

TEST(tensor, any_strides) {
  int data[6] = {0, 1, 2, 3, 4, 5};
  const tensor_view transposed{data, extents{3, 2}, extents{1, 3}};
  EXPECT_EQ(transposed(2, 1), 5);
  EXPECT_EQ(transposed(1, 0), 1);
  const tensor_view backwards{data + 5, extents{6}, extents{-1}};
  EXPECT_EQ(backwards(0), 5);
  EXPECT_EQ(backwards(5), 0);
  const tensor_view broadcast{data + 2, extents{4}, extents{0}};
  EXPECT_EQ(broadcast(3), 2);
}

TEST(tensor, slices_and_sub_tensors_keep_strides) {
  std::vector<int> data(60);
  for (int i = 0; i < 60; ++i) data[static_cast<std::size_t>(i)] = i;
  const tensor_view t{data.data(), extents{3, 4, 5}};
  EXPECT_EQ(t[2](3, 4), 59);
  EXPECT_EQ(t[1].slice(2, 2)(0, 1), 31);
  EXPECT_EQ(t[1].slice(2, 2).shape(), (extents{2, 5}));
  EXPECT_EQ(t[0][1].rank, 1u);
  const tensor_view every_other{data.data(), extents{2, 4, 5}, extents{40, 5, 1}};
  EXPECT_EQ(every_other[1](0, 0), 40);
}

TEST(tensor, extents_beyond_32_bits) {
  const tensor_view<char, 2> t{nullptr, extents{std::int64_t{1} << 20, std::int64_t{1} << 20}};
  EXPECT_EQ(t.size(), std::int64_t{1} << 40);
  EXPECT_EQ(t.stride(0), std::int64_t{1} << 20);
}

TEST(tensor, foreign_types_hand_over_their_memory) {
  foreign_rows rows;
  const auto view = view_of(rows);
  EXPECT_EQ(view.data(), rows.data);
  view(1, 2) = 50;
  EXPECT_EQ(rows.data[5], 50);
  EXPECT_EQ(view_of(std::as_const(rows)).data(), rows.data);
}

TEST(tensor, require_shape_names_the_argument) {
  const tensor_view<float, 3> t{nullptr, extents{4, 5, 6}};
  EXPECT_NO_THROW(require_shape("attend", "out", t, extents{4, 5, 6}));
  EXPECT_NO_THROW(require_shape("attend", "out", t, extents{-1, 5, -1}));
  try {
    require_shape("attend", "out", t, extents{4, 5, 7});
    FAIL();
  } catch (const error& e) {
    EXPECT_STREQ(e.what(), "attend: argument 'out': extent 2 is 6; expected 7");
  }
}
