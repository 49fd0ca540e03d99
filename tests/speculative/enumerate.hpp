#pragma once
// Exact enumeration of a verifier: all drafts times all of its decisions, each with its probability.
#include <heddle/speculative/verify/acceptance.hpp>
#include <heddle/sampling/row.hpp>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace enumeration {

using tokens = std::vector<std::int32_t>;
using row = std::vector<double>;
using law_of_prefix = std::function<row(const tokens&)>;   // next-token law after the tokens drafted so far

// The chances of a verifier, all of them in turn: run(f) calls f until every sequence of choices has been taken; probability() is that of the
// present one.
class every_choice {
 public:
  template <class F>
  void run(const F& f) {
    script_.clear();
    do {
      at_ = 0, probability_ = 1;
      f();
    } while (advance());
  }
  double probability() const { return probability_; }

  std::size_t choose(const row& weights) {
    if (at_ == script_.size()) {
      script_.push_back({0, weights});
      skip_impossible();
    }
    const auto& [option, w] = script_[at_++];
    double sum = 0;
    for (double x : w) sum += x;
    probability_ *= w[option] / sum;
    return option;
  }

  // what a verifier asks for
  bool accept(std::int64_t, std::uint32_t, double p, double q) {
    const double a = heddle::verify::accept_probability(p, q);
    return choose({a, 1 - a}) == 0;
  }
  std::size_t first(std::int64_t, std::span<const double> probabilities) {
    row all(probabilities.begin(), probabilities.end());
    double rest = 1;
    for (const double x : all) rest -= x;
    all.push_back(rest > 1e-15 ? rest : 0);
    return choose(all);
  }
  std::size_t pick(std::int64_t, std::span<const double> weights, heddle::purpose = heddle::purpose::residual) { return choose({weights.begin(), weights.end()}); }
  template <class Row, class Chain>
  heddle::sampling::drawn plain(std::int64_t position, const Row& logits, const Chain& policy, const heddle::sampling::history& before, heddle::sampling::row_workspace& memory, heddle::sampling::draw = {}) {
    const auto law = heddle::sampling::law_of(logits, policy, before, at(position, heddle::purpose::sample, 0), memory);
    row p;
    for (std::size_t i = 0; i < law.tokens.size(); ++i) p.push_back(law.probability(i));
    return {law.tokens[choose(p)], law.status};
  }
  heddle::random_key at(std::int64_t position, heddle::purpose purpose, std::uint32_t index) const {
    return {.position = static_cast<std::uint32_t>(position), .purpose = purpose, .index = index};
  }

 private:
  struct choice {
    std::size_t option;
    row weights;
  };
  void skip_impossible() {
    while (script_.back().option < script_.back().weights.size() && script_.back().weights[script_.back().option] <= 0) ++script_.back().option;
  }
  bool advance() {
    for (; !script_.empty(); script_.pop_back()) {
      ++script_.back().option;
      skip_impossible();
      if (script_.back().option < script_.back().weights.size()) return true;
    }
    return false;
  }
  std::vector<choice> script_;
  std::size_t at_ = 0;
  double probability_ = 1;
};

// Adds `probability` times the target's law of continuations to every text of the given length that begins with `text`.
inline void extend(tokens text, double probability, std::size_t length, const law_of_prefix& p, std::map<tokens, double>& out) {
  if (text.size() > length) text.resize(length);
  if (text.size() == length) {
    out[text] += probability;
    return;
  }
  const row next = p(text);
  text.push_back(0);
  for (std::size_t v = 0; v < next.size(); ++v)
    if (next[v] > 0) text.back() = static_cast<std::int32_t>(v), extend(text, probability * next[v], length, p, out);
}

// The largest difference between two laws of texts.
inline double distance(const std::map<tokens, double>& a, const std::map<tokens, double>& b) {
  double worst = 0;
  for (const auto& [text, x] : a) worst = std::max(worst, std::abs(x - (b.count(text) ? b.at(text) : 0)));
  for (const auto& [text, x] : b) worst = std::max(worst, std::abs(x - (a.count(text) ? a.at(text) : 0)));
  return worst;
}

}  // namespace enumeration
