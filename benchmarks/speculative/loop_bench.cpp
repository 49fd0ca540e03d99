// loop/<prompt>/int8/t2: SmolLM2-135M-Instruct completes a prompt (examples/llama/prompts) by 256 tokens at temperature 0, int8 activations, int8
// cache, two threads. The drafter is lookup or suffix and as long as the loop thinks right at each moment, from costs and acceptance that it measures
// itself, beginning anew in every run. End tokens do not end the text. In the same run, each text compared token for token:
//   vs_plain        time without drafts / time: medians of runs in turn
//   vs_best_fixed   time of the best fixed length of 2, 4, 8, 16 / time; best_fixed is that length
// HEDDLE_MODEL names the model file (examples/llama/fetch_model.sh FILE fetches it); without it, the one that examples/generate.sh has fetched.
#include <heddle/sampling/chain.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft/best_of.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft/suffix_drafter.hpp>
#include <heddle/speculative/draft_pacer.hpp>
#include <heddle/speculative/verify/match.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "llama/engine.hpp"

namespace {

using namespace llama;

const std::filesystem::path root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();

engine* shared_engine() {
  static const std::unique_ptr<engine> one = [] {
    const char* const named = std::getenv("HEDDLE_MODEL");
    const std::string model = named ? named : (root / "build/generate/models/SmolLM2-135M-Instruct.Q4_1.gguf").string();
    return !std::filesystem::exists(model) ? nullptr
                            : std::make_unique<engine>(engine_options{.model = model, .activations = linear::precision::int8, .cache = "int8", .threads = 2, .draft_rows = 32, .needs_chat_template = true});
  }();
  return one.get();
}

std::string prompt_text(const std::string& name) {
  std::ifstream in(root / "examples/llama/prompts" / (name + ".txt"));
  return {std::istreambuf_iterator<char>(in), {}};
}

struct outcome {
  double seconds;
  std::vector<token> tokens;
  heddle::decode_stats stats;
};
enum class lengths { none, fixed, paced };

outcome decode(engine& e, const std::vector<token>& prompt, lengths how, std::int32_t draft_length) {
  e.model().cache().truncate(0);
  e.model().prefill(std::span(prompt).first(prompt.size() - 1));
  const auto begin = std::chrono::steady_clock::now();
  heddle::prompt_lookup lookup;
  heddle::suffix_drafter suffix;
  heddle::best_of drafter{lookup, suffix};
  heddle::draft_pacer pacer;
  heddle::decode_loop loop{e.model(), drafter, heddle::verify::greedy{}, heddle::sampling::chain{heddle::sampling::parameters{.temperature = 0.f}},
                           {.prompt = prompt, .max_new_tokens = 256, .draft_length = how == lengths::none ? 0 : draft_length}};
  if (how == lengths::paced) loop.pace_by(pacer);
  while (!loop.done()) loop.step();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), {loop.tokens().begin(), loop.tokens().end()}, loop.stats()};
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void loop(benchmark::State& state, const std::string& name) {
  engine* const e = shared_engine();
  if (e == nullptr) return state.SkipWithError("no model: HEDDLE_MODEL does not name one, and examples/generate.sh has not fetched one");
  const std::vector<token> prompt = e->encode(prompt_text(name)).ids;
  std::vector<double> plain_seconds, paced_seconds;
  outcome plain{}, paced{};
  for (auto _ : state)
    for (int run = 0; run < 3; ++run) {
      plain = decode(*e, prompt, lengths::none, 0);
      paced = decode(*e, prompt, lengths::paced, 24);
      if (paced.tokens != plain.tokens) return state.SkipWithError("drafts changed the text");
      plain_seconds.push_back(plain.seconds), paced_seconds.push_back(paced.seconds);
    }
  double best = plain.seconds;
  std::int32_t best_length = 0;
  for (const std::int32_t length : {2, 4, 8, 16}) {
    const outcome fixed = decode(*e, prompt, lengths::fixed, length);
    if (fixed.tokens != plain.tokens) return state.SkipWithError("drafts changed the text");
    if (fixed.seconds < best) best = fixed.seconds, best_length = length;
  }
  state.counters["mean_accepted_tokens"] = paced.stats.mean_accepted_tokens();
  state.counters["drafted"] = static_cast<double>(paced.stats.drafted);
  state.counters["vs_plain"] = median(plain_seconds) / median(paced_seconds);
  state.counters["vs_best_fixed"] = best / median(paced_seconds);
  state.counters["best_fixed"] = best_length;
}

BENCHMARK_CAPTURE(loop, quote, "quote")->Name("loop/quote/int8/t2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(loop, edit, "edit")->Name("loop/edit/int8/t2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(loop, chat, "chat")->Name("loop/chat/int8/t2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(loop, list, "list")->Name("loop/list/int8/t2")->Unit(benchmark::kMillisecond);

}  // namespace
