// int8: eight bits a channel and one fp32 scale a row, multiplied as integers.
//
//   x^ = scale * code,  scale = max |x| / 127,  code = round(x / scale) in -127 .. 127;  |x - x^| <= scale / 2 (and the rounding of the scale)
//
// d channels take d + 4 bytes (d rounded up to 4; 8.25 bits a channel at d = 128). Format: integer_storage.hpp.
//
// Attention multiplies the codes with integers: the query row as q = a * round(q / a), a = max |q| / L, and the softmax weights times the scales
// of the values, w = b * round(w / b), b = max over the tile of 64 tokens / L. Sums of products are exact, so nothing depends on their order.
//
//   |z - z^| <= softmax scale * max |q| / (2 L) * sum_c |k_c|     logit z of a decoded key k
//
//   digits  L       relative 2-norm of the output's error against exact attention on decoded rows
//   2       16256   below 1e-3; 1e-4 is usual
//   1       127     about 1e-2
//
// Rows longer than 1032 channels take a smaller L, so that sums of products fit 32 bits.
// codec::int8<> has two digits for both, codec::int8_fast one. With one digit AVX-512 VNNI takes half the multiplies; AVX2 without VNNI takes the
// same time for both.
//
// A row with NaN or infinity gets a NaN scale, which makes exactly the queries that see this token NaN. Rows below 2^-100 are stored as zeros;
// a row of zeros has scale 0 and decodes to zeros. The encoded bytes are the same on every instruction set.
// Method: symmetric linear quantisation with one scale a token. Rounding to the nearest, ties to even: no bias, which attention would not average.
//
//     float rows[16][64];
//     alignas(64) std::byte run[heddle::codec::int8<>::key_run_bytes(64)];
//     heddle::codec::int8<>::encode_keys(&rows[0][0], 64, 16, 64, run, 0);
//     float back[64];
//     heddle::codec::int8<>::decode_key(run, 3, 64, back);
#pragma once
#include <heddle/cache/codec/detail/row_scaled.hpp>
#include <heddle/cache/codec/integer_storage.hpp>

namespace heddle::codec::inline HEDDLE_ISA {

template <int query_digits_ = 2, int weight_digits_ = 2>
  requires(query_digits_ >= 1 && query_digits_ <= 2 && weight_digits_ >= 1 && weight_digits_ <= 2)
struct int8 : detail::row_scaled<8> {
  static constexpr const char* name = query_digits_ == 2 && weight_digits_ == 2 ? "int8" : query_digits_ == 1 && weight_digits_ == 1 ? "int8_fast" : "int8_mixed";
  static constexpr int query_digits = query_digits_, weight_digits = weight_digits_;
};

using int8_fast = int8<1, 1>;

}  // namespace heddle::codec::inline HEDDLE_ISA
