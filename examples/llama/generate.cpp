// Completes prompts with a model of the Llama architecture. examples/generate.sh builds and runs it; --help lists the options.

#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft_pacer.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>
#include <heddle/speculative/verify/typical.hpp>

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

#include "llama/drafters.hpp"
#include "llama/engine.hpp"

namespace {

using namespace llama;

struct options {
  engine_options engine;
  std::vector<std::string> prompts, prompt_files;
  std::string draft = "none", verify = "match", stats;
  bool raw = false, score = false, check = false, fixed_length = false;
  std::size_t tokens = 256, draft_length = 24;
  std::uint64_t seed = 0;
  heddle::sampling::parameters sampling{.temperature = 0.f};
};

struct run {
  std::vector<token> tokens;  // generated, the one that ended the text included
  heddle::decode_stats stats{};
  double prefill_seconds = 0, decode_seconds = 0;  // of all prompts of a batch
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

using prompts = std::span<const std::vector<token>>;

// One prompt after the other, in one pass per round if there are several. Texts are shown as they come, those of a batch one after another at the end.
template <draft_law Law, class Rule, class... Tag>
std::vector<run> decode_by(engine& engine, std::string_view draft, const Rule& rule, prompts given_prompts, const options& given, bool shows_text, Tag... tag) {
  model& net = engine.model();
  std::vector<run> out(given_prompts.size());
  const chain policy{given.sampling};
  const stopwatch prefill;
  std::vector<std::unique_ptr<any_drafter<Law>>> drafters;
  std::vector<heddle::batch_request<any_drafter<Law>, Rule, chain>> requests;
  for (std::size_t i = 0; i < given_prompts.size(); ++i) {
    const std::vector<token>& prompt = given_prompts[i];
    llama::prefill(net, std::span(prompt).first(prompt.size() - 1), static_cast<int>(i), reads_hidden(draft));
    drafters.push_back(make_drafter<Law>(draft, {net, static_cast<int>(i), policy, {.seed = given.seed}}));
    requests.push_back({*drafters.back(), rule, policy,
                        {.prompt = prompt,
                         .max_new_tokens = static_cast<std::int64_t>(std::min(given.tokens, engine.context() - prompt.size())),
                         .draft_length = static_cast<std::int32_t>(given.draft_length),
                         .end_tokens = engine.tokens().end_tokens()}});
  }
  out[0].prefill_seconds = prefill.seconds();

  heddle::draft_pacer pacer;
  std::vector<utf8_stream> texts(out.size());
  const auto take = [&](std::size_t i, std::span<const token> emitted, bool shown) {
    for (const token id : emitted) {
      out[i].tokens.push_back(id);
      if (shown && !engine.tokens().is_control(id)) write(texts[i].push(engine.tokens().bytes_of(id)));
    }
  };
  const stopwatch decoding;
  if (out.size() == 1) {
    heddle::decode_loop loop{net, *drafters[0], rule, policy, requests[0].options, tag...};
    if (!given.fixed_length) loop.pace_by(pacer);
    while (!loop.done()) take(0, loop.step(), shows_text);
    if (shows_text) write(texts[0].finish() + "\n");
    out[0].stats = loop.stats();
  } else {
    heddle::decode_batch batch{net, std::span<const heddle::batch_request<any_drafter<Law>, Rule, chain>>(requests), tag...};
    if (!given.fixed_length) batch.pace_by(pacer);
    while (!batch.done()) {
      batch.step();
      for (std::size_t i = 0; i < out.size(); ++i) take(i, batch.emitted(i), false);
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (batch.status(i) != heddle::status::ok) throw std::runtime_error("prompt " + std::to_string(i + 1) + ": the model's logits are not numbers");
      out[i].stats = batch.stats(i);
    }
  }
  out[0].decode_seconds = decoding.seconds();
  if (out.size() > 1 && shows_text)
    for (std::size_t i = 0; i < out.size(); ++i) {
      write("--- " + std::to_string(i + 1) + "\n");
      for (const token id : out[i].tokens)
        if (!engine.tokens().is_control(id)) write(texts[i].push(engine.tokens().bytes_of(id)));
      write(texts[i].finish() + "\n");
    }
  return out;
}

std::vector<run> decode(engine& engine, const std::string& draft, prompts given_prompts, const options& given, bool shows_text) {
  using heddle::draft_law;
  namespace verify = heddle::verify;
  const auto by = [&]<draft_law Law>(const auto& rule, auto... tag) { return decode_by<Law>(engine, draft, rule, given_prompts, given, shows_text, tag...); };
  if (given.verify == "match") return by.template operator()<draft_law::deterministic>(verify::match{.seed = given.seed});
  if (given.verify == "greedy") return by.template operator()<draft_law::deterministic>(verify::greedy{});
  const auto by_law = [&](const auto& rule, auto... tag) {
    return draws_drafts(draft) ? by.template operator()<draft_law::independent>(rule, tag...) : by.template operator()<draft_law::deterministic>(rule, tag...);
  };
  if (given.verify == "token") return by_law(verify::token{.seed = given.seed});
  if (given.verify == "block") return by_law(verify::block{.seed = given.seed});
  return by_law(verify::typical{.seed = given.seed}, heddle::allow_lossy);
}

nlohmann::ordered_json stats_of(const run& result, std::size_t prompt_tokens) {
  std::vector<double> by_slot;
  for (std::int32_t slot = 1; slot <= heddle::decode_stats::num_slots && result.stats.drafted_at[slot - 1] > 0; ++slot) by_slot.push_back(result.stats.acceptance(slot));
  return {{"prompt_tokens", prompt_tokens},
          {"generated_tokens", result.tokens.size()},
          {"token_ids", result.tokens},
          {"rounds", result.stats.rounds},
          {"drafted", result.stats.drafted},
          {"accepted", result.stats.accepted},
          {"mean_accepted_tokens", result.stats.mean_accepted_tokens()},
          {"acceptance_by_slot", by_slot}};
}

void print_stats(const std::vector<run>& results, prompts given_prompts, const kv_cache& cache) {
  const auto rate = [](std::size_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0.0; };
  const cache_usage usage = cache.usage();
  std::size_t prefilled = 0, generated = 0;
  nlohmann::ordered_json stats, each = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < results.size(); ++i) {
    prefilled += given_prompts[i].size() - 1, generated += results[i].tokens.size();
    each.push_back(stats_of(results[i], given_prompts[i].size()));
  }
  if (results.size() == 1) stats = each[0];
  else stats["prompts"] = each;
  stats["prefill_tokens_per_second"] = rate(prefilled, results[0].prefill_seconds);
  stats["decode_tokens_per_second"] = rate(generated, results[0].decode_seconds);
  stats["cache_bytes_live"] = usage.live_bytes;
  stats["cache_bytes_resident"] = usage.resident_bytes;
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

// Decodes with drafts, all prompts together, and without, each alone, into caches of their own, and compares the tokens and every byte of the rows.
void check(engine& engine, prompts given_prompts, const options& given) {
  const auto draft_cache = engine.new_cache(static_cast<int>(given_prompts.size())), plain_cache = engine.new_cache();
  engine.model().use(*draft_cache);
  const auto drafted = decode(engine, given.draft == "none" ? "lookup" : given.draft, given_prompts, given, true);
  engine.model().use(*plain_cache);
  std::size_t tokens = 0;
  long long accepted = 0, proposed = 0;
  for (std::size_t i = 0; i < given_prompts.size(); ++i) {
    plain_cache->truncate(0);
    const run plain = decode(engine, "none", given_prompts.subspan(i, 1), given, false)[0];
    if (plain.tokens != drafted[i].tokens) throw std::runtime_error("check: decoding with drafts gave other tokens than without");
    if (!plain_cache->equals(0, *draft_cache, static_cast<int>(i)))
      throw std::runtime_error("check: decoding with drafts left other bytes in the cache than without");
    tokens += plain.tokens.size(), accepted += drafted[i].stats.accepted, proposed += drafted[i].stats.drafted;
  }
  std::fprintf(stderr, "check: %zu tokens and %zu bytes of cache are the same with drafts (%lld of %lld accepted) and without\n", tokens,
               draft_cache->usage().live_bytes, accepted, proposed);
}

std::vector<std::string> read_prompts(const options& given) {
  std::vector<std::string> texts = given.prompts;
  for (const std::string& file : given.prompt_files) {
    std::ifstream in(file == "-" ? "/dev/stdin" : file, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>{});
    if (in.bad() || !in.is_open()) throw std::runtime_error(file + ": cannot be read");
  }
  return texts;
}

void generate(options given) {
  constexpr std::size_t tree_rows = 64;  // of a tree before its best nodes are chosen
  given.engine.needs_chat_template = !given.raw && !given.score;
  given.engine.draft_rows = std::max(given.draft_length + 1, tree_rows);
  const std::vector<std::string> texts = read_prompts(given);
  given.engine.sequences = texts.size();
  engine engine(given.engine);
  std::vector<std::vector<token>> ids;
  for (const std::string& text : texts) {
    const encoding prompt = engine.encode(text);
    if (prompt.dropped_bytes != 0)
      std::fprintf(stderr, "generate: %zu bytes of the prompt have no token in this vocabulary and were left out\n", prompt.dropped_bytes);
    if (prompt.ids.empty()) throw std::runtime_error("the prompt is empty");
    if (prompt.ids.size() >= engine.context() + given.score)
      throw std::runtime_error("the prompt has " + std::to_string(prompt.ids.size()) + " tokens; the context holds " +
                               std::to_string(engine.context()) + (given.score ? "" : " and needs room for at least one more") +
                               " (--context N changes it)");
    ids.push_back(prompt.ids);
  }
  if (given.score) return score(engine, ids[0]);
  if (given.check) return check(engine, ids, given);
  const auto results = decode(engine, given.draft, ids, given, true);
  if (given.stats == "json") print_stats(results, ids, engine.model().cache());
}

}  // namespace

int main(int argc, char** argv) {
  options given;
  given.engine.threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app{"Completes prompts with a model of the Llama architecture (GGUF)."};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--model", given.engine.model, "GGUF file")->required();
  auto* const prompt = app.add_option_group("prompt");
  prompt->add_option("--prompt", given.prompts, "text of a prompt; given several times: all are completed together, one pass of the model for all")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  prompt->add_option("--prompt-file", given.prompt_files, "file that holds a prompt, - for standard input; several times: as above")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
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
  app.add_option("--draft", given.draft,
                 "where drafts come from: none; lookup, suffix, tree:suffix (earlier text), auto (the better of lookup and suffix); self:LAYERS, "
                 "tree:self:LAYERS (the model's first layers); heads:FILE, tree:heads:FILE (heads trained by distill_drafter)")
      ->capture_default_str();
  app.add_option("--verify", given.verify,
                 "how drafts are accepted: match or greedy (the text does not depend on drafts), token, block (its law does not), typical "
                 "(lossy)")
      ->check(CLI::IsMember({"match", "greedy", "token", "block", "typical"}))
      ->capture_default_str();
  app.add_option("--draft-length", given.draft_length, "tokens to draft at most in a round; as many as pay, by what passes cost and drafts brought")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_flag("--fixed-length", given.fixed_length, "draft --draft-length tokens in every round");
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
    if (given.check && given.verify != "match" && given.verify != "greedy")
      throw std::runtime_error("--check compares texts that do not depend on drafts: --verify match or greedy");
    generate(given);
  } catch (const CLI::ParseError& usage) { return app.exit(usage); } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}
