// The softmax of a block of queries that share a KV head: the part of attention that no codec and no adaptor changes.
//
// Order of one query's operations, whatever the call looks like:
//   tile    64 tokens at absolute multiples of 64: maximum m, p_j = e^{z_j - m}, l[j % 16] += p_j, O = fma(p_j, v_j, O alpha) for j ascending,
//           alpha = e^{m_before - m}
//   chunk   512 tokens from a fresh state; states of chunks join in the tree of chunk_states.hpp
// A key that a query does not see has p = 0 in l and is skipped in O. A logit of -infinity hides its key. The maximum never carries NaN, p does.
#pragma once
#include <heddle/attention/detail/chunk_states.hpp>
#include <heddle/cache/tile.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heddle::detail::inline HEDDLE_ISA {

class query_block {
 public:
  /// Takes memory for up to `capacity` queries whose accumulators have `width` channels, a multiple of 16.
  query_block(scratch_layout& memory, int capacity, int width, std::int64_t chunks)
      : width_(width),
        logits_(memory.take<float>(static_cast<std::size_t>(capacity) * tile_tokens)),
        output_(memory.take<float>(static_cast<std::size_t>(capacity) * static_cast<std::size_t>(width))),
        sum_(memory.take<float>(static_cast<std::size_t>(capacity) * simd::lanes)),
        maximum_(memory.take<float>(static_cast<std::size_t>(capacity))),
        factor_(memory.take<float>(static_cast<std::size_t>(capacity + simd::lanes))),
        live_(memory.take<std::uint64_t>(static_cast<std::size_t>(capacity))),
        states_(memory, capacity, width, chunks) {}

  int queries() const { return queries_; }
  int width() const { return width_; }
  float* logits(int query) const { return logits_ + static_cast<std::int64_t>(query) * tile_tokens; }
  chunk_states& states() { return states_; }

  void begin(int queries) {
    queries_ = queries;
    states_.reset(queries);
  }
  /// A chunk begins.
  void open() {
    for (int q = 0; q < queries_; ++q) maximum_[q] = -simd::infinity;
    std::memset(sum_, 0, static_cast<std::size_t>(queries_) * simd::lanes * sizeof(float));
    std::memset(output_, 0, static_cast<std::size_t>(queries_) * static_cast<std::size_t>(width_) * sizeof(float));
  }
  /// A chunk ends; its state joins those before it.
  [[gnu::noinline]] void close(std::int64_t chunk) {
    const state_block s = states_.push(chunk);
    for (int q = 0; q < queries_; ++q) s.maximum[q] = maximum_[q], s.sum[q] = simd::reduce_add(simd::load(sum_ + q * simd::lanes));
    std::memcpy(s.output, output_, static_cast<std::size_t>(queries_) * static_cast<std::size_t>(width_) * sizeof(float));
  }

  /// Hides what queries first .. first + count - 1 do not see, and moves their maxima. visible: 64 bits a query.
  [[gnu::noinline]] void mask(int first, int count, const std::uint64_t* visible) {
    const simd::f32x16 hidden = simd::splat(-simd::infinity);
    for (int q = first; q < first + count; ++q) {
      float* z = logits(q);
      simd::f32x16 top = hidden, low = simd::splat(simd::infinity);
      std::uint64_t live = ~std::uint64_t{0};
      if (visible[q] == live) {
        for (int b = 0; b < tile_runs; ++b) {
          const simd::f32x16 x = simd::load(z + 16 * b);
          top = simd::max(x, top), low = simd::min(x, low);
        }
      }
      if (visible[q] != live || simd::bits_of(simd::equal(low, hidden)) != 0) {
        live = 0;
        for (int b = 0; b < tile_runs; ++b) {
          const simd::f32x16 x = simd::select(simd::mask_of(static_cast<std::uint32_t>(visible[q] >> (16 * b)) & 0xffffu), simd::load(z + 16 * b), hidden);
          simd::store(z + 16 * b, x);
          live |= static_cast<std::uint64_t>(simd::bits_of(simd::equal(x, hidden)) ^ 0xffffu) << (16 * b);
          top = simd::max(x, top);
        }
      }
      const float before = maximum_[q], largest = largest_lane(top), now = before > largest ? before : largest;
      factor_[q] = before == now ? 0.f : before - now;
      maximum_[q] = now;
      live_[q] = live;
    }
  }
  /// Logits become weights e^{z - m}; factors become alpha (those after them, whatever they are: mask() comes before their use).
  [[gnu::noinline]] void exponentiate(int first, int count) {
    for (int q = first; q < first + count; q += simd::lanes) simd::store(factor_ + q, simd::exp_nonpositive(simd::load(factor_ + q)));
    for (int q = first; q < first + count; ++q) {
      float* z = logits(q);
      const simd::f32x16 m = simd::splat(maximum_[q] == -simd::infinity ? 0.f : maximum_[q]);
      simd::f32x16 p = simd::exp_nonpositive(simd::load(z) - m);
      simd::f32x16 sum = simd::fma(simd::load(sum_ + q * simd::lanes), simd::splat(factor_[q]), p);
      simd::store(z, p);
      for (int b = 1; b < tile_runs; ++b) {
        p = simd::exp_nonpositive(simd::load(z + 16 * b) - m);
        sum = sum + p;
        simd::store(z + 16 * b, p);
      }
      simd::store(sum_ + q * simd::lanes, sum);
    }
  }

 private:
  /// Of lanes without NaN.
  [[gnu::always_inline]] static float largest_lane(simd::f32x16 v) {
    v = simd::max(v, simd::exchange<8>(v));
    v = simd::max(v, simd::exchange<4>(v));
    v = simd::max(v, simd::exchange<2>(v));
    return simd::first_lane(simd::max(v, simd::exchange<1>(v)));
  }

 protected:
  int queries_ = 0, width_;
  float* logits_;          // [query][64]: scaled logits, then weights
  float* output_;          // [query][width]
  float* sum_;             // [query][16]
  float* maximum_;         // [query]
  float* factor_;          // [query]: logarithm of alpha after mask(), alpha after exponentiate()
  std::uint64_t* live_;    // [query]: keys whose weight counts; a NaN logit does
  chunk_states states_;
};

/// See tile_kernel.hpp.
template <class Codec>
class tile_kernel;

}  // namespace heddle::detail::inline HEDDLE_ISA
