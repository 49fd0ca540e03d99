// Completes a prompt with a model of the Llama architecture. examples/generate.sh builds and runs it; --help lists the options.

#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "llama/engine.hpp"

namespace {

using namespace llama;

struct options {
  engine_options engine;
  std::string prompt, prompt_file, draft = "none", stats;
  bool raw = false, score = false, check = false;
  std::size_t tokens = 256, draft_length = 8;
  std::uint64_t seed = 0;
  heddle::sampling::parameters sampling{.temperature = 0.f};
};

struct run {
  std::vector<token> tokens;  // generated, the one that ended the text included
  heddle::decode_stats stats{};
  double prefill_seconds = 0, decode_seconds = 0;
};

class stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

template <class Drafter>
run decode_with(engine& engine, Drafter& drafter, const std::vector<token>& prompt, const options& given, bool shows_text) {
  run out;
  const stopwatch prefill;
  engine.model().prefill(std::span(prompt).first(prompt.size() - 1));
  out.prefill_seconds = prefill.seconds();

  const stopwatch decoding;
  heddle::decode_loop loop{engine.model(),
                           drafter,
                           heddle::verify::match{.seed = given.seed},
                           heddle::sampling::chain{given.sampling},
                           {.prompt = prompt,
                            .max_new_tokens = static_cast<std::int64_t>(std::min(given.tokens, engine.context() - prompt.size())),
                            .draft_length = static_cast<std::int32_t>(given.draft_length),
                            .end_tokens = engine.tokens().end_tokens()}};
  utf8_stream text;
  while (!loop.done())
    for (const token id : loop.step()) {
      out.tokens.push_back(id);
      if (shows_text && !engine.tokens().is_control(id)) write(text.push(engine.tokens().bytes_of(id)));
    }
  out.decode_seconds = decoding.seconds();
  if (shows_text) write(text.finish() + "\n");
  out.stats = loop.stats();
  return out;
}

run decode(engine& engine, const std::string& draft, const std::vector<token>& prompt, const options& given, bool shows_text) {
  heddle::no_drafter none;
  if (draft == "none") return decode_with(engine, none, prompt, given, shows_text);
  heddle::prompt_lookup lookup{{.min_match = 2, .max_match = 8}};
  return decode_with(engine, lookup, prompt, given, shows_text);
}

void print_stats(const run& result, std::size_t prompt_tokens, const kv_cache& cache) {
  const auto rate = [](std::size_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0.0; };
  const cache_usage usage = cache.usage();
  const nlohmann::ordered_json stats{{"prompt_tokens", prompt_tokens},
                                     {"generated_tokens", result.tokens.size()},
                                     {"token_ids", result.tokens},
                                     {"prefill_tokens_per_second", rate(prompt_tokens - 1, result.prefill_seconds)},
                                     {"decode_tokens_per_second", rate(result.tokens.size(), result.decode_seconds)},
                                     {"rounds", result.stats.rounds},
                                     {"drafted", result.stats.drafted},
                                     {"accepted", result.stats.accepted},
                                     {"mean_accepted_tokens", result.stats.mean_accepted_tokens()},
                                     {"cache_bytes_live", usage.live_bytes},
                                     {"cache_bytes_resident", usage.resident_bytes}};
  write(stats.dump() + "\n");
}

// One line per token of the prompt with its log-probability after those before it, then their mean and the perplexity.
void score(engine& engine, const std::vector<token>& prompt) {
  constexpr std::size_t rows = 32;
  double sum = 0;
  std::string lines = nlohmann::ordered_json{{"id", prompt[0]}, {"log_prob", nullptr}}.dump() + "\n";
  for (std::size_t first = 0; first + 1 < prompt.size(); first += rows) {
    const std::size_t count = std::min(rows, prompt.size() - 1 - first);
    const auto logits = engine.model().append(std::span(prompt).subspan(first, count));
    for (std::size_t i = 0; i < count; ++i) {
      const token id = prompt[first + i + 1];
      const double log_prob = heddle::sampling::log_prob(logits[static_cast<std::int64_t>(i)], id);
      lines += nlohmann::ordered_json{{"id", id}, {"log_prob", log_prob}}.dump() + "\n";
      sum += log_prob;
    }
    write(lines);
    lines.clear();
  }
  const auto scored = static_cast<double>(prompt.size() - 1);
  nlohmann::ordered_json summary{{"tokens", prompt.size()}, {"mean_nll", nullptr}, {"perplexity", nullptr}};
  if (scored > 0) summary["mean_nll"] = -sum / scored, summary["perplexity"] = std::exp(-sum / scored);
  write(lines + summary.dump() + "\n");
}

// Decodes without and with drafts, into two caches, and compares the tokens and every byte of the rows.
void check(engine& engine, const std::vector<token>& prompt, const options& given) {
  const auto plain_cache = engine.new_cache(), draft_cache = engine.new_cache();
  engine.model().use(*plain_cache);
  const run plain = decode(engine, "none", prompt, given, true);
  engine.model().use(*draft_cache);
  const run drafted = decode(engine, "lookup", prompt, given, false);
  if (plain.tokens != drafted.tokens) throw std::runtime_error("check: decoding with drafts gave other tokens than without");
  if (!plain_cache->equals(*draft_cache))
    throw std::runtime_error("check: decoding with drafts left other bytes in the cache than without");
  std::fprintf(stderr, "check: %zu tokens and %zu bytes of cache are the same with drafts (%lld of %lld accepted) and without\n",
               plain.tokens.size(), plain_cache->usage().live_bytes, static_cast<long long>(drafted.stats.accepted),
               static_cast<long long>(drafted.stats.drafted));
}

std::string read_prompt(const options& given) {
  if (given.prompt_file.empty()) return given.prompt;
  std::ifstream in(given.prompt_file == "-" ? "/dev/stdin" : given.prompt_file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad() || !in.is_open()) throw std::runtime_error(given.prompt_file + ": cannot be read");
  return text;
}

void generate(options given) {
  given.engine.needs_chat_template = !given.raw && !given.score;
  given.engine.draft_rows = given.draft_length + 1;
  const std::string text = read_prompt(given);
  engine engine(given.engine);
  const encoding prompt = engine.encode(text);
  if (prompt.dropped_bytes != 0)
    std::fprintf(stderr, "generate: %zu bytes of the prompt have no token in this vocabulary and were left out\n", prompt.dropped_bytes);
  if (prompt.ids.empty()) throw std::runtime_error("the prompt is empty");
  if (prompt.ids.size() >= engine.context() + given.score)
    throw std::runtime_error("the prompt has " + std::to_string(prompt.ids.size()) + " tokens; the context holds " +
                             std::to_string(engine.context()) + (given.score ? "" : " and needs room for at least one more") +
                             " (--context N changes it)");
  if (given.score) return score(engine, prompt.ids);
  if (given.check) return check(engine, prompt.ids, given);
  const run result = decode(engine, given.draft, prompt.ids, given, true);
  if (given.stats == "json") print_stats(result, prompt.ids.size(), engine.model().cache());
}

}  // namespace

int main(int argc, char** argv) {
  options given;
  given.engine.threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app{"Completes a prompt with a model of the Llama architecture (GGUF)."};
  app.add_option("--model", given.engine.model, "GGUF file")->required();
  auto* const prompt = app.add_option_group("prompt");
  prompt->add_option("--prompt", given.prompt, "text of the prompt");
  prompt->add_option("--prompt-file", given.prompt_file, "file that holds the prompt, - for standard input");
  prompt->require_option(1);
  app.add_flag("--raw", given.raw, "complete the prompt as it stands, without the chat template");
  app.add_option("--tokens", given.tokens, "tokens to generate at most")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--temperature", given.sampling.temperature, "0: the most probable token")
      ->check(CLI::Range(0.f, 100.f))
      ->capture_default_str();
  app.add_option("--top-k", given.sampling.top_k, "sample from the k most probable tokens; 0: off")->check(CLI::NonNegativeNumber);
  app.add_option("--top-p", given.sampling.top_p, "sample from the most probable tokens with this mass")->check(CLI::Range(0.f, 1.f));
  app.add_option("--min-p", given.sampling.min_p, "sample from tokens with this share of the largest probability")
      ->check(CLI::Range(0.f, 1.f));
  app.add_option("--seed", given.seed, "the text is a function of model, prompt, sampling options and seed")->capture_default_str();
  app.add_option("--draft", given.draft, "where drafts come from: none, lookup (earlier text); the text does not depend on it")
      ->check(CLI::IsMember({"none", "lookup"}))
      ->capture_default_str();
  app.add_option("--draft-length", given.draft_length, "tokens to draft at most")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--cache", given.engine.cache, "how keys and values are stored")
      ->check(CLI::IsMember(cache_codecs()))
      ->capture_default_str();
  std::string activations = "int24";
  app.add_option("--activations", activations, "what inputs of matrix products are rounded to")
      ->check(CLI::IsMember({"f32", "int8", "int16", "int24"}))
      ->capture_default_str();
  app.add_option("--threads", given.engine.threads, "threads that compute")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--context", given.engine.context,
                 "tokens of prompt and completion together; default: 2048, or what the model was trained on");
  app.add_option("--stats", given.stats, "json: end with a line of statistics")->check(CLI::IsMember({"json"}));
  auto* const score = app.add_flag("--score", given.score, "generate nothing; print the log-probability of each token of the raw prompt");
  app.add_flag("--check", given.check, "decode without and with drafts and fail unless tokens and cache are the same")->excludes(score);
  try {
    app.parse(argc, argv);
    for (const auto precision : {linear::precision::f32, linear::precision::int8, linear::precision::int16, linear::precision::int24})
      if (activations == linear::name_of(precision)) given.engine.activations = precision;
    generate(given);
  } catch (const CLI::ParseError& usage) { return app.exit(usage); } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}
