// A model file made ready to decode: tokenizer, chat template, weights, cache and threads.
#pragma once

#include <heddle/core/thread_team.hpp>
#include <heddle/linear/format.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "architecture.hpp"
#include "chat_template.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "mapped_file.hpp"
#include "model.hpp"
#include "tokenizer.hpp"

namespace llama {

struct engine_options {
  std::string model;
  linear::precision activations = linear::precision::int24;
  std::string cache = "f16";
  std::size_t threads = 1;
  std::size_t context = 0;      // tokens; 0: 2,048 or as many as the model was trained on, if those are fewer
  std::size_t draft_rows = 16;  // rows that a step may hold beyond the context
  std::size_t sequences = 1;    // decoded at once
  bool needs_chat_template = false;
};

class engine {
 public:
  explicit engine(const engine_options& options) : team_(options.threads) {
    const mapped_file bytes(options.model);
    const gguf file(bytes.bytes(), options.model);
    const model_config config(file);
    const model_weights weights(file, config);
    if (options.needs_chat_template) chat_.emplace(file);
    context_ = options.context ? options.context : std::min<std::size_t>(2048, config.context_length);
    if (context_ > config.context_length)
      file.fail("was trained on contexts of " + std::to_string(config.context_length) + " tokens; a context of " +
                std::to_string(context_) + " was asked for");
    auto tokens = std::async(std::launch::async, [&] { return std::make_unique<tokenizer>(file, config.vocab_size); });
    shape_ = {static_cast<int>(config.num_layers), static_cast<int>(config.num_kv_heads), static_cast<int>(config.head_dim),
              static_cast<std::int64_t>(context_ + options.draft_rows), static_cast<int>(options.sequences)};
    codec_ = options.cache;
    cache_ = new_cache(shape_.num_sequences);
    model_.emplace([&](auto range) { bytes.drop(range); }, config, weights, options.activations, *cache_, team_);
    tokens_ = tokens.get();
  }

  llama::model& model() { return *model_; }
  const tokenizer& tokens() const { return *tokens_; }
  std::size_t context() const { return context_; }
  std::unique_ptr<kv_cache> new_cache(int sequences = 1) const {
    cache_shape shape = shape_;
    shape.num_sequences = sequences;
    return make_cache(codec_, shape);
  }

  encoding encode(std::string_view prompt) const { return chat_ ? tokens_->encode(chat_->render(prompt)) : tokens_->encode(prompt, true); }

 private:
  heddle::thread_team team_;
  std::optional<chat_template> chat_;
  std::size_t context_ = 0;
  std::string codec_;
  cache_shape shape_{};
  std::unique_ptr<tokenizer> tokens_;
  std::unique_ptr<kv_cache> cache_;
  std::optional<llama::model> model_;
};

}  // namespace llama
