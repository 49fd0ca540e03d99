// The whole engine on the real model: against log-probabilities of another implementation, and against itself with and without drafts.
#include <gtest/gtest.h>
#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "llama/engine.hpp"
#include "llama/golden.hpp"

namespace {

using namespace llama;
using namespace llama::testing;

engine_options exact() {
  engine_options out{.model = *model_path(), .activations = linear::precision::f32, .cache = "f32"};
  out.threads = 2;
  return out;
}

// transformers, float32, weights dequantised from the same file (tests/golden/log_probs.py).
TEST(Golden, LogProbabilitiesAndGreedyContinuationEqualTransformers) {
  LLAMA_NEEDS_MODEL();
  engine engine(exact());
  const auto texts = golden("log_probs.json")["texts"];
  ASSERT_GE(texts.size(), 4u);
  std::size_t longest = 0;
  for (const auto& [name, text] : texts.items()) {
    const std::vector<token> ids = text["ids"];
    longest = std::max(longest, ids.size());
    engine.model().cache().truncate(0);
    std::size_t compared = 0;
    token next = -1;
    for (std::size_t first = 0; first < ids.size(); first += 64) {
      const std::size_t count = std::min<std::size_t>(64, ids.size() - first);
      const auto logits = engine.model().append(std::span(ids).subspan(first, count));
      for (std::size_t i = 0; i < count; ++i) {
        const auto row = logits[static_cast<std::int64_t>(i)];
        next = static_cast<token>(std::max_element(row.data(), row.data() + row.extent(0)) - row.data());
        if (first + i + 1 == ids.size()) break;
        const double expected = text["log_probs"][first + i + 1];
        if (expected <= -12) continue;
        ++compared;
        ASSERT_NEAR(heddle::sampling::log_prob(row, ids[first + i + 1]), expected, 2e-3) << name << ", token " << first + i + 1;
      }
    }
    EXPECT_GT(compared, ids.size() * 9 / 10) << name;
    for (const token expected : text["continuation"].get<std::vector<token>>()) {
      ASSERT_EQ(next, expected) << name;
      const auto row = engine.model().append(std::span(&expected, 1))[0];
      next = static_cast<token>(std::max_element(row.data(), row.data() + row.extent(0)) - row.data());
    }
  }
  EXPECT_GE(longest, 1500u);
}

struct decoded {
  std::vector<token> tokens;
  std::int64_t accepted;
  std::unique_ptr<kv_cache> cache;
};

template <class Drafter>
decoded decode(engine& engine, Drafter drafter, const heddle::sampling::parameters& sampling, std::int32_t draft_length) {
  const encoding prompt = engine.encode("Say the following five times: a heddle holds a thread, and a shaft holds many heddles.");
  decoded out{{}, 0, engine.new_cache()};
  engine.model().use(*out.cache);
  engine.model().prefill(std::span(prompt.ids).first(prompt.ids.size() - 1));
  heddle::decode_loop loop{engine.model(),
                           drafter,
                           heddle::verify::match{.seed = 17},
                           heddle::sampling::chain{sampling},
                           {.prompt = prompt.ids, .max_new_tokens = 80, .draft_length = draft_length}};
  while (!loop.done()) loop.step();
  out.tokens.assign(loop.tokens().begin(), loop.tokens().end());
  out.accepted = loop.stats().accepted;
  return out;
}

// For one seed the text and the cache do not depend on drafts, their length, or the number of threads, at any temperature.
TEST(Golden, DraftsAndThreadsChangeNeitherTextNorCache) {
  LLAMA_NEEDS_MODEL();
  engine_options options{.model = *model_path(), .cache = "int8", .draft_rows = 32, .needs_chat_template = true};
  engine serial(options);
  options.threads = 3;
  engine parallel(options);
  using heddle::sampling::parameters;
  for (const auto& sampling : {parameters{.temperature = 0.f}, parameters{.temperature = 0.7f, .top_k = 40, .top_p = 0.95f},
                               parameters{.temperature = 1.5f, .min_p = 0.05f}}) {
    const decoded plain = decode(serial, heddle::no_drafter{}, sampling, 8);
    std::int64_t accepted = 0;
    for (const std::int32_t draft_length : {1, 4, 31}) {
      const decoded drafted = decode(parallel, heddle::prompt_lookup{{.min_match = 1, .max_match = 8}}, sampling, draft_length);
      EXPECT_EQ(drafted.tokens, plain.tokens) << "temperature " << sampling.temperature << ", drafts of " << draft_length;
      EXPECT_TRUE(drafted.cache->equals(*plain.cache)) << "temperature " << sampling.temperature << ", drafts of " << draft_length;
      accepted += drafted.accepted;
    }
    if (sampling.temperature == 0.f) {
      EXPECT_GT(accepted, 20);  // drafts are worth something here, so the comparison has teeth
    }
  }
}

}  // namespace
