// What a source of keys hands to a kernel: addresses of 64 consecutive tokens of one KV head.
//
// A tile starts at an absolute multiple of 64 tokens and is four runs of sixteen tokens (see codec.hpp). Runs that start past the last token
// repeat the last run that holds one, so that every address may be read; tokens past the end are masked by who reads.
//
//     heddle::tile t;
//     keys.find(0, kv_head, 128, t, scratch);                        // tokens 128 .. 191 of sequence 0
//     float key[head_dim];                                           // of token 150
//     codec::decode_key(t.key[(150 - 128) / 16], (150 - 128) % 16, head_dim, key);
#pragma once
#include <heddle/core/isa.hpp>

#include <cstddef>

namespace heddle {

inline constexpr int tile_tokens = 64;
inline constexpr int tile_runs = 4;

struct tile {
  const std::byte* key[tile_runs];
  const std::byte* value[tile_runs];
};

}  // namespace heddle
