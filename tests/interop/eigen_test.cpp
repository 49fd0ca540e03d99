#include <heddle/interop/eigen.hpp>
#include <heddle/position/rope.hpp>

#include <gtest/gtest.h>

#include <unsupported/Eigen/CXX11/Tensor>

#include <utility>
#include <vector>

using namespace heddle;

namespace {

using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using sum_of_two = decltype(std::declval<Eigen::MatrixXf>() + std::declval<Eigen::MatrixXf>());
using strided_map = Eigen::Map<row_major, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

static_assert(matrix<Eigen::MatrixXf> && matrix<const row_major&> && matrix<Eigen::Array44d> && matrix<Eigen::Map<const Eigen::MatrixXf>> && matrix<Eigen::Ref<Eigen::MatrixXf>> &&
              matrix<strided_map> && matrix<decltype(std::declval<Eigen::MatrixXf&>().block(0, 0, 1, 1))>);
static_assert(tensor_of<Eigen::VectorXf, 1> && tensor_of<Eigen::RowVector3d, 1> && tensor_of<decltype(std::declval<Eigen::MatrixXf&>().row(0)), 1>);
static_assert(tensor_of<Eigen::Tensor<float, 3>, 3> && tensor_of<Eigen::TensorMap<Eigen::Tensor<const float, 4, Eigen::RowMajor>>, 4>);
static_assert(!tensor<sum_of_two> && !tensor<decltype(std::declval<Eigen::MatrixXf&>().cast<double>())> && !tensor<Eigen::DiagonalMatrix<float, 3>>);
static_assert(writable_tensor<Eigen::MatrixXf> && !writable_tensor<const Eigen::MatrixXf> && !writable_tensor<Eigen::Map<const Eigen::MatrixXf>>);
static_assert(rotatable_tensor<Eigen::MatrixXf&> && !rotatable_tensor<Eigen::MatrixXd&> && !rotatable_tensor<const Eigen::MatrixXf&>);

constexpr std::int64_t rows = 5, dim = 8;
const std::vector<std::int32_t> positions{0, 1, 2, 3, -9};

row_major numbered() {
  row_major m(rows, dim);
  for (Eigen::Index i = 0; i < rows; ++i)
    for (Eigen::Index c = 0; c < dim; ++c) m(i, c) = static_cast<float>(i * dim + c);
  return m;
}
row_major rotated() {
  row_major m = numbered();
  rope<half_split>{{.head_dim = dim}}.rotate(tensor_view{m.data(), extents{rows, dim}}, positions);
  return m;
}

}  // namespace

TEST(eigen, matrices_and_maps_are_rotated_where_they_lie) {
  const rope<half_split> r{{.head_dim = dim}};
  const row_major expected = rotated();

  Eigen::MatrixXf columns = numbered();
  EXPECT_EQ(view_of(columns).data(), columns.data());
  EXPECT_EQ(view_of(columns).strides(), (extents{1, rows}));
  r.rotate(columns, positions);
  EXPECT_EQ(columns, expected);

  row_major by_rows = numbered();
  r.rotate(by_rows, positions);
  EXPECT_EQ(by_rows, expected);

  std::vector<float> memory(static_cast<std::size_t>(rows * 40));
  strided_map map(memory.data(), rows, dim, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(40, 3));
  map = numbered();
  EXPECT_EQ(view_of(map).strides(), (extents{40, 3}));
  r.rotate(map, positions);
  EXPECT_EQ(row_major(map), expected);

  row_major large = row_major::Zero(rows + 2, dim + 3);
  auto block = large.block(1, 2, rows, dim);
  block = numbered();
  r.rotate(block, positions);
  EXPECT_EQ(row_major(block), expected);
  EXPECT_EQ(large.row(0).cwiseAbs().sum() + large.col(1).cwiseAbs().sum(), 0);
}

TEST(eigen, vectors_have_rank_one) {
  row_major m = numbered();
  const auto row = m.row(2);
  const auto column = m.col(3);
  EXPECT_EQ(view_of(row).data(), m.data() + 2 * dim);
  EXPECT_EQ(view_of(row).stride(0), 1);
  EXPECT_EQ(view_of(column).extent(0), rows);
  EXPECT_EQ(view_of(column).stride(0), dim);
  EXPECT_EQ(view_of(column)(4), m(4, 3));
}

TEST(eigen, tensors) {
  Eigen::Tensor<float, 3, Eigen::RowMajor> by_rows(2, 3, 4);
  Eigen::Tensor<float, 3> by_columns(2, 3, 4);
  for (int i = 0; i < 2; ++i)
    for (int h = 0; h < 3; ++h)
      for (int c = 0; c < 4; ++c) by_rows(i, h, c) = by_columns(i, h, c) = static_cast<float>(i + 2 * h - c);
  EXPECT_EQ(view_of(by_rows).strides(), (extents{12, 4, 1}));
  EXPECT_EQ(view_of(by_columns).strides(), (extents{1, 2, 6}));
  const rope<interleaved> r{{.head_dim = 4}};
  const std::vector<std::int32_t> two{10, 20};
  r.rotate(by_rows, two);
  r.rotate(Eigen::TensorMap<Eigen::Tensor<float, 3>>(by_columns.data(), 2, 3, 4), two);
  for (int i = 0; i < 2; ++i)
    for (int h = 0; h < 3; ++h)
      for (int c = 0; c < 4; ++c) EXPECT_EQ(by_rows(i, h, c), by_columns(i, h, c));
  EXPECT_NE(by_rows(0, 1, 0), 2);
}
