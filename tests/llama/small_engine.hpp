// The engine on a small random model.
#pragma once

#include <heddle/core/thread_team.hpp>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "llama/gguf_builder.hpp"
#include "llama/model.hpp"
#include "llama/reference_model.hpp"

namespace llama::testing {

// A model from memory: there is no file to give pages back to.
struct small_engine {
  std::string bytes = random_model(11);
  gguf file{as_bytes(bytes), "small"};
  model_config config{file};
  heddle::thread_team team;
  std::unique_ptr<kv_cache> cache;
  model net;

  explicit small_engine(const char* codec = "f32", linear::precision activations = linear::precision::f32, std::size_t threads = 1,
                        int sequences = 1)
      : team(threads),
        cache(make_cache(codec, {static_cast<int>(config.num_layers), static_cast<int>(config.num_kv_heads),
                                 static_cast<int>(config.head_dim), 400, sequences})),
        net([](auto) {}, config, model_weights(file, config), activations, *cache, team) {}
};

inline std::vector<token> some_tokens(std::size_t count, unsigned seed = 5) {
  std::mt19937 random(seed);
  std::vector<token> out(count);
  for (token& id : out) id = static_cast<token>(random() % 259);
  return out;
}

}  // namespace llama::testing
