// int4: four bits a channel and one fp32 scale a row, multiplied as integers.
//
//   x^ = scale * code,  scale = max |x| / 7,  code = round(x / scale) in -7 .. 7;  |x - x^| <= scale / 2 (and the rounding of the scale)
//
// d channels take d / 2 + 4 bytes (d rounded up to 8; 4.25 bits a channel at d = 128). Format: integer_storage.hpp. Zero is a code, so padding
// and sparse rows are exact. Queries and weights become integers as in int8.hpp; one digit is the default, because its error (about 1e-2) is small
// beside that of four bits: relative 2-norm of the output about 0.15 against attention on exact rows of normal numbers. Rows in which a few
// channels are much larger than the rest lose all others; rotate them first or use int8.
// Rows that are not finite, tiny rows and rows of zeros as in int8.
//
//     alignas(64) std::byte run[heddle::codec::int4<>::key_run_bytes(64)];
//     heddle::codec::int4<>::encode_keys(&rows[0][0], 64, 16, 64, run, 0);
#pragma once
#include <heddle/cache/codec/detail/row_scaled.hpp>
#include <heddle/cache/codec/integer_storage.hpp>

namespace heddle::codec::inline HEDDLE_ISA {

template <int query_digits_ = 1, int weight_digits_ = 1>
  requires(query_digits_ >= 1 && query_digits_ <= 2 && weight_digits_ >= 1 && weight_digits_ <= 2)
struct int4 : detail::row_scaled<4> {
  static constexpr const char* name = query_digits_ == 1 && weight_digits_ == 1 ? "int4" : query_digits_ == 2 && weight_digits_ == 2 ? "int4_precise" : "int4_mixed";
  static constexpr int query_digits = query_digits_, weight_digits = weight_digits_;
};

using int4_precise = int4<2, 2>;

}  // namespace heddle::codec::inline HEDDLE_ISA
