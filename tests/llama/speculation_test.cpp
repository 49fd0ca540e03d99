// Every drafter and rule of the programs on the engine: what a round leaves in the cache, what several sequences decode, and by which law.
#include <gtest/gtest.h>
#include <heddle/speculative/audit/exactness.hpp>
#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft_pacer.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include "llama/drafters.hpp"
#include "llama/engine.hpp"
#include "llama/golden.hpp"
#include "llama/small_engine.hpp"

namespace {

using namespace llama;
using namespace llama::testing;
using heddle::sampling::parameters;
namespace verify = heddle::verify;

// Repetitive enough for lookups.
std::vector<token> repeated_prompt(std::size_t length, unsigned seed = 5) {
  const auto piece = some_tokens(length / 3, seed);
  std::vector<token> out;
  while (out.size() < length) out.insert(out.end(), piece.begin(), piece.end());
  out.resize(length);
  return out;
}

// A drafter that is right most of the time, as a tree of chains that share beginnings: the model decides what the truth is.
struct planted {
  const std::vector<token>* text;
  std::mt19937 random{8};
  heddle::draft_nodes nodes{};
  std::int64_t branches = 0;
  heddle::draft_tree<draft_law::deterministic> propose(std::span<const token> context, std::int32_t budget) {
    nodes.start(context.back());
    std::int32_t truth = 0;
    for (std::int32_t i = 0; i < budget; ++i) {
      const std::size_t next = context.size() + static_cast<std::size_t>(nodes.depth(truth));
      if (random() % 3 == 0 && i > 0) nodes.add(static_cast<std::int32_t>(random() % static_cast<unsigned>(nodes.size())), static_cast<token>(1000 + i) % 259);
      else if (next < text->size()) truth = nodes.add(truth, (*text)[next]);
    }
    std::vector<std::pair<std::int32_t, token>> seen;  // no equal siblings
    heddle::draft_nodes unique;
    unique.start(context.back());
    std::vector<std::int32_t> place{0};
    for (std::int32_t u = 1; u < nodes.size(); ++u) {
      const std::int32_t parent = place[static_cast<std::size_t>(nodes.parent(u))];
      const auto at = std::find(seen.begin(), seen.end(), std::pair{parent, nodes.token(u)});
      if (at != seen.end()) {
        place.push_back(static_cast<std::int32_t>(at - seen.begin()) + 1);
        continue;
      }
      seen.emplace_back(parent, nodes.token(u));
      place.push_back(unique.add(parent, nodes.token(u)));
    }
    nodes = unique;
    for (std::int32_t u = 1; u < nodes.size(); ++u) branches += nodes.parent(u) != u - 1;
    return nodes.tree<draft_law::deterministic>();
  }
};

std::vector<token> decode_plainly(small_engine& e, const std::vector<token>& prompt, const parameters& p, std::int64_t count) {
  e.cache->truncate(0);
  e.net.prefill(std::span(prompt).first(prompt.size() - 1));
  heddle::sampling::row_workspace memory(259);
  std::vector<token> text = prompt;
  const chain policy{p};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto row = e.net.append(std::span(text).last(1))[0];
    text.push_back(heddle::sampling::sample_row(row, policy, {text, {}}, {.seed = 3, .position = static_cast<std::uint32_t>(text.size())}, memory).token);
  }
  return text;
}

// After every round the cache is that of decoding the same text token by token, bit for bit.
template <class Drafter>
void expect_plain_rounds(const char* codec, const char* name, Drafter& drafter, const std::vector<token>& prompt, const std::vector<token>& text, const parameters& p, small_engine& drafted, small_engine& plain) {
  drafted.cache->truncate(0), plain.cache->truncate(0);
  drafted.net.prefill(std::span(prompt).first(prompt.size() - 1));
  heddle::decode_loop loop{drafted.net, drafter, verify::match{.seed = 3}, chain{p},
                           {.prompt = prompt, .max_new_tokens = static_cast<std::int64_t>(text.size() - prompt.size()), .draft_length = 7}};
  while (!loop.done()) {
    loop.step();
    const auto now = loop.tokens();
    ASSERT_TRUE(std::equal(now.begin(), now.end(), text.begin())) << codec << " " << name << " at " << now.size();
    plain.net.append(now.subspan(static_cast<std::size_t>(plain.cache->length()), now.size() - 1 - static_cast<std::size_t>(plain.cache->length())));
    ASSERT_TRUE(drafted.cache->equals(*plain.cache)) << codec << " " << name << " at " << now.size();
  }
}

TEST(Speculation, EveryRoundLeavesThePlainCache) {
  const parameters policies[] = {{.temperature = 0.f}, {.temperature = 0.1f, .top_k = 20}, {.temperature = 1.2f, .repetition_penalty = 1.1f}};
  std::int64_t branches = 0;
  for (const auto& codec : cache_codecs()) {
    small_engine plain(codec.c_str(), linear::precision::int8), drafted(codec.c_str(), linear::precision::int8, 2);
    for (const auto& p : policies) {
      const auto prompt = repeated_prompt(57);
      const auto text = decode_plainly(plain, prompt, p, 36);
      for (const char* const name : {"auto", "tree:suffix", "self:1", "tree:self:1"}) {
        const auto drafter = make_drafter<draft_law::deterministic>(name, {drafted.net, 0, chain{p}, {.seed = 3}});
        expect_plain_rounds(codec.c_str(), name, *drafter, prompt, text, p, drafted, plain);
        if (HasFatalFailure()) return;
      }
      planted tree{.text = &text};
      expect_plain_rounds(codec.c_str(), "planted tree", tree, prompt, text, p, drafted, plain);
      branches += tree.branches;
    }
  }
  EXPECT_GT(branches, 50);
}

// The audit of speculative decoding against one token at a time finds no difference and no near tie, with any cache and any activations.
TEST(Speculation, TheExactnessAuditFindsNothing) {
  constexpr std::int64_t length = 48;
  for (const auto& [codec, activations] : {std::pair{"f32", linear::precision::f32}, {"f16", linear::precision::int24}, {"int8", linear::precision::int8}}) {
    small_engine plain(codec, activations), drafted(codec, activations, 2);
    std::vector<heddle::audit::run_comparison> runs;
    for (const char* const name : {"auto", "tree:suffix", "self:1", "tree:self:1", "planted tree"})
      for (const unsigned seed : {5u, 6u}) {
        const auto prompt = repeated_prompt(45, seed);
        const auto text = decode_plainly(plain, prompt, {.temperature = 0.f}, length);
        const chain policy{parameters{.temperature = 0.f}};
        drafted.cache->truncate(0);
        drafted.net.prefill(std::span(prompt).first(prompt.size() - 1));
        const auto run = [&](auto& drafter) {
          heddle::decode_loop loop{drafted.net, drafter, verify::match{.seed = 3}, policy, {.prompt = prompt, .max_new_tokens = length, .draft_length = 9}};  // greedy, at this temperature
          while (!loop.done()) loop.step();
          EXPECT_GT(loop.stats().drafted, 0) << name;
          const auto tokens = loop.tokens().subspan(prompt.size());
          return std::vector<token>(tokens.begin(), tokens.end());
        };
        std::vector<token> speculative;
        if (planted tree{.text = &text}; std::string(name) == "planted tree") speculative = run(tree);
        else speculative = run(*make_drafter<draft_law::deterministic>(name, {drafted.net, 0, policy, {.seed = 3}}));

        plain.cache->truncate(0);
        plain.net.prefill(std::span(prompt).first(prompt.size() - 1));
        std::vector<float> rows;
        for (std::int64_t i = 0; i < length; ++i) {
          const token last = i ? speculative[static_cast<std::size_t>(i) - 1] : prompt.back();
          const auto logits = plain.net.append(std::span(&last, 1));
          for (std::int64_t v = 0; v < logits.extent(1); ++v) rows.push_back(logits(0, v));
        }
        const heddle::tensor_view sequential{rows.data(), heddle::extents{length, static_cast<std::int64_t>(rows.size()) / length}};
        const auto check = heddle::audit::check_teacher_forced(sequential, speculative);
        EXPECT_EQ(check.exact, length) << codec << " " << name;
        const std::vector<token> reference(text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end());
        runs.push_back(heddle::audit::compare_runs(reference, speculative, sequential));
      }
    EXPECT_EQ(heddle::audit::summarise(runs).match_rate(), 1) << codec;
  }
}

// The whole model as its own drafter, with the noise of the target: everything is accepted. A layer less: not everything.
TEST(Speculation, TheWholeModelAgreesWithItself) {
  small_engine e("f16", linear::precision::int16);
  const auto prompt = some_tokens(20);
  for (const float temperature : {0.f, 1.f})
    for (const char* const name : {"self:2", "self:1"}) {
      e.cache->truncate(0);
      e.net.prefill(std::span(prompt).first(19));
      const chain policy{parameters{.temperature = temperature}};
      const auto drafter = make_drafter<draft_law::deterministic>(name, {e.net, 0, policy, {.seed = 3}});
      heddle::decode_loop loop{e.net, *drafter, verify::match{.seed = 3}, policy, {.prompt = prompt, .max_new_tokens = 40, .draft_length = 4}};
      while (!loop.done()) loop.step();
      if (name[5] == '2') {
        EXPECT_EQ(loop.stats().drafted, loop.stats().accepted);
        EXPECT_EQ(loop.stats().rounds, 8);
      } else {
        EXPECT_LT(loop.stats().accepted, loop.stats().drafted);
      }
    }
}

TEST(Speculation, DraftersOfAnotherNameAreRefused) {
  small_engine e;
  for (const char* const name : {"", "looup", "self:", "self:0", "self:3", "self:1x", "tree:self:9", "tree:lookup"})
    EXPECT_THROW(make_drafter<draft_law::deterministic>(name, {e.net, 0, chain{parameters{}}, {}}), std::invalid_argument) << name;
  EXPECT_THROW(make_drafter<draft_law::independent>("lookup", {e.net, 0, chain{parameters{}}, {}}), std::invalid_argument);
}

// Ragged drafts of five sequences, paced and not, in every kind: texts and caches are those of single decoding.
TEST(Speculation, ABatchDecodesWhatItsSequencesWouldAlone) {
  const std::vector<std::size_t> lengths{40, 1, 64, 9, 100};
  const char* const names[] = {"auto", "none", "self:1", "tree:self:1", "tree:suffix"};
  for (const char* const codec : {"int8", "bf16"})
    for (const bool paced : {false, true}) {
      small_engine together(codec, linear::precision::int8, 2, 5), alone(codec, linear::precision::int8);
      std::vector<std::vector<token>> prompts;
      std::vector<std::unique_ptr<any_drafter<draft_law::deterministic>>> drafters;
      std::vector<heddle::batch_request<any_drafter<draft_law::deterministic>, verify::match, chain>> requests;
      for (std::size_t s = 0; s < 5; ++s) prompts.push_back(lengths[s] > 20 ? repeated_prompt(lengths[s]) : some_tokens(lengths[s]));
      for (std::size_t s = 0; s < 5; ++s) {
        const auto sequence = static_cast<int>(s);
        const chain policy{parameters{.temperature = s % 2 ? 0.f : 0.7f}};
        together.net.prefill(std::span(prompts[s]).first(prompts[s].size() - 1), sequence);
        drafters.push_back(make_drafter<draft_law::deterministic>(names[s], {together.net, sequence, policy, {.seed = 3}}));
        requests.push_back({*drafters.back(), verify::match{.seed = 3}, policy, {.prompt = prompts[s], .max_new_tokens = 10 + 12 * sequence, .draft_length = 2 + sequence}});
      }
      heddle::decode_batch batch{together.net, std::span<const heddle::batch_request<any_drafter<draft_law::deterministic>, verify::match, chain>>(requests)};
      heddle::draft_pacer pacer;
      if (paced) batch.pace_by(pacer);
      while (!batch.done()) batch.step();
      for (std::size_t s = 0; s < 5; ++s) {
        const auto sequence = static_cast<int>(s);
        const auto text = decode_plainly(alone, prompts[s], {.temperature = s % 2 ? 0.f : 0.7f}, 10 + 12 * sequence);
        EXPECT_TRUE(std::equal(text.begin(), text.end(), batch.tokens(s).begin(), batch.tokens(s).end())) << names[s];
        EXPECT_TRUE(together.cache->equals(sequence, *alone.cache, 0)) << names[s];
      }
    }
}

// ---- laws ----

using counts = std::map<std::vector<token>, double>;

// The law of two tokens after a prompt, by the model and the chain.
template <class Net>
counts law_of_two(Net& net, const std::vector<token>& prompt, const chain& policy) {
  heddle::sampling::row_workspace memory(static_cast<std::int64_t>(net.config().vocab_size));
  counts out;
  const auto law_after = [&](const std::vector<token>& text) {
    net.cache().truncate(0);
    if (text.size() > 1) net.prefill(std::span(text).first(text.size() - 1));
    const auto row = net.append(std::span(text).last(1))[0];
    const auto law = heddle::sampling::law_of(row, policy, {text, {}}, {}, memory);
    std::vector<std::pair<token, double>> kept;
    for (std::size_t i = 0; i < law.tokens.size(); ++i) kept.emplace_back(law.tokens[i], law.probability(i));
    return kept;
  };
  for (const auto& [first, p] : law_after(prompt)) {
    std::vector<token> text = prompt;
    text.push_back(first);
    for (const auto& [second, q] : law_after(text)) out[{first, second}] = p * q;
  }
  return out;
}

template <class Rule, class Net>
counts sampled_pairs(Net& net, const char* name, const std::vector<token>& prompt, const chain& policy, int samples, std::int64_t& drafted, std::int64_t& accepted) {
  counts seen;
  net.cache().truncate(0);
  net.prefill(std::span(prompt).first(prompt.size() - 1));
  const auto length = net.cache().length();
  for (int i = 0; i < samples; ++i) {
    net.cache().truncate(length);
    const auto seed = static_cast<std::uint64_t>(i);
    const auto drafter = make_drafter<draft_law::independent>(name, {net, 0, policy, {.seed = seed}});
    heddle::decode_loop loop{net, *drafter, Rule{.seed = seed}, policy, {.prompt = prompt, .max_new_tokens = 2, .draft_length = 2}};
    while (!loop.done()) loop.step();
    ++seen[{loop.tokens().end() - 2, loop.tokens().end()}];
    drafted += loop.stats().drafted, accepted += loop.stats().accepted;
  }
  return seen;
}

// chi-square, cells with an expectation below 5 merged, at 1e-6 (Wilson and Hilferty's approximation of the quantile); nothing outside the support.
void expect_law(const counts& seen, const counts& law, int samples) {
  double statistic = 0, rest_seen = 0, rest_expected = 0;
  int cells = 0;
  for (const auto& [pair, n] : seen) EXPECT_TRUE(law.contains(pair));
  const auto add = [&](double n, double expected) { statistic += (n - expected) * (n - expected) / expected, ++cells; };
  for (const auto& [pair, p] : law) {
    const auto found = seen.find(pair);
    const double n = found == seen.end() ? 0 : found->second, expected = p * samples;
    if (expected < 5) rest_seen += n, rest_expected += expected;
    else add(n, expected);
  }
  if (rest_expected > 5) add(rest_seen, rest_expected);
  ASSERT_GE(cells, 4);
  const double freedom = cells - 1, spread = std::sqrt(2 / (9 * freedom));
  EXPECT_LT(statistic, freedom * std::pow(1 - 2 / (9 * freedom) + 4.7534 * spread, 3)) << cells << " cells";
}

TEST(Speculation, SampledDraftsKeepTheLawOnASmallModel) {
  small_engine e("f16", linear::precision::int8);
  const auto prompt = some_tokens(12);
  const chain policy{parameters{.temperature = 0.5f, .top_k = 3}};
  const counts law = law_of_two(e.net, prompt, policy);
  std::int64_t drafted = 0, accepted = 0;
  constexpr int samples = 4000;
  expect_law(sampled_pairs<verify::token>(e.net, "self:1", prompt, policy, samples, drafted, accepted), law, samples);
  expect_law(sampled_pairs<verify::block>(e.net, "self:1", prompt, policy, samples, drafted, accepted), law, samples);
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, drafted);
}

// Draws from a flatter version of a law of two tokens.
class flattened {
 public:
  flattened(const counts& law, std::size_t prompt, std::uint64_t seed) : law_(law), prompt_(prompt), seed_(seed) {}
  heddle::draft_tree<draft_law::independent> propose(std::span<const token> context, std::int32_t budget) {
    nodes_.start(context.back());
    row_of_.clear(), indptr_.assign(1, 0), tokens_.clear(), probabilities_.clear();
    std::vector<token> text(context.begin() + static_cast<std::ptrdiff_t>(prompt_), context.end());
    for (std::int32_t node = 0; node < budget && text.size() < 2; ++node) {
      std::map<token, double> q;
      for (const auto& [pair, p] : law_)
        if (std::equal(text.begin(), text.end(), pair.begin())) q[pair[text.size()]] += p;
      double sum = 0, below = 0;
      for (auto& [id, p] : q) sum += p = std::sqrt(p);
      const double u = heddle::uniform({.seed = seed_, .position = static_cast<std::uint32_t>(prompt_ + text.size()), .purpose = heddle::purpose::draft}) * sum;
      token drawn = q.begin()->first;
      for (const auto& [id, p] : q) {
        tokens_.push_back(id), probabilities_.push_back(static_cast<float>(p / sum));
        if (below <= u) drawn = id;
        below += p;
      }
      indptr_.push_back(static_cast<std::int64_t>(tokens_.size())), row_of_.push_back(node);
      nodes_.add(node, drawn), text.push_back(drawn);
    }
    row_of_.push_back(-1);
    return {nodes_.tokens(), nodes_.parents(), {.row_of = row_of_, .indptr = indptr_, .tokens = tokens_, .probabilities = probabilities_}};
  }

 private:
  const counts& law_;
  std::size_t prompt_;
  std::uint64_t seed_;
  heddle::draft_nodes nodes_;
  std::vector<std::int32_t> row_of_, tokens_;
  std::vector<std::int64_t> indptr_;
  std::vector<float> probabilities_;
};

// Sixteen sequences at a time, of one prompt with different seeds.
template <class Rule>
void expect_law_of_batches(engine& e, const std::vector<token>& prompt, const chain& policy, const counts& law, int samples) {
  constexpr int sequences = 16;
  const auto length = static_cast<std::int64_t>(prompt.size()) - 1;
  counts seen;
  std::int64_t drafted = 0, accepted = 0;
  for (int first = 0; first < samples; first += sequences) {
    std::vector<flattened> drafters;
    drafters.reserve(sequences);
    std::vector<heddle::batch_request<flattened, Rule, chain>> requests;
    for (int s = 0; s < sequences; ++s) {
      e.model().cache().truncate(length, s);
      const auto seed = static_cast<std::uint64_t>(first + s);
      drafters.emplace_back(law, prompt.size(), seed);
      requests.push_back({drafters.back(), Rule{.seed = seed}, policy, {.prompt = prompt, .max_new_tokens = 2, .draft_length = 2}});
    }
    heddle::decode_batch batch{e.model(), std::span<const heddle::batch_request<flattened, Rule, chain>>(requests)};
    while (!batch.done()) batch.step();
    for (std::size_t s = 0; s < batch.size(); ++s) {
      ++seen[{batch.tokens(s).end() - 2, batch.tokens(s).end()}];
      drafted += batch.stats(s).drafted, accepted += batch.stats(s).accepted;
    }
  }
  expect_law(seen, law, samples);
  EXPECT_GT(accepted, drafted / 4);
  EXPECT_LT(accepted, drafted * 9 / 10);
}

TEST(Speculation, SampledDraftsKeepTheLawOnTheRealModel) {
  LLAMA_NEEDS_MODEL();
  engine e({.model = *model_path(), .activations = linear::precision::int8, .cache = "int8", .threads = 2, .context = 64, .sequences = 16});
  const auto prompt = e.encode("<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n").ids;
  const chain policy{parameters{.temperature = 1.5f, .top_k = 4}};
  const counts law = law_of_two(e.model(), prompt, policy);
  for (int s = 0; s < 16; ++s) {
    e.model().cache().truncate(0, s);
    e.model().prefill(std::span(prompt).first(prompt.size() - 1), s);
  }
  expect_law_of_batches<verify::token>(e, prompt, policy, law, 320);
  expect_law_of_batches<verify::block>(e, prompt, policy, law, 320);
}

}  // namespace
