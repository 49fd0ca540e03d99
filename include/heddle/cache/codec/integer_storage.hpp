// What integer codecs share: small unsigned codes with one scale a row, x = scale * (code - zero_code), in cells that a byte product takes whole.
//
// A cell is 32 bits: four codes of eight bits, or eight of four bits in two planes (plane p is bits 4 p .. 4 p + 3 of every byte).
//
//   key run     [key_cells(d)][16 slots] cells, then 16 fp32 scales.   Byte b, plane p of cell i holds channel 4 (planes i + p) + b.
//   value run   [4 / planes][value_width(d)] cells, then 16 scales.    Byte b, plane p of cell row i holds token 4 (planes i + p) + b.
//   record      [key_cells(d)] cells as in a key run, then the scale, for keys and values alike; no alignment.
//
// Channels that fill the last key cell and value channels d .. value_width(d) - 1 hold zero_code. Scales are never negative.
//
//     using Codec = heddle::codec::int4<>;
//     static_assert(heddle::integer_storage<Codec> && Codec::planes == 2);
//     const int cells = Codec::key_cells(128);                       // 16: eight channels each
#pragma once
#include <heddle/cache/codec/codec.hpp>

#include <concepts>
#include <cstddef>

namespace heddle {

/// query_digits, weight_digits: bytes of the integers that queries and softmax weights become when attention multiplies them with the codes.
template <class C>
concept integer_storage = cache_codec<C> && requires(int d) {
  requires C::code_bits == 8 || C::code_bits == 4;
  requires C::planes * C::code_bits == 8;
  requires C::zero_code >= 0 && C::zero_code < (1 << C::code_bits);
  requires C::query_digits == 1 || C::query_digits == 2;
  requires C::weight_digits == 1 || C::weight_digits == 2;
  { C::key_cells(d) } -> std::same_as<int>;
  { C::value_width(d) } -> std::same_as<int>;
};

}  // namespace heddle
