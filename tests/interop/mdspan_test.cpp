#include <heddle/interop/mdspan.hpp>
#include <heddle/position/rope.hpp>

#include <gtest/gtest.h>

#include <vector>

#if __has_include(<cuda/std/mdspan>)
#include <cuda/std/mdspan>
#define HAS_CUDA_MDSPAN 1
#endif

using namespace heddle;

namespace {

template <class E, std::size_t Rank>
struct strided {   // another library's tensor
  E* pointer;
  std::size_t sizes[Rank], steps[Rank];
  static constexpr std::size_t rank() { return Rank; }
  E* data() const { return pointer; }
  std::size_t extent(std::size_t i) const { return sizes[i]; }
  std::size_t stride(std::size_t i) const { return steps[i]; }
};
struct owning {   // const memory through a const object
  float values[6];
  static constexpr int rank() { return 2; }
  float* data() { return values; }
  const float* data() const { return values; }
  int extent(int i) const { return i ? 3 : 2; }
  int stride(int i) const { return i ? 1 : 3; }
};
struct rank_by_trait {
  float* data_handle() const { return nullptr; }
  int extent(int) const { return 0; }
  int stride(int) const { return 0; }
};
struct rank_at_run_time : rank_by_trait {
  int rank() const { return 2; }
};
struct no_strides {
  static constexpr int rank() { return 1; }
  float* data() const { return nullptr; }
  int extent(int) const { return 0; }
};
struct computed : owning {
  using reference = float;
};
struct odd_pointer {
  static constexpr int rank() { return 1; }
  struct handle {};
  handle data_handle() const { return {}; }
  int extent(int) const { return 0; }
  int stride(int) const { return 0; }
};
struct unstrided : owning {
  bool is_strided() const { return false; }
};

}  // namespace

template <>
inline constexpr int heddle::mdspan_rank<rank_by_trait> = 3;

namespace {

static_assert(tensor_of<strided<float, 3>, 3> && tensor_of<owning, 2> && tensor_of<const owning&, 2> && tensor_of<rank_by_trait, 3> && tensor_of<tensor_view<float, 2>, 2>);
static_assert(!tensor<rank_at_run_time> && !tensor<no_strides> && !tensor<computed> && !tensor<odd_pointer>);
static_assert(writable_tensor<owning> && !writable_tensor<const owning> && !writable_tensor<strided<const float, 1>> && writable_tensor<const strided<float, 1>>);

}  // namespace

TEST(mdspan, foreign_memory_is_rotated_in_place) {
  constexpr std::size_t rows = 3, heads = 2, dim = 8;
  std::vector<float> foreign(rows * heads * dim), plain;
  for (std::size_t i = 0; i < foreign.size(); ++i) foreign[i] = static_cast<float>(i);
  plain = foreign;
  const std::vector<std::int32_t> positions{5, 6, 7};
  const rope<half_split> r{{.head_dim = dim}};
  const strided<float, 3> q{foreign.data(), {rows, heads, dim}, {heads * dim, dim, 1}};
  EXPECT_EQ(view_of(q).data(), foreign.data());
  r.rotate(q, positions);
  r.rotate(tensor_view{plain.data(), extents{rows, heads, dim}}, positions);
  EXPECT_EQ(foreign, plain);

  owning o{{1, 2, 3, 4, 5, 6}};
  rope<half_split>{{.head_dim = 3, .rotary_dim = 2}}.rotate(o, std::span(positions).first(2));
  EXPECT_NE(o.values[0], 1);
  EXPECT_EQ(o.values[5], 6);
  EXPECT_EQ(view_of(std::as_const(o)).data(), o.values);
}

TEST(mdspan, a_layout_without_strides_is_refused) {
  unstrided u{};
  EXPECT_THROW(view_of(u), error);
}

#if HAS_CUDA_MDSPAN
TEST(mdspan, of_cuda) {
  using matrix_span = cuda::std::mdspan<float, cuda::std::dextents<int, 2>>;
  using turned_span = cuda::std::mdspan<float, cuda::std::dextents<std::size_t, 2>, cuda::std::layout_left>;
  static_assert(tensor_of<matrix_span, 2> && tensor_of<turned_span, 2> && writable_tensor<const matrix_span> && !writable_tensor<cuda::std::mdspan<const float, cuda::std::dextents<int, 1>>>);
  std::vector<float> by_rows{1, 2, 3, 4, 5, 6, 7, 8}, by_columns{1, 5, 2, 6, 3, 7, 4, 8};
  const std::vector<std::int32_t> positions{1, 2};
  const rope<interleaved> r{{.head_dim = 4}};
  r.rotate(matrix_span{by_rows.data(), 2, 4}, positions);
  r.rotate(turned_span{by_columns.data(), 2, 4}, positions);
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t c = 0; c < 4; ++c) EXPECT_EQ(by_rows[4 * i + c], by_columns[2 * c + i]);
  EXPECT_NEAR(by_rows[0], -1.142640, 1e-6);
}
#endif
