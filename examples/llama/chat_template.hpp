// A conversation of one question in ChatML, the form SmolLM2-Instruct was trained on.
//
// GGUF files carry their chat template as a Jinja program. This program does not run Jinja: it knows two templates by their text, the one
// of SmolLM2-Instruct and plain ChatML, writes what they would, and refuses every other.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gguf.hpp"
#include "tokenizer.hpp"

namespace llama {

class chat_template {
 public:
  explicit chat_template(const gguf& file) {
    const auto source = file.find<std::string_view>("tokenizer.chat_template");
    if (!source) file.fail("has no chat template; pass --raw to complete the prompt as it stands");
    std::string text;  // some converters leave Jinja's \n as two characters
    for (std::size_t i = 0; i < source->size(); ++i) {
      const bool is_escape = source->substr(i, 2) == "\\n";
      text += is_escape ? '\n' : (*source)[i];
      i += is_escape;
    }
    if (text == smollm2) system_ = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    else if (text != chatml)
      file.fail("has a chat template that this program does not implement (" + shown(*source) +
                "); pass --raw to complete the prompt as it stands");
  }

  // The segments to encode so that the model answers `question`; they refer to it.
  std::vector<segment> render(std::string_view question) const {
    std::vector<segment> out;
    if (!system_.empty()) out = {{"<|im_start|>system\n", true}, {system_, false}, {"<|im_end|>\n", true}};
    out.insert(out.end(), {{"<|im_start|>user\n", true}, {question, false}, {"<|im_end|>\n<|im_start|>assistant\n", true}});
    return out;
  }

 private:
  static constexpr std::string_view chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  static constexpr std::string_view smollm2 =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
      "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
      "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

  std::string_view system_;
};

}  // namespace llama
