// Reader for GGUF version 3 (little-endian): metadata, tensor descriptions and views of the tensor data.
// Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
//     magic "GGUF", uint32 version, uint64 tensor count, uint64 metadata count
//     metadata: string key, uint32 type, value           a string is uint64 length + bytes; an array is uint32 type, uint64 count, elements
//     tensors:  string name, uint32 rank, uint64 dimensions[rank], uint32 type, uint64 offset
//     padding to the alignment, then the tensor data; offsets count from here
//
// The input is not trusted. Every length and count is held against the bytes that are left before it is used, so a file can neither make
// the reader leave the buffer nor make it allocate more than a small multiple of the file's own size. What is wrong is said in a
// file_error. Values and tensors are views of the buffer, which has to outlive the reader.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mapped_file.hpp"

namespace llama {

enum class value_type : std::uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  string,
  array,
  uint64,
  int64,
  float64
};

inline std::string_view name_of(value_type type) {
  constexpr std::array<std::string_view, 13> names{"uint8",   "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                                   "boolean", "string", "array",  "uint64", "int64",  "float64"};
  return names[static_cast<std::size_t>(type)];
}

template <class T>
inline constexpr value_type value_type_of = value_type::string;
template <>
inline constexpr value_type value_type_of<std::uint8_t> = value_type::uint8;
template <>
inline constexpr value_type value_type_of<std::uint32_t> = value_type::uint32;
template <>
inline constexpr value_type value_type_of<std::int32_t> = value_type::int32;
template <>
inline constexpr value_type value_type_of<float> = value_type::float32;
template <>
inline constexpr value_type value_type_of<bool> = value_type::boolean;

// Tensor formats by their number in the file: `block` elements occupy `bytes` bytes.
struct tensor_format {
  std::uint32_t id;
  std::string_view name;
  std::uint32_t block;
  std::uint32_t bytes;
  friend bool operator==(const tensor_format& a, const tensor_format& b) { return a.id == b.id; }
};

namespace format {
inline constexpr tensor_format f32{0, "F32", 1, 4}, f16{1, "F16", 1, 2}, q4_0{2, "Q4_0", 32, 18}, q4_1{3, "Q4_1", 32, 20},
    q8_0{8, "Q8_0", 32, 34}, bf16{30, "BF16", 1, 2};
// Formats whose size is known, so that a file that holds them can be listed; nothing here computes with them.
inline constexpr std::array all{f32,
                                f16,
                                bf16,
                                q4_0,
                                q4_1,
                                q8_0,
                                tensor_format{6, "Q5_0", 32, 22},
                                tensor_format{7, "Q5_1", 32, 24},
                                tensor_format{9, "Q8_1", 32, 36},
                                tensor_format{10, "Q2_K", 256, 84},
                                tensor_format{11, "Q3_K", 256, 110},
                                tensor_format{12, "Q4_K", 256, 144},
                                tensor_format{13, "Q5_K", 256, 176},
                                tensor_format{14, "Q6_K", 256, 210},
                                tensor_format{24, "I8", 1, 1},
                                tensor_format{25, "I16", 1, 2},
                                tensor_format{26, "I32", 1, 4},
                                tensor_format{27, "I64", 1, 8},
                                tensor_format{28, "F64", 1, 8}};
}  // namespace format

// Text from the file as it may be shown on a terminal: at most 80 bytes, anything but printable ASCII escaped.
inline std::string shown(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, 80)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) out += c;
    else (out += "\\x") += {digits[byte >> 4], digits[byte & 15]};
  }
  return out + (text.size() > 80 ? "...'" : "'");
}

// Dimensions in the file's order: dims[0] is the length of a row (contiguous), unused ones are 1.
struct tensor_info {
  std::string_view name;
  tensor_format format;
  std::uint32_t rank;
  std::array<std::uint64_t, 4> dims;
  std::span<const std::byte> data;
};

class gguf {
 public:
  // `name` stands in front of every message.
  gguf(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) { parse(); }

  // The value under `key`, converted without loss: any integer type that holds the value serves an unsigned request, float64 serves float.
  // Absent: nothing. Present with another type: file_error with the key and both types.
  template <class T>
  std::optional<T> find(std::string_view key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return std::nullopt;
    return convert<T>(key, found->second);
  }

  template <class T>
  T get(std::string_view key) const {
    if (const auto found = find<T>(key)) return *found;
    fail("the key " + shown(key) + " is missing");
  }

  // An array must have exactly the element type asked for (known to matter: other readers reinterpret the bytes).
  template <class T>
  std::vector<T> get_array(std::string_view key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) fail("the key " + shown(key) + " is missing");
    const value& array = found->second;
    if (array.type != value_type::array || array.element != value_type_of<T>)
      fail(mismatch(key, array, "an array of " + std::string(name_of(value_type_of<T>))));
    std::vector<T> out;
    out.reserve(array.count);
    cursor in{array.bytes, 0};
    for (std::uint64_t i = 0; i < array.count; ++i) {
      if constexpr (std::is_same_v<T, std::string_view>) out.push_back(read_string(in, "an array"));
      else out.push_back(read<T>(in, "an array"));
    }
    return out;
  }

  const tensor_info* find_tensor(std::string_view name) const {
    const auto found = tensor_index_.find(name);
    return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
  }
  const std::vector<tensor_info>& tensors() const { return tensors_; }
  const std::string& name() const { return name_; }

  [[noreturn]] void fail(const std::string& what) const { throw file_error(name_ + ": " + what); }

 private:
  struct cursor {
    std::span<const std::byte> bytes;
    std::size_t position;
    std::size_t left() const { return bytes.size() - position; }
  };
  struct value {
    value_type type;
    value_type element;   // of an array
    std::uint64_t count;  // of an array
    std::span<const std::byte> bytes;
  };

  std::span<const std::byte> take(cursor& in, std::uint64_t count, std::string_view what) const {
    if (count > in.left())
      fail("ends inside " + std::string(what) + ": " + std::to_string(count) + " bytes wanted at byte " + std::to_string(in.position) +
           ", " + std::to_string(in.left()) + " left");
    const auto piece = in.bytes.subspan(in.position, static_cast<std::size_t>(count));
    in.position += piece.size();
    return piece;
  }
  template <class T>
  T read(cursor& in, std::string_view what) const {
    T out;
    std::memcpy(&out, take(in, sizeof(T), what).data(), sizeof(T));
    return out;
  }
  std::string_view read_string(cursor& in, std::string_view what) const {
    const auto text = take(in, read<std::uint64_t>(in, what), what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  // A count from the file is believed only if that many of the smallest possible item fit into the rest of the file.
  std::uint64_t believable(std::uint64_t count, std::size_t smallest_item, std::size_t left, std::string_view what) const {
    if (count > left / smallest_item)
      fail("claims " + std::to_string(count) + " " + std::string(what) + ", more than its " + std::to_string(left) +
           " remaining bytes can hold");
    return count;
  }

  static std::size_t size_of(value_type type) {
    constexpr std::array<std::size_t, 13> sizes{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // strings and arrays: their empty form
    return sizes[static_cast<std::size_t>(type)];
  }
  value_type read_type(cursor& in, std::string_view key) const {
    const auto type = read<std::uint32_t>(in, "a metadata value");
    if (type > static_cast<std::uint32_t>(value_type::float64))
      fail("the key " + shown(key) + " has the unknown type " + std::to_string(type));
    return static_cast<value_type>(type);
  }
  void skip(cursor& in, value_type type, std::string_view key) const {
    if (type == value_type::string) {
      read_string(in, "a metadata string");
    } else if (type == value_type::boolean) {
      if (read<std::uint8_t>(in, "a metadata value") > 1) fail("the key " + shown(key) + " holds a boolean that is neither 0 nor 1");
    } else {
      take(in, size_of(type), "a metadata value");
    }
  }
  value read_value(cursor& in, std::string_view key) const {
    value out{read_type(in, key), value_type::uint8, 0, {}};
    if (out.type == value_type::array) {
      out.element = read_type(in, key);
      if (out.element == value_type::array) fail("the key " + shown(key) + " holds an array of arrays, which this program does not read");
      out.count = believable(read<std::uint64_t>(in, "an array"), size_of(out.element), in.left(), "elements in " + shown(key));
    }
    const std::size_t begin = in.position;
    if (out.type != value_type::array) skip(in, out.type, key);
    else if (out.element != value_type::string && out.element != value_type::boolean)
      take(in, out.count * size_of(out.element), "an array");
    else
      for (std::uint64_t i = 0; i < out.count; ++i) skip(in, out.element, key);
    out.bytes = in.bytes.subspan(begin, in.position - begin);
    return out;
  }

  void parse() {
    cursor in{bytes_, 0};
    const auto magic = take(in, 4, "the magic number");
    if (std::memcmp(magic.data(), "GGUF", 4) != 0)
      fail("is not a GGUF file (begins with " + shown({reinterpret_cast<const char*>(magic.data()), 4}) + ")");
    const auto version = read<std::uint32_t>(in, "the version");
    if (version == 0x03000000u) fail("is a big-endian GGUF file; only little-endian ones are read");
    if (version != 3) fail("has GGUF version " + std::to_string(version) + "; only version 3 is read");
    const auto tensor_count = read<std::uint64_t>(in, "the header");
    const auto metadata_count = read<std::uint64_t>(in, "the header");
    constexpr std::size_t smallest_entry = 8 + 4 + 1, smallest_tensor = 8 + 4 + 8 + 4 + 8;
    believable(metadata_count, smallest_entry, in.left(), "metadata entries");
    believable(tensor_count, smallest_tensor, in.left(), "tensors");

    for (std::uint64_t i = 0; i < metadata_count; ++i) {
      const auto key = read_string(in, "a metadata key");
      if (!metadata_.emplace(key, read_value(in, key)).second) fail("the key " + shown(key) + " appears twice");
    }
    parse_tensors(in, tensor_count);
  }

  void parse_tensors(cursor& in, std::uint64_t count) {
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < count; ++i) {
      tensor_info tensor{read_string(in, "a tensor name"), format::f32, 0, {1, 1, 1, 1}, {}};
      const std::string title = "the tensor " + shown(tensor.name);
      tensor.rank = read<std::uint32_t>(in, "a tensor description");
      if (tensor.rank < 1 || tensor.rank > 4) fail(title + " has " + std::to_string(tensor.rank) + " dimensions; 1 to 4 are read");
      for (std::uint32_t d = 0; d < tensor.rank; ++d) tensor.dims[d] = read<std::uint64_t>(in, "a tensor description");
      const auto type = read<std::uint32_t>(in, "a tensor description");
      const auto known = std::find_if(format::all.begin(), format::all.end(), [type](const tensor_format& f) { return f.id == type; });
      if (known == format::all.end()) fail(title + " has the unknown type " + std::to_string(type));
      tensor.format = *known;
      offsets.push_back(read<std::uint64_t>(in, "a tensor description"));
      if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) fail(title + " appears twice");
      tensors_.push_back(tensor);
    }
    const std::uint64_t alignment = find<std::uint32_t>("general.alignment").value_or(32);
    if (alignment < 8 || (alignment & (alignment - 1)) != 0)
      fail("has alignment " + std::to_string(alignment) + "; expected a power of two of at least 8");
    const std::uint64_t begin = (in.position + alignment - 1) / alignment * alignment;
    const auto data = bytes_.subspan(static_cast<std::size_t>(std::min<std::uint64_t>(begin, bytes_.size())));
    for (std::size_t i = 0; i < tensors_.size(); ++i) place(tensors_[i], offsets[i], alignment, data);
  }

  void place(tensor_info& tensor, std::uint64_t offset, std::uint64_t alignment, std::span<const std::byte> data) const {
    const std::string title = "the tensor " + shown(tensor.name);
    std::uint64_t elements = 1;
    for (const std::uint64_t d : tensor.dims) {
      if (d == 0) fail(title + " has a dimension of 0");
      if (elements > std::numeric_limits<std::int64_t>::max() / d) fail(title + " has more than 2^63 elements");
      elements *= d;
    }
    if (tensor.dims[0] % tensor.format.block != 0)
      fail(title + " has rows of " + std::to_string(tensor.dims[0]) + " elements, not a multiple of the " +
           std::to_string(tensor.format.block) + " that make a block of " + std::string(tensor.format.name));
    const std::uint64_t blocks = elements / tensor.format.block;
    if (offset % alignment != 0)
      fail(title + " lies at offset " + std::to_string(offset) + ", not a multiple of the alignment " + std::to_string(alignment));
    if (offset > data.size() || blocks > (data.size() - offset) / tensor.format.bytes)
      fail(title + " reaches past the end of the file: " + std::to_string(blocks) + " blocks of " + std::to_string(tensor.format.bytes) +
           " bytes at offset " + std::to_string(offset) + " of " + std::to_string(data.size()) + " bytes of data");
    tensor.data = data.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(blocks * tensor.format.bytes));
  }

  std::string mismatch(std::string_view key, const value& found, const std::string& wanted) const {
    std::string type(name_of(found.type));
    if (found.type == value_type::array) type = "array of " + std::string(name_of(found.element));
    return "the key " + shown(key) + " has type " + type + "; expected " + wanted;
  }

  template <class T>
  T convert(std::string_view key, const value& v) const {
    cursor in{v.bytes, 0};
    if constexpr (std::is_same_v<T, std::string_view>) {
      if (v.type == value_type::string) return read_string(in, "a string");
      fail(mismatch(key, v, "a string"));
    } else if constexpr (std::is_same_v<T, bool>) {
      if (v.type == value_type::boolean) return read<std::uint8_t>(in, "a boolean") != 0;
      fail(mismatch(key, v, "a boolean"));
    } else if constexpr (std::is_same_v<T, float>) {
      if (v.type == value_type::float32) return read<float>(in, "a number");
      if (v.type == value_type::float64) return static_cast<float>(read<double>(in, "a number"));
      fail(mismatch(key, v, "a floating-point number"));
    } else {
      static_assert(std::is_same_v<T, std::uint32_t>, "metadata is read as std::uint32_t, float, bool or std::string_view");
      const auto number = unsigned_value(in, key, v);
      if (number <= std::numeric_limits<T>::max()) return static_cast<T>(number);
      fail("the key " + shown(key) + " holds " + std::to_string(number) + ", more than 32 bits can count");
    }
  }
  std::uint64_t unsigned_value(cursor& in, std::string_view key, const value& v) const {
    const auto not_negative = [&](auto number) {
      if (number < 0) fail("the key " + shown(key) + " holds " + std::to_string(number) + "; expected a count");
      return static_cast<std::uint64_t>(number);
    };
    switch (v.type) {
      case value_type::uint8: return read<std::uint8_t>(in, "a number");
      case value_type::uint16: return read<std::uint16_t>(in, "a number");
      case value_type::uint32: return read<std::uint32_t>(in, "a number");
      case value_type::uint64: return read<std::uint64_t>(in, "a number");
      case value_type::int8: return not_negative(read<std::int8_t>(in, "a number"));
      case value_type::int16: return not_negative(read<std::int16_t>(in, "a number"));
      case value_type::int32: return not_negative(read<std::int32_t>(in, "a number"));
      case value_type::int64: return not_negative(read<std::int64_t>(in, "a number"));
      default: fail(mismatch(key, v, "an integer"));
    }
  }

  std::span<const std::byte> bytes_;
  std::string name_;
  std::unordered_map<std::string_view, value> metadata_;
  std::vector<tensor_info> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;
};

}  // namespace llama
