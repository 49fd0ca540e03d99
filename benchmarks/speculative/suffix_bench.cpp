// suffix/append/n<tokens>: a text into a suffix automaton, from nothing; suffix/lookup/n<tokens>: matches carried through a finished automaton of that
// text, one token of another text and a continuation of 8 tokens per item. Counters: bytes_per_token of the automaton, match: mean matched length.
// The text is written like prose in its statistics: words of a Zipf law over 50,000 tokens, each from the 40 successors of the one before with
// probability 3/4, and about one token in six lies in a passage of 10 to 200 tokens copied from earlier on (for lookup: from the automaton's text).
#include <heddle/speculative/draft/suffix_automaton.hpp>

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using namespace heddle;

constexpr std::size_t tokens = 1000000;
constexpr double copied = 0.002;   // of the decisions, not of the tokens

// `source` is what passages are copied from: the text itself if there is none.
std::vector<std::int32_t> prose(std::size_t n, unsigned seed, const std::vector<std::int32_t>* source = nullptr) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0., 1.);
  const auto zipf = [&](double ranks) { return static_cast<std::int32_t>(std::exp(uniform(random) * std::log(ranks))); };   // P(rank) ~ 1 / rank
  std::vector<std::int32_t> text{1};
  while (text.size() < n) {
    if (text.size() > 300 && uniform(random) < copied) {
      const auto& from = source ? *source : text;
      const auto length = 10 + random() % 190, start = random() % (from.size() - length);
      for (std::size_t i = 0; i < length; ++i) text.push_back(from[start + i]);
    } else if (uniform(random) < 0.75) {
      text.push_back(1 + static_cast<std::int32_t>((static_cast<std::uint32_t>(text.back()) * 2654435761u + static_cast<std::uint32_t>(zipf(40)) * 40503u) >> 8) % zipf(50000));
    } else {
      text.push_back(zipf(50000));
    }
  }
  text.resize(n);
  return text;
}

void append(benchmark::State& state) {
  const auto text = prose(tokens, 1);
  double bytes = 0;
  for (auto _ : state) {
    suffix_automaton automaton;
    automaton.append(text);
    bytes = static_cast<double>(automaton.bytes());
    benchmark::DoNotOptimize(automaton.num_states());
    state.counters["states_per_token"] = static_cast<double>(automaton.num_states()) / static_cast<double>(text.size());
  }
  state.counters["bytes_per_token"] = bytes / static_cast<double>(text.size());
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(tokens));
}

void lookup(benchmark::State& state) {
  suffix_automaton automaton;
  const auto text = prose(tokens, 1);
  automaton.append(text);
  const auto query = prose(100000, 2, &text);
  suffix_cursor cursor;
  std::size_t i = 0;
  double matched = 0, drafted = 0;
  for (auto _ : state) {
    cursor = automaton.advance(cursor, query[i]);
    const auto drafts = automaton.continuation(automaton.match_of(cursor), 8);
    for (const std::int32_t token : drafts) drafted += token >= 0;
    matched += cursor.length;
    if (++i == query.size()) i = 0, cursor = {};
  }
  state.counters["match"] = matched / static_cast<double>(state.iterations());
  state.counters["drafted"] = drafted / static_cast<double>(state.iterations());
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(append)->Name("suffix/append/n1000000")->Unit(benchmark::kMillisecond);
BENCHMARK(lookup)->Name("suffix/lookup/n1000000");

}  // namespace
