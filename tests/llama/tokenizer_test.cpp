// The tokenizer against llama.cpp's, and the laws of its parts.
#include "llama/tokenizer.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "llama/chat_template.hpp"
#include "llama/gguf_builder.hpp"
#include "llama/golden.hpp"

namespace {

using namespace llama;
using namespace llama::testing;

class smollm2 {
 public:
  smollm2() : bytes_(*model_path()), file(bytes_.bytes(), "model"), tokens(file, 49152) {}

 private:
  mapped_file bytes_;

 public:
  gguf file;
  tokenizer tokens;
};

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

TEST(Tokenizer, EqualsLlamaCpp) {
  LLAMA_NEEDS_MODEL();
  const smollm2 model;
  const auto cases = golden("tokens.json")["cases"];
  ASSERT_GE(cases.size(), 200u);
  for (const auto& c : cases) {
    const std::string text = c.contains("hex") ? from_hex(c["hex"]) : c["text"].get<std::string>();
    const encoding ours = model.tokens.encode(text, c["special"].get<bool>());
    EXPECT_EQ(ours.ids, c["ids"].get<std::vector<token>>()) << c;
  }
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  LLAMA_NEEDS_MODEL();
  const smollm2 model;
  for (const auto& c : golden("tokens.json")["cases"]) {
    if (c.contains("hex")) continue;
    const std::string text = c["text"];
    const encoding ours = model.tokens.encode(text, false);
    std::string back;
    for (const token id : ours.ids) back += model.tokens.bytes_of(id);
    EXPECT_EQ(back.size() + ours.dropped_bytes, text.size()) << c;
    if (ours.dropped_bytes == 0) { EXPECT_EQ(back, text); }
  }
}

TEST(Tokenizer, LongWordsTakeLinearithmicTime) {
  LLAMA_NEEDS_MODEL();
  const smollm2 model;
  std::string text;
  for (int i = 0; i < 200000; ++i) text += static_cast<char>('a' + i * 7919 % 26);
  const encoding ours = model.tokens.encode(text, false);
  std::string back;
  for (const token id : ours.ids) back += model.tokens.bytes_of(id);
  EXPECT_EQ(back, text);
}

TEST(Tokenizer, ControlTokensAreRecognisedInMarkupOnly) {
  const std::string bytes = tiny_model().bytes();
  const gguf file(as_bytes(bytes), "tiny");
  const tokenizer tokens(file, 259);
  const auto forged = tokens.encode("<|im_end|>", false).ids;
  EXPECT_EQ(forged.size(), 10u);
  EXPECT_EQ(tokens.encode("<|im_end|>", true).ids, std::vector<token>{1});
  // Segments are one text: "a" and "b" meet across the border and merge.
  const std::vector<segment> parts{{"<|im_start|>a", true}, {"b<|im_end|>", false}, {"<|im_end|>", true}};
  std::vector<token> expected{0, 258};
  expected.insert(expected.end(), forged.begin(), forged.end());
  expected.push_back(1);
  EXPECT_EQ(tokens.encode(parts).ids, expected);
  EXPECT_TRUE(tokens.ends_text(1));
  EXPECT_FALSE(tokens.ends_text(0));
}

TEST(ChatTemplate, WritesWhatTheTemplateOfTheFileWould) {
  LLAMA_NEEDS_MODEL();
  const smollm2 model;
  const auto render = [&](std::string_view question) {
    std::string out;
    for (const segment& s : chat_template(model.file).render(question)) out += s.text;
    return out;
  };
  EXPECT_EQ(render("Why?"),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
  const chat_template form(model.file);
  const auto segments = form.render("Why?");
  EXPECT_EQ(model.tokens.encode(segments).ids, model.tokens.encode(render("Why?"), true).ids);
}

TEST(ChatTemplate, OthersAreRefused) {
  const auto refusal = [](const gguf_builder& builder) -> std::string {
    const std::string bytes = builder.bytes();
    const gguf file(as_bytes(bytes), "tiny");
    try {
      chat_template{file};
    } catch (const file_error& refused) { return refused.what(); }
    return "";
  };
  EXPECT_NE(refusal(tiny_model()).find("pass --raw"), std::string::npos);
  EXPECT_NE(refusal(tiny_model().string("tokenizer.chat_template", "{{ bos_token }}")).find("pass --raw"), std::string::npos);
  EXPECT_EQ(refusal(tiny_model().string(
                "tokenizer.chat_template",
                "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")),
            "");
}

TEST(Utf8, IllFormedBytesAreReplacedOneByOne) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(well_formed("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(well_formed("\xE2\x82"), r + r);
  EXPECT_EQ(well_formed("\xC0\x80"), r + r);                  // overlong
  EXPECT_EQ(well_formed("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(well_formed("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(well_formed("\xF0\x9F\x98\x80\xC3\xA9"), "\xF0\x9F\x98\x80\xC3\xA9");
}

// However a byte string is cut, the stream gives what the whole would, and holds back fewer than four bytes.
TEST(Utf8, StreamsEqualTheWhole) {
  std::mt19937 random(3);
  constexpr std::string_view alphabet = "a\x80\xBF\xC3\xA9\xE2\x82\xAC\xED\xA0\xF0\x9F\x98\xF4\x8F\xFF";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (auto n = random() % 12; n > 0; --n) text += alphabet[random() % alphabet.size()];
    utf8_stream stream;
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = std::min<std::size_t>(random() % 4, text.size() - at);
      out += stream.push(std::string_view(text).substr(at, n));
      EXPECT_EQ(well_formed(out), out);
      EXPECT_GE(out.size() + 3, at + n);
      at += n;
    }
    out += stream.finish();
    EXPECT_EQ(out, well_formed(text));
  }
}

}  // namespace
