// Small vocabularies of byte strings with many common prefixes.
#pragma once
#include <heddle/distillation/byte_vocabulary.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace test {

struct vocabulary {
  std::vector<std::string> strings;
  std::string bytes;
  std::vector<std::int64_t> offsets{0};

  explicit vocabulary(std::vector<std::string> tokens) : strings(std::move(tokens)) {
    for (const std::string& token : strings) bytes += token, offsets.push_back(static_cast<std::int64_t>(bytes.size()));
  }
  heddle::distillation::vocabulary_bytes view() const { return {std::span(bytes.data(), bytes.size()), offsets}; }
  std::vector<unsigned char> as_unsigned(std::int32_t v) const {
    const std::string& token = strings[static_cast<std::size_t>(v)];
    return {token.begin(), token.end()};
  }
};

inline std::string random_bytes(std::size_t length, std::mt19937& random) {
  std::string text;
  for (; length > 0; --length) text += "ab\xc3\x00"[random() % 4];
  return text;
}
inline vocabulary random_vocabulary(std::size_t size, std::mt19937& random) {
  std::vector<std::string> tokens;
  for (; size > 0; --size) tokens.push_back(random_bytes(random() % 5, random));
  return vocabulary(std::move(tokens));
}

}  // namespace test
