// UTF-8 at the two borders of a tokenizer: text coming in is made well-formed, bytes going out are released only in whole characters.
// Both replace what is not well-formed (Unicode 15.0, table 3-7) by U+FFFD, one for every byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace llama {

enum class utf8_state { complete, truncated, invalid };

struct utf8_character {
  utf8_state state;
  std::size_t length;  // bytes of a complete character, else 1
};

// The character at the start of `text`, which must not be empty. `truncated`: the text ends inside what may still become a character.
inline utf8_character next_character(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {utf8_state::complete, 1};
  if (lead < 0xC2 || lead > 0xF4) return {utf8_state::invalid, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {utf8_state::truncated, 1};
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;   // else overlong
    if (i == 1 && lead == 0xED) high = 0x9F;  // else a surrogate
    if (i == 1 && lead == 0xF0) low = 0x90;   // else overlong
    if (i == 1 && lead == 0xF4) high = 0x8F;  // else beyond U+10FFFF
    if (byte(i) < low || byte(i) > high) return {utf8_state::invalid, 1};
  }
  return {utf8_state::complete, length};
}

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

inline std::string well_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const utf8_character next = next_character(text);
    out += next.state == utf8_state::complete ? text.substr(0, next.length) : replacement_character;
    text.remove_prefix(next.length);
  }
  return out;
}

// Turns a stream of byte strings, which may break characters anywhere, into a stream of well-formed ones. What it returns over time,
// finish() included, is well_formed() of all the bytes together; a character is held back only until its last byte has come.
class utf8_stream {
 public:
  std::string push(std::string_view bytes) {
    pending_ += bytes;
    std::string out;
    std::string_view rest = pending_;
    while (!rest.empty()) {
      const utf8_character next = next_character(rest);
      if (next.state == utf8_state::truncated) break;
      out += next.state == utf8_state::complete ? rest.substr(0, next.length) : replacement_character;
      rest.remove_prefix(next.length);
    }
    pending_.erase(0, pending_.size() - rest.size());
    return out;
  }
  std::string finish() {
    const std::string out = well_formed(pending_);
    pending_.clear();
    return out;
  }

 private:
  std::string pending_;
};

}  // namespace llama
