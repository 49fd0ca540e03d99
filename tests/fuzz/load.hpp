// Everything the example engine reads of a model file before it computes: what the fuzzer drives and the corpus test replays.
#pragma once

#include <cstddef>
#include <span>

#include "llama/architecture.hpp"
#include "llama/chat_template.hpp"
#include "llama/gguf.hpp"
#include "llama/tokenizer.hpp"

namespace llama::testing {

inline void load(std::span<const std::byte> bytes) {
  const gguf file(bytes, "input");
  const model_config sizes(file);
  const model_weights weights(file, sizes);
  const tokenizer tokens(file, sizes.vocab_size);
  const std::string_view text = "ab 12\n<|im_end|>\xff";
  for (const bool is_markup : {false, true})
    for (const token id : tokens.encode(text, is_markup).ids) tokens.bytes_of(id);
  if (file.find<std::string_view>("tokenizer.chat_template")) tokens.encode(chat_template(file).render(text));
}

}  // namespace llama::testing
