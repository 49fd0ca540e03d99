// Splits text into the pieces inside which byte pairs may merge: the rule that GGUF files call "smollm" (StarCoder and Command R use it
// too).
//
// The rule is given as two expressions applied one after the other: every digit (\p{N}) is cut out, then what lies between is split by
// GPT-2's
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// One pass does both here: a digit ends a run of spaces as the end of the text would. White space is Unicode's White_Space property, spelt
// out because PCRE2's \s counts U+180E as well. Letters and digits are those of the Unicode version PCRE2 was built with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace llama {

class pre_tokenizer {
 public:
  pre_tokenizer() {
    const std::string space = R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
    const std::string pattern = R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\p{L}\p{N})" + space + "]+" +  //
                                "|[" + space + R"(]+(?=[\p{N})" + space + R"(]|\z)|[)" + space + "]+";
    int error = 0;
    std::size_t position = 0;
    code_.reset(
        pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &position, nullptr));
    if (!code_)
      throw std::runtime_error("PCRE2 refuses the pre-tokenizer's expression at " + std::to_string(position) + ": " + message(error));
    pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE);  // where there is no JIT, matching interprets
  }

  // Calls piece(std::string_view) for each piece of `text`, in order; together they are the text. It has to be well-formed UTF-8.
  template <class Piece>
  void split(std::string_view text, Piece&& piece) const {
    const std::unique_ptr<pcre2_match_data_8, match_data_free> match(pcre2_match_data_create_8(1, nullptr));
    for (std::size_t begin = 0; begin < text.size();) {
      const int count = pcre2_match_8(code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), begin,
                                      PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, match.get(), nullptr);
      if (count < 0) throw std::runtime_error("PCRE2 cannot split the text at byte " + std::to_string(begin) + ": " + message(count));
      const std::size_t end = pcre2_get_ovector_pointer_8(match.get())[1];
      piece(text.substr(begin, end - begin));
      begin = end;
    }
  }

 private:
  struct code_free {
    void operator()(pcre2_code_8* code) const { pcre2_code_free_8(code); }
  };
  struct match_data_free {
    void operator()(pcre2_match_data_8* data) const { pcre2_match_data_free_8(data); }
  };
  static std::string message(int error) {
    char text[160] = {};
    pcre2_get_error_message_8(error, reinterpret_cast<PCRE2_UCHAR8*>(text), sizeof text);
    return text;
  }

  std::unique_ptr<pcre2_code_8, code_free> code_;
};

}  // namespace llama
