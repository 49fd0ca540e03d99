// What a GGUF file says about a model of the Llama architecture: its sizes and its weight tensors, each held to the shape the sizes demand.
// Everything a model needs is checked here, before any of it is used, and a file with a tensor that this program would ignore is refused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "gguf.hpp"

namespace llama {

struct model_config {
  std::size_t num_layers, hidden_size, intermediate_size, num_qo_heads, num_kv_heads, head_dim, vocab_size, context_length;
  float rope_base, rms_epsilon;

  explicit model_config(const gguf& file) {
    const auto architecture = file.get<std::string_view>("general.architecture");
    if (architecture != "llama") file.fail("holds a model of architecture " + shown(architecture) + "; this program implements 'llama'");
    const auto count = [&](std::string_view key, std::uint32_t most) {
      const auto number = file.get<std::uint32_t>(key);
      if (number == 0 || number > most)
        file.fail("the key " + shown(key) + " holds " + std::to_string(number) + "; expected 1 to " + std::to_string(most));
      return std::size_t{number};
    };
    num_layers = count("llama.block_count", 4096);
    hidden_size = count("llama.embedding_length", 1u << 20);
    intermediate_size = count("llama.feed_forward_length", 1u << 22);
    num_qo_heads = count("llama.attention.head_count", 4096);
    num_kv_heads = count("llama.attention.head_count_kv", 4096);
    context_length = count("llama.context_length", 1u << 30);
    if (num_qo_heads % num_kv_heads != 0)
      file.fail(std::to_string(num_qo_heads) + " query heads cannot share " + std::to_string(num_kv_heads) + " key heads evenly");
    if (const auto length = file.find<std::uint32_t>("llama.attention.key_length")) head_dim = *length;
    else if (hidden_size % num_qo_heads == 0) head_dim = hidden_size / num_qo_heads;
    else file.fail("a hidden size of " + std::to_string(hidden_size) + " does not divide into " + std::to_string(num_qo_heads) + " heads");
    if (head_dim == 0 || head_dim % 2 != 0 || head_dim > 4096)
      file.fail("has heads of " + std::to_string(head_dim) + " channels; expected an even number from 2 to 4096");
    same(file, "llama.attention.value_length", head_dim);
    same(file, "llama.rope.dimension_count", head_dim);
    const auto scaling = file.find<std::string_view>("llama.rope.scaling.type").value_or("none");
    if (scaling != "none") file.fail("scales its rotary angles by the rule " + shown(scaling) + "; this program implements 'none'");
    if (file.find<std::uint32_t>("llama.expert_count").value_or(0) != 0)
      file.fail("is a mixture of experts, which this program does not implement");
    rope_base = positive(file, "llama.rope.freq_base", file.find<float>("llama.rope.freq_base").value_or(10000.f));
    rms_epsilon = positive(file, "llama.attention.layer_norm_rms_epsilon", file.get<float>("llama.attention.layer_norm_rms_epsilon"));
    const tensor_info* const embedding = file.find_tensor("token_embd.weight");
    if (embedding == nullptr) file.fail("the tensor 'token_embd.weight' is missing");
    vocab_size = static_cast<std::size_t>(embedding->dims[1]);
    if (vocab_size > 1u << 30) file.fail("has a vocabulary of " + std::to_string(vocab_size) + " tokens");
  }

 private:
  static void same(const gguf& file, std::string_view key, std::size_t expected) {
    const auto found = file.find<std::uint32_t>(key);
    if (found && *found != expected)
      file.fail("the key " + shown(key) + " holds " + std::to_string(*found) + "; this program needs the head size, " +
                std::to_string(expected));
  }
  static float positive(const gguf& file, std::string_view key, float number) {
    if (!(number > 0 && number < 1e30f))
      file.fail("the key " + shown(key) + " holds " + std::to_string(number) + "; expected a positive number");
    return number;
  }
};

// Matrices are [outputs, inputs]: dims[1] rows of dims[0] contiguous elements.
struct layer_weights {
  const tensor_info *attention_norm, *query, *key, *value, *attention_output, *feed_forward_norm, *gate, *up, *down;
};

struct model_weights {
  const tensor_info *embedding, *output_norm, *unembedding;  // the unembedding is the embedding where the file has none of its own
  std::vector<layer_weights> layers;

  model_weights(const gguf& file, const model_config& sizes) {
    const std::size_t hidden = sizes.hidden_size, queries = sizes.num_qo_heads * sizes.head_dim, keys = sizes.num_kv_heads * sizes.head_dim;
    std::size_t used = 0;
    const auto tensor = [&](const std::string& name, std::size_t inputs, std::size_t outputs) {
      const tensor_info* const found = file.find_tensor(name);
      if (found == nullptr) file.fail("the tensor " + shown(name) + " is missing");
      if (found->dims != std::array<std::uint64_t, 4>{inputs, outputs, 1, 1})
        file.fail("the tensor " + shown(name) + " has dimensions " + dimensions(found->dims) + "; expected " +
                  dimensions({inputs, outputs, 1, 1}));
      ++used;
      return found;
    };
    const auto vector = [&](const std::string& name) {
      const tensor_info* const found = tensor(name, hidden, 1);
      require_format(file, *found, {format::f32});
      return found;
    };
    const auto matrix = [&](const std::string& name, std::size_t inputs, std::size_t outputs) {
      const tensor_info* const found = tensor(name, inputs, outputs);
      require_format(file, *found, {format::f32, format::f16, format::bf16, format::q4_0, format::q4_1, format::q8_0});
      return found;
    };
    embedding = matrix("token_embd.weight", hidden, sizes.vocab_size);
    output_norm = vector("output_norm.weight");
    unembedding = file.find_tensor("output.weight") ? matrix("output.weight", hidden, sizes.vocab_size) : embedding;
    for (std::size_t i = 0; i < sizes.num_layers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      layers.push_back({vector(layer + "attn_norm.weight"), matrix(layer + "attn_q.weight", hidden, queries),
                        matrix(layer + "attn_k.weight", hidden, keys), matrix(layer + "attn_v.weight", hidden, keys),
                        matrix(layer + "attn_output.weight", queries, hidden), vector(layer + "ffn_norm.weight"),
                        matrix(layer + "ffn_gate.weight", hidden, sizes.intermediate_size),
                        matrix(layer + "ffn_up.weight", hidden, sizes.intermediate_size),
                        matrix(layer + "ffn_down.weight", sizes.intermediate_size, hidden)});
    }
    if (used != file.tensors().size())
      file.fail("holds " + std::to_string(file.tensors().size()) + " tensors, of which this program would use " + std::to_string(used) +
                ": it is not the plain Llama architecture");
  }

 private:
  static std::string dimensions(const std::array<std::uint64_t, 4>& dims) {
    std::size_t rank = 4;
    while (rank > 1 && dims[rank - 1] == 1) --rank;
    std::string out = "[" + std::to_string(dims[0]);
    for (std::size_t i = 1; i < rank; ++i) out += ", " + std::to_string(dims[i]);
    return out + "]";
  }
  static void require_format(const gguf& file, const tensor_info& tensor, std::initializer_list<tensor_format> accepted) {
    std::string names;
    for (const tensor_format& f : accepted) {
      if (tensor.format == f) return;
      (names += names.empty() ? "" : ", ") += f.name;
    }
    file.fail("the tensor " + shown(tensor.name) + " is stored as " + std::string(tensor.format.name) + "; this program computes with " +
              names);
  }
};

}  // namespace llama
