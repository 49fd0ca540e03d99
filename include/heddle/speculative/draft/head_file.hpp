// The draft-head file: draft heads (draft_heads.hpp) as bytes, little-endian on every machine.
//
//   offset  bytes  field
//        0      8  magic "HDLHEADS"
//        8      4  version, 1
//       12      4  hidden size d
//       16      4  width of the inner layer w
//       20      4  number of heads K
//       24      4  vocabulary size V of the target
//       28      4  tokens M in the draft vocabulary; 0: all V
//       32      8  checksum: FNV-1a, 64 bits, over the fields at 8 .. 31 and everything from 40 on
//       40    4 M  their ids, ascending
//        ..  12 K w d  per head W_in [w, 2 d], then W_out [d, w], rows one after another, IEEE 754 binary32
// and nothing after that. FNV-1a: hash = 0xcbf29ce484222325; per byte hash = (hash ^ byte) * 0x100000001b3 mod 2^64.
//
// write_head_file(heads, bytes)  replaces `bytes` by the file; heads with a weight that is not finite are an error and nothing is written
// read_head_file(bytes)          the heads. Everything is checked before anything is allocated: magic, version, sizes (1 <= d, w <= 2^20, K <= 64,
//                                M <= V <= 2^30), that the bytes are exactly as many as the sizes ask for, the checksum, the ids, and that every weight is finite.
// Reading and writing files is the caller's. The same heads give the same bytes. Cost: one pass over the bytes for the checksum and one to copy.
//
//     heddle::aligned_vector<std::byte> bytes;
//     heddle::write_head_file(heads, bytes);
//     const heddle::draft_heads same = heddle::read_head_file(bytes);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/speculative/draft/draft_heads.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace heddle {

namespace detail::inline HEDDLE_ISA {

inline constexpr char head_file_magic[] = "HDLHEADS";
inline constexpr std::uint32_t head_file_version = 1;
inline constexpr std::size_t head_file_checksum_at = 32, head_file_header = 40;

template <class Unsigned>
void put_number(std::byte* to, Unsigned value) {
  for (std::size_t i = 0; i < sizeof value; ++i) to[i] = static_cast<std::byte>((value >> (8 * i)) & 0xffu);
}
template <class Unsigned>
Unsigned number_at(const std::byte* from) {
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) value |= static_cast<Unsigned>(std::to_integer<Unsigned>(from[i]) << (8 * i));
  return value;
}

inline std::uint64_t head_file_checksum(std::span<const std::byte> file) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](std::span<const std::byte> part) {
    for (const std::byte b : part) hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3u;
  };
  add(file.subspan(8, head_file_checksum_at - 8)), add(file.subspan(head_file_header));
  return hash;
}

inline bool all_finite(std::span<const float> values) {
  for (const float x : values)
    if (!(x - x == 0.f)) return false;
  return true;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

inline void write_head_file(const draft_heads& heads, aligned_vector<std::byte>& bytes) {
  using namespace detail;
  require(all_finite(heads.weights()), "write_head_file: argument 'heads' has a weight that is not finite");
  const draft_head_shape& s = heads.shape();
  bytes.assign(head_file_header + 4 * (heads.tokens().size() + heads.weights().size()), std::byte{});
  std::memcpy(bytes.data(), head_file_magic, 8);
  std::byte* to = bytes.data() + 8;
  const auto put = [&](auto value) { put_number(to, static_cast<std::uint32_t>(value)), to += 4; };
  put(head_file_version), put(s.hidden_size), put(s.width), put(s.num_heads), put(s.vocabulary_size), put(heads.tokens().size());
  to = bytes.data() + head_file_header;
  for (const std::int32_t token : heads.tokens()) put(token);
  for (const float weight : heads.weights()) put(std::bit_cast<std::uint32_t>(weight));
  put_number(bytes.data() + head_file_checksum_at, head_file_checksum(bytes));
}

inline draft_heads read_head_file(std::span<const std::byte> bytes) {
  using namespace detail;
  require(bytes.size() >= head_file_header, "read_head_file: the file has ", bytes.size(), " bytes; expected a header of ", head_file_header);
  require(std::memcmp(bytes.data(), head_file_magic, 8) == 0, "read_head_file: the file does not begin with '", head_file_magic, "': it is not a draft-head file");
  const auto field = [&](std::size_t offset) { return number_at<std::uint32_t>(bytes.data() + offset); };
  require(field(8) == head_file_version, "read_head_file: the file has version ", field(8), "; expected ", head_file_version);
  const draft_head_shape shape{field(12), field(16), field(20), field(24)};
  check_shape("read_head_file", shape);
  const std::uint64_t tokens = field(28), weights = std::uint64_t{3} * static_cast<std::uint64_t>(shape.num_heads * shape.width * shape.hidden_size);   // below 2^48
  require(tokens <= static_cast<std::uint64_t>(shape.vocabulary_size), "read_head_file: the draft vocabulary has ", tokens, " tokens; expected at most ", shape.vocabulary_size);
  const std::uint64_t expected = head_file_header + 4 * (tokens + weights);
  require(bytes.size() == expected, "read_head_file: the file has ", bytes.size(), " bytes; expected ", expected, " for the sizes it names");
  require(number_at<std::uint64_t>(bytes.data() + head_file_checksum_at) == head_file_checksum(bytes), "read_head_file: the checksum does not match: the file is damaged");

  const std::byte* from = bytes.data() + head_file_header;
  aligned_vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(number_at<std::uint32_t>(from)), from += 4;
  draft_heads heads(shape, ids);
  for (float& weight : heads.weights()) weight = std::bit_cast<float>(number_at<std::uint32_t>(from)), from += 4;
  require(all_finite(heads.weights()), "read_head_file: a weight is not finite");
  return heads;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
