// Byte-level BPE as GPT-2 introduced it, read from the metadata of a GGUF file (tokenizer.ggml.model = "gpt2", tokenizer.ggml.pre =
// "smollm").
//
// Text is made well-formed UTF-8 (each byte that is not becomes U+FFFD), split into pieces, and in each piece adjacent tokens merge, best
// rank first and leftmost first among equals, until no pair of the merge list is left. Bytes for which the vocabulary has no token (SmolLM2
// lacks a few control characters and lead bytes) are left out, as in llama.cpp, and counted.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gguf.hpp"
#include "pre_tokenizer.hpp"
#include "utf8.hpp"

namespace llama {

using token = std::int32_t;

// A stretch of a prompt. Control tokens such as <|im_end|> are recognised in markup only: text that came from somebody else cannot forge
// them.
struct segment {
  std::string_view text;
  bool is_markup;
};

struct encoding {
  std::vector<token> ids;
  std::size_t dropped_bytes = 0;  // bytes without a token
};

class tokenizer {
 public:
  tokenizer(const tokenizer&) = delete;  // ids_ refers to bytes_
  // `vocab_size` is the number of embeddings the model has.
  tokenizer(const gguf& file, std::size_t vocab_size) {
    const auto model = file.get<std::string_view>("tokenizer.ggml.model");
    if (model != "gpt2") file.fail("has a tokenizer of kind " + shown(model) + "; this program implements byte-level BPE ('gpt2')");
    const auto pre = file.get<std::string_view>("tokenizer.ggml.pre");
    if (pre != "smollm") file.fail("splits text by the rule " + shown(pre) + "; this program implements 'smollm'");
    read_tokens(file);
    if (pieces_.size() != vocab_size)
      file.fail("names " + std::to_string(pieces_.size()) + " tokens but has " + std::to_string(vocab_size) + " embeddings");
    read_merges(file);
    const auto special = [&](std::string_view key) -> std::optional<token> {
      const auto id = file.find<std::uint32_t>(key);
      if (id && *id >= pieces_.size())
        file.fail("the key " + shown(key) + " holds " + std::to_string(*id) + ", not one of the " + std::to_string(pieces_.size()) +
                  " tokens");
      return id ? std::optional(static_cast<token>(*id)) : std::nullopt;
    };
    if (const auto id = special("tokenizer.ggml.eos_token_id")) end_tokens_.push_back(*id);
    if (const auto id = special("tokenizer.ggml.eot_token_id")) end_tokens_.push_back(*id);
    for (const token id : specials_)
      if (bytes_of(id) == "<|im_end|>" || bytes_of(id) == "<|endoftext|>") end_tokens_.push_back(id);
    if (file.find<bool>("tokenizer.ggml.add_bos_token").value_or(false)) {
      begin_token_ = special("tokenizer.ggml.bos_token_id");
      if (!begin_token_) file.fail("asks for a first token but the key 'tokenizer.ggml.bos_token_id' is missing");
    }
  }

  // Neighbouring segments are encoded as one text, cut only at special tokens.
  encoding encode(std::span<const segment> segments) const {
    encoding out;
    if (begin_token_) out.ids.push_back(*begin_token_);
    std::string plain;
    for (const segment& part : segments) {
      std::size_t begin = 0;
      for (std::size_t at = 0; at < part.text.size();) {
        const auto special = special_at(part.text.substr(at), part.is_markup);
        if (!special) {
          ++at;
          continue;
        }
        plain += part.text.substr(begin, at - begin);
        encode_plain(plain, out);
        plain.clear();
        out.ids.push_back(*special);
        begin = at += bytes_of(*special).size();
      }
      plain += part.text.substr(begin);
    }
    encode_plain(plain, out);
    return out;
  }
  encoding encode(std::string_view text, bool is_markup) const {
    const segment whole{text, is_markup};
    return encode(std::span(&whole, 1));
  }

  // The bytes a token stands for; those of one token need not be whole characters (see utf8_stream). Control tokens give their name.
  std::string_view bytes_of(token id) const {
    const piece& p = pieces_[static_cast<std::size_t>(id)];
    return std::string_view(bytes_).substr(p.begin, p.size);
  }
  bool is_control(token id) const { return pieces_[static_cast<std::size_t>(id)].kind == token_kind::control; }
  std::span<const token> end_tokens() const { return end_tokens_; }
  bool ends_text(token id) const { return std::find(end_tokens_.begin(), end_tokens_.end(), id) != end_tokens_.end(); }
  std::size_t size() const { return pieces_.size(); }

 private:
  enum class token_kind : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct piece {
    std::uint32_t begin, size;  // in bytes_
    token_kind kind;
  };
  struct merge {
    std::int32_t rank;
    token result;
  };
  static constexpr token none = -1;

  // GPT-2 writes each byte as one printable character: itself if it is printable Latin-1, else the next free one from U+0100 on.
  static constexpr std::array<std::int16_t, 0x144> byte_of_character() {
    std::array<std::int16_t, 0x144> out{};
    out.fill(-1);
    std::size_t next = 0x100;
    for (std::int16_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      out[printable ? static_cast<std::size_t>(byte) : next++] = byte;
    }
    return out;
  }
  // Appends the bytes that `text` writes; false if it is not written in that alphabet.
  static bool append_bytes(std::string_view text, std::string& out) {
    static constexpr auto table = byte_of_character();
    for (std::size_t i = 0; i < text.size(); ++i) {
      std::size_t character = static_cast<unsigned char>(text[i]);
      if (character >= 0x80) {
        if ((character & 0xE0) != 0xC0 || i + 1 == text.size()) return false;
        character = (character & 0x1F) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F);
      }
      if (character >= table.size() || table[character] < 0) return false;
      out += static_cast<char>(table[character]);
    }
    return true;
  }

  void read_tokens(const gguf& file) {
    const auto names = file.get_array<std::string_view>("tokenizer.ggml.tokens");
    const auto kinds = file.get_array<std::int32_t>("tokenizer.ggml.token_type");
    if (names.size() != kinds.size())
      file.fail("has " + std::to_string(names.size()) + " tokens but " + std::to_string(kinds.size()) + " token types");
    pieces_.reserve(names.size());
    for (std::size_t id = 0; id < names.size(); ++id) {
      const auto begin = bytes_.size();
      const auto title = [&] { return "token " + std::to_string(id) + ", " + shown(names[id]) + ","; };
      if (kinds[id] < 1 || kinds[id] > 6) file.fail(title() + " has the unknown type " + std::to_string(kinds[id]));
      const auto kind = static_cast<token_kind>(kinds[id]);
      if (kind != token_kind::normal) {
        if (names[id].empty()) file.fail(title() + " is empty");
        bytes_ += names[id];
        if (kind != token_kind::unused) specials_.push_back(static_cast<token>(id));
      } else if (!append_bytes(names[id], bytes_)) {
        file.fail(title() + " is not written in GPT-2's byte alphabet");
      }
      pieces_.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(bytes_.size() - begin), kind});
    }
    ids_.reserve(pieces_.size());
    for (std::size_t id = 0; id < pieces_.size(); ++id)
      if (pieces_[id].kind == token_kind::normal) ids_.emplace(bytes_of(static_cast<token>(id)), static_cast<token>(id));
    for (std::size_t byte = 0; byte < 256; ++byte) byte_tokens_[byte] = id_of(std::string(1, static_cast<char>(byte)));
    std::stable_sort(specials_.begin(), specials_.end(), [&](token a, token b) { return bytes_of(a).size() > bytes_of(b).size(); });
    for (const token id : specials_) special_begins_[static_cast<unsigned char>(bytes_of(id)[0])] = true;
  }

  void read_merges(const gguf& file) {
    const auto merges = file.get_array<std::string_view>("tokenizer.ggml.merges");
    merges_.reserve(merges.size());
    std::string pair;
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const auto space = merges[rank].find(' ');
      const auto refuse = [&](const char* why) { file.fail("merge " + std::to_string(rank) + ", " + shown(merges[rank]) + ", " + why); };
      if (space == std::string_view::npos) refuse("is not two tokens with a space between them");
      pair.clear();
      const bool has_left = append_bytes(merges[rank].substr(0, space), pair);
      const std::size_t middle = pair.size();
      if (!has_left || !append_bytes(merges[rank].substr(space + 1), pair)) refuse("is not written in GPT-2's byte alphabet");
      const std::string_view both = pair;
      const token left = id_of(both.substr(0, middle)), right = id_of(both.substr(middle)), result = id_of(both);
      if (left == none || right == none || result == none) refuse("names or makes a token that the vocabulary lacks");
      merges_.emplace(key_of(left, right), merge{static_cast<std::int32_t>(rank), result});
    }
  }

  token id_of(std::string_view bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? none : found->second;
  }
  static std::uint64_t key_of(token left, token right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  std::optional<token> special_at(std::string_view text, bool is_markup) const {
    if (!special_begins_[static_cast<unsigned char>(text[0])]) return std::nullopt;
    for (const token id : specials_)
      if ((is_markup || pieces_[static_cast<std::size_t>(id)].kind == token_kind::user_defined) && text.starts_with(bytes_of(id)))
        return id;
    return std::nullopt;
  }

  void encode_plain(std::string_view text, encoding& out) const {
    splitter_.split(well_formed(text), [&](std::string_view part) { merge_pairs(part, out); });
  }

  void merge_pairs(std::string_view text, encoding& out) const {
    struct symbol {
      token id;
      std::int32_t previous, next;
    };
    struct candidate {
      std::int32_t rank, left;
      token left_id, right_id;
      bool operator<(const candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
    };
    const auto count = static_cast<std::int32_t>(text.size());
    std::vector<symbol> symbols(text.size());
    std::priority_queue<candidate> candidates;
    const auto at = [&](std::int32_t i) -> symbol& { return symbols[static_cast<std::size_t>(i)]; };
    const auto consider = [&](std::int32_t left) {
      if (left < 0 || at(left).next >= count) return;
      const token left_id = at(left).id, right_id = at(at(left).next).id;
      if (left_id == none || right_id == none) return;
      if (const auto found = merges_.find(key_of(left_id, right_id)); found != merges_.end())
        candidates.push({found->second.rank, left, left_id, right_id});
    };
    for (std::int32_t i = 0; i < count; ++i)
      at(i) = {byte_tokens_[static_cast<unsigned char>(text[static_cast<std::size_t>(i)])], i - 1, i + 1};
    for (std::int32_t i = 0; i < count; ++i) consider(i);
    while (!candidates.empty()) {
      const candidate best = candidates.top();
      candidates.pop();
      const std::int32_t right = at(best.left).next;
      if (at(best.left).id != best.left_id || right >= count || at(right).id != best.right_id) continue;  // one side has merged since
      at(best.left).id = merges_.find(key_of(best.left_id, best.right_id))->second.result;
      at(best.left).next = at(right).next;
      at(right).id = none;
      if (at(best.left).next < count) at(at(best.left).next).previous = best.left;
      consider(best.left);
      consider(at(best.left).previous);
    }
    for (std::int32_t i = 0; i < count; i = at(i).next) {
      if (at(i).id == none) ++out.dropped_bytes;
      else out.ids.push_back(at(i).id);
    }
  }

  pre_tokenizer splitter_;
  std::string bytes_;
  std::vector<piece> pieces_;
  std::unordered_map<std::string_view, token> ids_;  // views of bytes_
  std::unordered_map<std::uint64_t, merge> merges_;
  std::array<token, 256> byte_tokens_{};
  std::vector<token> specials_, end_tokens_;  // specials: longest first
  std::array<bool, 256> special_begins_{};
  std::optional<token> begin_token_;
};

}  // namespace llama
