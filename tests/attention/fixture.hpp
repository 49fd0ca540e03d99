#pragma once
// Random tensors, calls of attend() into fresh buffers, and comparison with the reference in double.
#include <heddle/attention/attend.hpp>
#include <heddle/attention/sources.hpp>
#include <heddle/core/thread_team.hpp>

#include "support/errors.hpp"
#include "support/reference/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace attention_test {

using namespace heddle;
using reference::hidden;

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline const float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// [n][heads][dim] of any element; elements are multiples of 1/64 in [-2, 2], exact in every 16-bit type.
template <class E = float>
struct values {
  std::int64_t n, heads, dim;
  std::vector<E> data;

  values(std::int64_t n_, std::int64_t heads_, std::int64_t dim_) : n(n_), heads(heads_), dim(dim_), data(static_cast<std::size_t>(n_ * heads_ * dim_)) {}
  values(std::int64_t n_, std::int64_t heads_, std::int64_t dim_, unsigned seed) : values(n_, heads_, dim_) {
    std::minstd_rand rng(seed * 7919 + 17);
    rng.discard(5);
    for (E& x : data) x = E(static_cast<float>(static_cast<int>(rng() / 64 % 257) - 128) / 64.f);
  }
  tensor_view<E, 3> view() { return {data.data(), extents<3>{n, heads, dim}}; }
  tensor_view<const E, 3> view() const { return {data.data(), extents<3>{n, heads, dim}}; }
  double operator()(std::int64_t i, std::int64_t h, std::int64_t c) const { return static_cast<double>(static_cast<float>(data[static_cast<std::size_t>((i * heads + h) * dim + c)])); }
  E& at(std::int64_t i, std::int64_t h, std::int64_t c) { return data[static_cast<std::size_t>((i * heads + h) * dim + c)]; }
  /// Rows first .. first + count - 1.
  values rows(std::int64_t first, std::int64_t count) const {
    values r(count, heads, dim);
    std::copy_n(data.begin() + first * heads * dim, count * heads * dim, r.data.begin());
    return r;
  }
};

/// out [rows][heads][dim] and lse [rows][heads] of a call, filled with a number that no result has.
struct result {
  values<float> out, lse;
  result(std::int64_t rows, std::int64_t heads, std::int64_t dim) : out(rows, heads, dim), lse(rows, heads, 1) {
    for (float& x : out.data) x = -777.f;
    for (float& x : lse.data) x = -777.f;
  }
  tensor_view<float, 2> lse_view() { return {lse.data.data(), extents<2>{lse.n, lse.heads}}; }
  result rows(std::int64_t first, std::int64_t count) const {
    result r(count, out.heads, out.dim);
    r.out = out.rows(first, count), r.lse = lse.rows(first, count);
    return r;
  }
};

template <class E, class Keys>
result run(const values<E>& q, const Keys& keys, std::int64_t head_dim_v, const attend_options<host>& options = {}) {
  result r(q.n, q.heads, head_dim_v);
  attend(q.view(), keys, r.out.view(), r.lse_view(), options);
  return r;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) { return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0); }
inline bool same_bits(const result& a, const result& b) { return same_bits(a.out.data, b.out.data) && same_bits(a.lse.data, b.lse.data); }

/// Every row and head against the reference: out within `tolerance` of the largest value, lse within `tolerance` of 1 + |lse|.
template <class Reference>
void expect_near(const result& got, Reference expected, double largest, double tolerance, const std::string& what) {
  double out_error = 0, lse_error = 0;
  for (std::int64_t r = 0; r < got.out.n; ++r)
    for (std::int64_t h = 0; h < got.out.heads; ++h) {
      const reference::softmax_state s = expected(r, h);
      const double lse = got.lse(r, h, 0);
      if (s.lse == hidden) {
        ASSERT_EQ(lse, hidden) << what << " row " << r << " head " << h;
      } else {
        lse_error = std::fmax(lse_error, std::fabs(lse - s.lse) / (1 + std::fabs(s.lse)));
        ASSERT_FALSE(std::isnan(lse)) << what << " row " << r << " head " << h;
      }
      for (std::int64_t c = 0; c < got.out.dim; ++c) {
        ASSERT_FALSE(std::isnan(got.out(r, h, c))) << what << " row " << r << " head " << h;
        out_error = std::fmax(out_error, std::fabs(got.out(r, h, c) - s.out[static_cast<std::size_t>(c)]));
      }
    }
  EXPECT_LE(out_error, tolerance * largest) << what;
  EXPECT_LE(lse_error, tolerance) << what;
}

/// scale q_r . k_j
template <class Q, class K>
double dot(const values<Q>& q, std::int64_t r, std::int64_t h, const values<K>& k, std::int64_t j, std::int64_t g) {
  double z = 0;
  for (std::int64_t c = 0; c < q.dim; ++c) z += q(r, h, c) * k(j, g, c);
  return z / std::sqrt(static_cast<double>(q.dim));
}

#define EXPECT_ERROR(call, part) EXPECT_NE(message_of([&] { call; }).find(part), std::string::npos) << message_of([&] { call; })

}  // namespace attention_test
