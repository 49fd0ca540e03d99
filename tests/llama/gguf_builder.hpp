// Writes small GGUF files, well-formed unless told otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/gguf.hpp"

namespace llama::testing {

class gguf_builder {
 public:
  std::uint32_t version = 3;
  std::string magic = "GGUF";

  template <class T>
  gguf_builder& number(std::string_view key, T value) {
    begin(key, value_type_of<T>);
    append(metadata_, value);
    return *this;
  }
  gguf_builder& string(std::string_view key, std::string_view text) {
    begin(key, value_type::string);
    append_string(metadata_, text);
    return *this;
  }
  gguf_builder& strings(std::string_view key, const std::vector<std::string>& texts) {
    begin_array(key, value_type::string, texts.size());
    for (const auto& text : texts) append_string(metadata_, text);
    return *this;
  }
  template <class T>
  gguf_builder& numbers(std::string_view key, const std::vector<T>& values) {
    begin_array(key, value_type_of<T>, values.size());
    for (const T value : values) append(metadata_, value);
    return *this;
  }
  // A value of any type number, whose bytes follow as given.
  gguf_builder& raw(std::string_view key, std::uint32_t type, std::string_view bytes) {
    append_string(metadata_, key);
    append(metadata_, type);
    metadata_ += bytes;
    ++metadata_count;
    return *this;
  }
  gguf_builder& tensor(std::string_view name, std::initializer_list<std::uint64_t> dims, tensor_format format, std::string_view data) {
    tensor_at(name, dims, format.id, data_.size());
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    return *this;
  }
  // A tensor whose data are zeros.
  gguf_builder& tensor(std::string_view name, std::initializer_list<std::uint64_t> dims, tensor_format format = format::f32) {
    std::uint64_t elements = 1;
    for (const auto d : dims) elements *= d;
    return tensor(name, dims, format, std::string(static_cast<std::size_t>(elements / format.block * format.bytes), '\0'));
  }
  gguf_builder& tensor_at(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
    append_string(tensors_, name);
    append(tensors_, static_cast<std::uint32_t>(dims.size()));
    for (const auto d : dims) append(tensors_, d);
    append(tensors_, type);
    append(tensors_, offset);
    ++tensor_count;
    return *this;
  }

  std::string bytes() const {
    std::string out = magic;
    append(out, version);
    append(out, tensor_count);
    append(out, metadata_count);
    out += metadata_ + tensors_;
    if (tensor_count != 0) out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

  std::uint64_t tensor_count = 0, metadata_count = 0;

 private:
  template <class T>
  static void append(std::string& out, T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
  }
  static void append_string(std::string& out, std::string_view text) {
    append(out, static_cast<std::uint64_t>(text.size()));
    out += text;
  }
  void begin(std::string_view key, value_type type) {
    append_string(metadata_, key);
    append(metadata_, static_cast<std::uint32_t>(type));
    ++metadata_count;
  }
  void begin_array(std::string_view key, value_type element, std::size_t count) {
    begin(key, value_type::array);
    append(metadata_, static_cast<std::uint32_t>(element));
    append(metadata_, static_cast<std::uint64_t>(count));
  }

  std::string metadata_, tensors_, data_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// Sizes of a model small enough to be looked at.
struct tiny_sizes {
  std::uint32_t layers = 1, hidden = 32, feed_forward = 64, query_heads = 2, key_heads = 1, context = 64;
};

// Metadata of a model with 259 tokens: the two marks of ChatML, every byte, "ab".
inline gguf_builder tiny_metadata(const tiny_sizes& n = {}) {
  std::vector<std::string> tokens{"<|im_start|>", "<|im_end|>"};
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const std::uint32_t c = printable ? byte : next++;
    if (c < 0x80) tokens.push_back(std::string(1, static_cast<char>(c)));
    else tokens.push_back({static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))});
  }
  tokens.push_back("ab");
  std::vector<std::int32_t> kinds(tokens.size(), 1);
  kinds[0] = kinds[1] = 3;
  gguf_builder out;
  out.string("general.architecture", "llama").number("llama.block_count", n.layers).number("llama.embedding_length", n.hidden);
  out.number("llama.feed_forward_length", n.feed_forward).number("llama.attention.head_count", n.query_heads);
  out.number("llama.attention.head_count_kv", n.key_heads).number("llama.context_length", n.context);
  out.number("llama.attention.layer_norm_rms_epsilon", 1e-5f).number("llama.rope.freq_base", 1e4f);
  out.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "smollm").strings("tokenizer.ggml.tokens", tokens);
  out.numbers("tokenizer.ggml.token_type", kinds).strings("tokenizer.ggml.merges", {"a b"}).number("tokenizer.ggml.eos_token_id", 1u);
  out.number("tokenizer.ggml.add_bos_token", false);
  return out;
}

// A whole model, all of its weights zero.
inline gguf_builder tiny_model() {
  gguf_builder out = tiny_metadata();
  out.tensor("token_embd.weight", {32, 259}, format::q8_0).tensor("output_norm.weight", {32});
  out.tensor("blk.0.attn_norm.weight", {32}).tensor("blk.0.attn_q.weight", {32, 32}, format::q4_1);
  out.tensor("blk.0.attn_k.weight", {32, 16}, format::q4_1).tensor("blk.0.attn_v.weight", {32, 16}, format::q4_0);
  out.tensor("blk.0.attn_output.weight", {32, 32}, format::q8_0).tensor("blk.0.ffn_norm.weight", {32});
  out.tensor("blk.0.ffn_gate.weight", {32, 64}, format::bf16).tensor("blk.0.ffn_up.weight", {32, 64}, format::bf16);
  out.tensor("blk.0.ffn_down.weight", {64, 32}, format::f16);
  return out;
}

}  // namespace llama::testing
