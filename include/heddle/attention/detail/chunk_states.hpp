// Softmax states of chunks of 512 tokens, unnormalised: m, l = sum e^{z - m}, O = sum e^{z - m} v.
//
// Two neighbours join at the smallest aligned power-of-two node of chunk numbers that holds both. The tree is fixed by absolute chunk numbers,
// so any aligned range can be folded by another thread, chunks that nobody sees can be left out, and the bits stay the same.
// A state is empty when l == 0 (a NaN sum is not); joining with it copies the other, bit for bit.
#pragma once
#include <heddle/core/simd.hpp>
#include <heddle/core/workspace.hpp>

#include <bit>
#include <cstdint>
#include <cstring>

namespace heddle::detail::inline HEDDLE_ISA {

inline constexpr std::int64_t chunk_tokens = 512;

struct state_block {   // of some queries; rows of output are `width` floats, a multiple of 16
  float *maximum, *sum, *output;
};

/// a = a + b.
inline void join_states(state_block a, state_block b, int queries, int width) {
  for (int q = 0; q < queries; ++q) {
    float *x = a.output + static_cast<std::int64_t>(q) * width, *y = b.output + static_cast<std::int64_t>(q) * width;
    if (b.sum[q] == 0.f) continue;
    if (a.sum[q] == 0.f) {
      a.maximum[q] = b.maximum[q], a.sum[q] = b.sum[q];
      std::memcpy(x, y, static_cast<std::size_t>(width) * sizeof(float));
      continue;
    }
    const float m = a.maximum[q] > b.maximum[q] ? a.maximum[q] : b.maximum[q];
    const float wa = simd::exp(a.maximum[q] - m), wb = simd::exp(b.maximum[q] - m);
    a.sum[q] = simd::fma(b.sum[q], wb, a.sum[q] * wa);
    a.maximum[q] = m;
    for (int c = 0; c < width; c += simd::lanes) simd::store(x + c, simd::fma(simd::load(y + c), simd::splat(wb), simd::load(x + c) * simd::splat(wa)));
  }
}

/// The open nodes of the tree: at most one a level.
class chunk_states {
 public:
  chunk_states(scratch_layout& memory, int capacity, int width, std::int64_t chunks) : width_(width), capacity_((capacity + 15) / 16 * 16) {
    const int levels = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(chunks))) + 1;
    chunk_ = memory.take<std::int64_t>(static_cast<std::size_t>(levels));
    data_ = memory.take<float>(static_cast<std::size_t>(levels) * static_cast<std::size_t>(stride()));
  }
  void reset(int queries) { queries_ = queries, open_ = 0; }
  bool empty() const { return open_ == 0; }

  /// The state of a later chunk, to be filled by the caller.
  state_block push(std::int64_t chunk) {
    while (open_ > 1 && level(open_ - 2) < bits_of(chunk_[open_ - 1] ^ chunk)) pop();
    chunk_[open_++] = chunk;
    return at(open_ - 1);
  }
  /// The state of everything pushed; not for an empty stack.
  state_block finish() {
    while (open_ > 1) pop();
    return at(0);
  }

 private:
  static int bits_of(std::int64_t x) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(x))); }
  std::int64_t stride() const { return static_cast<std::int64_t>(capacity_) * (width_ + 2); }
  state_block at(int i) const {
    float* p = data_ + i * stride();
    return {p, p + capacity_, p + 2 * capacity_};
  }
  int level(int i) const { return bits_of(chunk_[i] ^ chunk_[i + 1]); }
  void pop() {
    join_states(at(open_ - 2), at(open_ - 1), queries_, width_);
    --open_;
  }

  int width_, capacity_, queries_ = 0, open_ = 0;
  std::int64_t* chunk_;
  float* data_;
};

}  // namespace heddle::detail::inline HEDDLE_ISA
