// A model of the Llama architecture in float64, written from its definition: the whole sequence at once, no cache, no blocks, every matrix
// spelt out. Also small random models to compare with.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "llama/architecture.hpp"
#include "llama/gguf.hpp"
#include "llama/gguf_builder.hpp"

namespace llama::testing {

inline double half_value(const std::byte* bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

// The elements of a tensor, by ggml's definitions of its block formats.
inline std::vector<double> elements(const tensor_info& t) {
  std::vector<double> out;
  for (std::size_t at = 0; at < t.data.size(); at += t.format.bytes) {
    const std::byte* const block = t.data.data() + at;
    const auto nibble = [&](const std::byte* codes, int i) {
      const int byte = std::to_integer<int>(codes[i % 16]);
      return i < 16 ? byte & 15 : byte >> 4;
    };
    if (t.format == format::f32) {
      float value;
      std::memcpy(&value, block, 4);
      out.push_back(value);
    } else if (t.format == format::f16) {
      out.push_back(half_value(block));
    } else if (t.format == format::bf16) {
      char upper[4] = {};
      std::memcpy(upper + 2, block, 2);
      float value;
      std::memcpy(&value, upper, 4);
      out.push_back(value);
    } else {
      for (int i = 0; i < 32; ++i) {
        const double scale = half_value(block);
        if (t.format == format::q8_0) out.push_back(scale * static_cast<signed char>(block[2 + i]));
        if (t.format == format::q4_0) out.push_back(scale * (nibble(block + 2, i) - 8));
        if (t.format == format::q4_1) out.push_back(scale * nibble(block + 4, i) + half_value(block + 2));
      }
    }
  }
  return out;
}

class reference_model {
 public:
  explicit reference_model(const gguf& file) : file_(file), sizes_(file) {}

  // Logits of every token.
  std::vector<std::vector<double>> logits(const std::vector<std::int32_t>& tokens) const {
    const std::size_t hidden = sizes_.hidden_size;
    const auto embedding = elements(*file_.find_tensor("token_embd.weight"));
    std::vector<std::vector<double>> x;
    for (const auto id : tokens) {
      const auto begin = embedding.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(id) * hidden);
      x.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(hidden));
    }
    for (std::size_t i = 0; i < sizes_.num_layers; ++i) layer("blk." + std::to_string(i) + ".", x);
    const char* const unembedding = file_.find_tensor("output.weight") ? "output.weight" : "token_embd.weight";
    for (auto& r : x) r = product(unembedding, norm("output_norm.weight", r));
    return x;
  }

 private:
  using row = std::vector<double>;

  row product(const std::string& name, const row& x) const {
    const auto w = elements(*file_.find_tensor(name));
    row out(w.size() / x.size());
    for (std::size_t o = 0; o < out.size(); ++o)
      for (std::size_t i = 0; i < x.size(); ++i) out[o] += w[o * x.size() + i] * x[i];
    return out;
  }
  row norm(const std::string& name, row x) const {
    const auto w = elements(*file_.find_tensor(name));
    double squares = 0;
    for (const double v : x) squares += v * v;
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] *= w[i] / std::sqrt(squares / static_cast<double>(x.size()) + double{sizes_.rms_epsilon});
    return x;
  }
  void rotate(row& x, std::size_t position) const {
    const std::size_t dim = sizes_.head_dim;
    for (std::size_t at = 0; at < x.size(); at += 2) {
      const double angle =
          static_cast<double>(position) * std::pow(double{sizes_.rope_base}, -static_cast<double>(at % dim) / static_cast<double>(dim));
      const double a = x[at], b = x[at + 1];
      x[at] = a * std::cos(angle) - b * std::sin(angle);
      x[at + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  void layer(const std::string& name, std::vector<row>& x) const {
    const std::size_t dim = sizes_.head_dim, group = sizes_.num_qo_heads / sizes_.num_kv_heads;
    std::vector<row> keys, values;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const row normed = norm(name + "attn_norm.weight", x[t]);
      keys.push_back(product(name + "attn_k.weight", normed));
      values.push_back(product(name + "attn_v.weight", normed));
      rotate(keys.back(), t);
      row query = product(name + "attn_q.weight", normed), mixed(query.size());
      rotate(query, t);
      for (std::size_t h = 0; h < sizes_.num_qo_heads; ++h) {
        row weights(t + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= t; ++j) {
          double dot = 0;
          for (std::size_t c = 0; c < dim; ++c) dot += query[h * dim + c] * keys[j][h / group * dim + c];
          sum += weights[j] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
        }
        for (std::size_t j = 0; j <= t; ++j)
          for (std::size_t c = 0; c < dim; ++c) mixed[h * dim + c] += weights[j] / sum * values[j][h / group * dim + c];
      }
      add(x[t], product(name + "attn_output.weight", mixed));
    }
    for (row& r : x) {
      const row normed = norm(name + "ffn_norm.weight", r);
      row gate = product(name + "ffn_gate.weight", normed);
      const row up = product(name + "ffn_up.weight", normed);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(r, product(name + "ffn_down.weight", gate));
    }
  }
  static void add(row& x, const row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const gguf& file_;
  model_config sizes_;
};

// Two layers of random weights in every format the engine computes with, an unembedding of its own, three query heads on each of two key
// heads.
inline std::string random_model(unsigned seed) {
  constexpr tiny_sizes n{.layers = 2, .hidden = 96, .feed_forward = 160, .query_heads = 6, .key_heads = 2, .context = 512};
  std::mt19937 random(seed);
  const auto uniform = [&] { return static_cast<float>(random()) / 4294967296.f - 0.5f; };
  const auto number = [](auto value, std::size_t bytes) { return std::string(reinterpret_cast<const char*>(&value), bytes); };
  const auto half = [&] { return number(static_cast<std::uint16_t>(0x1c00 + random() % 0x800), 2); };  // 2^-8 to 2^-6
  gguf_builder out = tiny_metadata(n);
  const auto matrix = [&](const std::string& name, std::uint64_t inputs, std::uint64_t outputs, tensor_format format) {
    std::string data;
    for (std::uint64_t block = 0; block < inputs * outputs / format.block; ++block) {
      if (format == format::f32) data += number(0.3f * uniform(), 4);
      else if (format == format::bf16) data += number(0.3f * uniform(), 4).substr(2);
      else if (format == format::f16) data += number(static_cast<std::uint16_t>((random() & 0x8000) | (0x2400 + random() % 0xc00)), 2);
      else {
        data += half();
        if (format == format::q4_1) data += number(static_cast<std::uint16_t>(0xa800 + random() % 0x400), 2);
        while (data.size() % format.bytes != 0) data += static_cast<char>(format == format::q8_0 ? random() % 64 - 32 : random());
      }
    }
    out.tensor(name, {inputs, outputs}, format, data);
  };
  const auto norm = [&](const std::string& name) {
    std::string data;
    for (std::uint32_t i = 0; i < n.hidden; ++i) data += number(1.f + uniform(), 4);
    out.tensor(name, {n.hidden}, format::f32, data);
  };
  matrix("token_embd.weight", n.hidden, 259, format::q8_0);
  matrix("output.weight", n.hidden, 259, format::f16);
  norm("output_norm.weight");
  for (std::uint32_t i = 0; i < n.layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    norm(layer + "attn_norm.weight");
    matrix(layer + "attn_q.weight", n.hidden, n.hidden, i == 0 ? format::q4_1 : format::f32);
    matrix(layer + "attn_k.weight", n.hidden, n.hidden / 3, i == 0 ? format::q4_1 : format::q8_0);
    matrix(layer + "attn_v.weight", n.hidden, n.hidden / 3, i == 0 ? format::q4_1 : format::q4_0);
    matrix(layer + "attn_output.weight", n.hidden, n.hidden, format::q8_0);
    norm(layer + "ffn_norm.weight");
    matrix(layer + "ffn_gate.weight", n.hidden, n.feed_forward, format::bf16);
    matrix(layer + "ffn_up.weight", n.hidden, n.feed_forward, i == 0 ? format::bf16 : format::q4_0);
    matrix(layer + "ffn_down.weight", n.feed_forward, n.hidden, i == 0 ? format::q4_1 : format::f16);
  }
  return out.bytes();
}

}  // namespace llama::testing
