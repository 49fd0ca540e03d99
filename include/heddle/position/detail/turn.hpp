// The loops of position/rope.hpp: a block of rotary pairs of one row, its table of cosines and sines, and how a table meets a head.
#pragma once
#include <heddle/core/executor.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/core/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace heddle {

struct half_split {};
struct interleaved {};

namespace detail::inline HEDDLE_ISA {

constexpr std::int64_t round_to_lanes(std::int64_t n) { return (n + simd::lanes - 1) / simd::lanes * simd::lanes; }

/// Pair f is turned by the angle position * theta[f] - old_position * old_theta[f] and stretched by magnitude.
struct turn_by {
  const double* theta;
  double position;
  const double* old_theta;
  double old_position;
  double magnitude;
  bool stays = false;   ///< the row is left alone
};

// How the table of a pairing lies in memory (table_width floats per pair), and the rotation of `count` pairs of a contiguous head of which
// `first` and `second` are the channels of the first of these pairs.
template <class Pairing>
struct pairing_loops;

template <>
struct pairing_loops<half_split> {
  static constexpr int table_width = 1;
  static constexpr std::int64_t first_channel(std::int64_t pair, std::int64_t) { return pair; }
  static constexpr std::int64_t second_channel(std::int64_t pair, std::int64_t pairs) { return pair + pairs; }

  [[gnu::always_inline]] static void put(float* cosines, float* sines, std::int64_t i, float cosine, float sine) { cosines[i] = cosine, sines[i] = sine; }

  template <class T>
  static void turn(T* first, T* second, const float* cosines, const float* sines, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += simd::lanes) {
      const std::int64_t n = count - i;
      const simd::f32x16 a = simd::load_first(first + i, n), b = simd::load_first(second + i, n), c = simd::load(cosines + i), s = simd::load(sines + i);
      simd::store_first(first + i, simd::fma(a, c, -simd::product(b, s)), n);
      simd::store_first(second + i, simd::fma(b, c, simd::product(a, s)), n);
    }
  }
};

template <>
struct pairing_loops<interleaved> {
  static constexpr int table_width = 2;   // cos cos, -sin sin
  static constexpr std::int64_t first_channel(std::int64_t pair, std::int64_t) { return 2 * pair; }
  static constexpr std::int64_t second_channel(std::int64_t pair, std::int64_t) { return 2 * pair + 1; }

  [[gnu::always_inline]] static void put(float* cosines, float* sines, std::int64_t i, float cosine, float sine) {
    cosines[2 * i] = cosines[2 * i + 1] = cosine;
    sines[2 * i] = -sine, sines[2 * i + 1] = sine;
  }

  template <class T>
  static void turn(T* first, T*, const float* cosines, const float* sines, std::int64_t count) {
    for (std::int64_t i = 0; i < 2 * count; i += simd::lanes) {
      const std::int64_t n = 2 * count - i;
      const simd::f32x16 x = simd::load_first(first + i, n), c = simd::load(cosines + i), s = simd::load(sines + i);
      simd::store_first(first + i, simd::fma(x, c, simd::product(simd::swap_pairs(x), s)), n);
    }
  }
};

inline constexpr std::int64_t block_pairs = 64;

template <class Pairing>
struct turn_block {
  alignas(64) float cosines[block_pairs * pairing_loops<Pairing>::table_width];
  alignas(64) float sines[block_pairs * pairing_loops<Pairing>::table_width];
};

/// The table of pairs first .. first + count - 1, count a multiple of the lanes.
template <class Pairing>
void fill_turns(const turn_by& by, std::int64_t first, std::int64_t count, float* cosines, float* sines) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto t = math::sincos(math::fma(by.position, by.theta[first + i], -(by.old_position * by.old_theta[first + i])));
    pairing_loops<Pairing>::put(cosines, sines, i, static_cast<float>(t.cosine * by.magnitude), static_cast<float>(t.sine * by.magnitude));
  }
}

/// Pairs first .. first + count - 1 (at most a block) of one head with any stride between channels.
template <class Pairing, class T>
void turn_head(T* head, std::int64_t stride, std::int64_t pairs, std::int64_t first, std::int64_t count, const float* cosines, const float* sines) {
  using loops = pairing_loops<Pairing>;
  if (stride == 1) return loops::turn(head + loops::first_channel(first, pairs), head + loops::second_channel(first, pairs), cosines, sines, count);
  T near[2 * block_pairs];
  for (std::int64_t i = 0; i < count; ++i) {
    near[loops::first_channel(i, count)] = head[loops::first_channel(first + i, pairs) * stride];
    near[loops::second_channel(i, count)] = head[loops::second_channel(first + i, pairs) * stride];
  }
  loops::turn(near, near + loops::second_channel(0, count), cosines, sines, count);
  for (std::int64_t i = 0; i < count; ++i) {
    head[loops::first_channel(first + i, pairs) * stride] = near[loops::first_channel(i, count)];
    head[loops::second_channel(first + i, pairs) * stride] = near[loops::second_channel(i, count)];
  }
}

/// f(first row, one past the last row) for a fair share per worker.
template <class F>
void share_rows(executor_ref executor, std::int64_t rows, std::int64_t values_per_row, F&& f) {
  constexpr std::int64_t worth_a_thread = 1 << 14;
  const std::int64_t most = rows * values_per_row / worth_a_thread + 1, threads = static_cast<std::int64_t>(executor.concurrency());
  const std::int64_t workers = std::min({rows, most, threads});
  executor.bulk(static_cast<std::size_t>(workers), [&](std::size_t worker) {
    const auto w = static_cast<std::int64_t>(worker);
    f(rows * w / workers, rows * (w + 1) / workers);
  });
}

/// The view as [rows, heads, head_dim].
template <class T>
tensor_view<T, 3> with_heads(const tensor_view<T, 3>& x) { return x; }
template <class T>
tensor_view<T, 3> with_heads(const tensor_view<T, 2>& x) { return {x.data(), extents{x.extent(0), 1, x.extent(1)}, extents{x.stride(0), std::int64_t{0}, x.stride(1)}}; }

/// The tensor as [rows, heads, head_dim] after the checks that all in-place rotations share.
template <class T, std::size_t Rank>
tensor_view<T, 3> checked_rows(const char* function, const tensor_view<T, Rank>& x, std::int64_t head_dim, std::size_t positions, const char* name) {
  const auto view = with_heads(x);
  require(view.extent(2) == head_dim, function, ": argument 'x' has head_dim ", view.extent(2), "; expected ", head_dim);
  require(static_cast<std::int64_t>(positions) == view.extent(0), function, ": argument '", name, "' has ", positions, " entries; expected ", view.extent(0), ", one per row of 'x'");
  for (std::size_t axis = 0; axis < 3; ++axis)
    require(view.extent(axis) <= 1 || view.stride(axis) != 0, function, ": argument 'x': extent ", view.extent(axis), " has stride 0; rows that share memory cannot be rotated in place");
  return view;
}

}  // namespace detail::inline HEDDLE_ISA
}  // namespace heddle
