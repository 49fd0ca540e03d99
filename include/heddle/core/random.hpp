// Counter-based random numbers: a number is a function of its key, so it depends on no order, batch, thread or device.
//
//   Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): key = seed (2 x 32 bits), counter = (index / 4, position, request, purpose);
//   the number is word index % 4 of the block. A uniform number is u = (k + 1/2) / 2^32 in double: never 0, never 1.
//
// Fields of a key: seed of the run; request in the batch; absolute position of the token that is decided; purpose (what the number decides);
// index among the numbers of that purpose (a token id for Gumbel noise, a draft slot for acceptance).
//
//     const double u = heddle::uniform({.seed = 7, .request = 0, .position = 42, .purpose = heddle::purpose::sample});
#pragma once
#include <heddle/core/math.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle {

enum class purpose : std::uint32_t {
  sample = 0,     ///< the token at a position: inverse CDF draws and Gumbel noise of samplers and match verifiers alike
  accept = 1,     ///< accept a drafted token
  residual = 2,   ///< draw from a residual law after a rejection
  draft = 3,      ///< drawn by a drafter
  transform = 4,  ///< random choices inside a chain of logit transforms (XTC)
  resample = 5,   ///< particle resampling
  dropout = 6,    ///< leave a token, a span or the rest of a trace out of a training example
  dropout_rate = 7,  ///< the rate of one sequence, where that is random itself
  mixture = 8,    ///< which of several models decides a token
  projection = 9, ///< a random subspace
  user = 0x10000  ///< and above: free for callers
};

struct random_key {
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  std::uint32_t position = 0;
  heddle::purpose purpose = heddle::purpose::sample;
  std::uint32_t index = 0;
};

/// Four random words; also the counter of the generator.
struct random_words {
  std::uint32_t words[4];
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr std::uint32_t operator[](std::size_t i) const { return words[i]; }
};

inline namespace HEDDLE_ISA {

HEDDLE_HOST_DEVICE constexpr random_words philox4x32(random_words counter, std::uint32_t key_low, std::uint32_t key_high) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0], b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key_low, static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key_high, static_cast<std::uint32_t>(a)}};
    key_low += 0x9E3779B9u, key_high += 0xBB67AE85u;
  }
  return counter;
}

/// Four numbers at once: those of indices 4 * block .. 4 * block + 3 (the key's own index is not read).
HEDDLE_HOST_DEVICE constexpr random_words random_block(const random_key& key, std::uint32_t block) {
  return philox4x32({{block, key.position, key.request, static_cast<std::uint32_t>(key.purpose)}}, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
}
HEDDLE_HOST_DEVICE constexpr std::uint32_t random_bits(const random_key& key) { return random_block(key, key.index / 4)[key.index % 4]; }

/// (k + 1/2) / 2^32, strictly between 0 and 1.
HEDDLE_HOST_DEVICE constexpr double to_uniform(std::uint32_t k) { return (static_cast<double>(k) + 0.5) * 0x1p-32; }
HEDDLE_HOST_DEVICE constexpr double uniform(const random_key& key) { return to_uniform(random_bits(key)); }

/// Standard Gumbel noise -ln(-ln u) of the same number.
HEDDLE_HOST_DEVICE inline double gumbel(std::uint32_t k) { return -math::log(-math::log(to_uniform(k))); }
HEDDLE_HOST_DEVICE inline double gumbel(const random_key& key) { return gumbel(random_bits(key)); }

}  // namespace HEDDLE_ISA
}  // namespace heddle
