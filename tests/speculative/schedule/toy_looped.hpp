#pragma once
// A looped model small enough to be read: every recurrence mixes the token's state with what it reads of the text before. It keeps all its states, so a test
// can look at them, and checks that whatever a cell needs was there.
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/schedule/looped_model.hpp>

#include "speculative/verify/worlds.hpp"

#include <array>
#include <memory>

namespace toy {

using namespace heddle;
using ids = std::vector<std::int32_t>;

struct looped {
  static constexpr std::size_t width = 4;
  using state = std::array<float, width>;
  using column = std::vector<state>;   // h^{(0)} .. h^{(r)} of one token
  struct held {
    std::int32_t parent, token;
    std::int64_t position;
    column states;
  };

  std::int32_t depth, vocabulary;
  float memory = 0.9f;        // weight of the text before
  float change = 0.15f;       // how much late recurrences still move
  bool latest = false;        // a mistake: earlier positions are read at the latest recurrence that is there
  std::vector<column> kept{};
  std::map<std::int32_t, held> nodes{};
  std::vector<std::vector<loop_cell>> trace{};
  std::vector<float> logits{};
  std::int64_t poisoned_call = -1;
  std::int32_t poisoned_depth = 0;

  std::int32_t loops() const { return depth; }
  static float hash(unsigned a, unsigned b) {
    std::uint32_t x = a * 2654435761u ^ (b + 1) * 0x9E3779B9u;
    x ^= x >> 15, x *= 0x85EBCA6Bu, x ^= x >> 13, x *= 0xC2B2AE35u, x ^= x >> 16;
    return static_cast<float>(x) * 0x1p-31f - 1.f;
  }
  state embedding(std::int32_t token) const {
    state h;
    for (unsigned k = 0; k < width; ++k) h[k] = hash(static_cast<unsigned>(token), k);
    return h;
  }
  // one loop: `before` are the states of earlier positions from which recurrence `source` makes its keys and values, oldest first
  state loop(const state& h, std::int32_t r, const std::vector<state>& before) const {
    state next;
    for (unsigned k = 0; k < width; ++k) {
      float mixed = 0, weight = 1;
      for (std::size_t i = before.size(), n = 0; i-- > 0 && n < 3; ++n, weight *= 0.5f) mixed += weight * before[i][(k + n + 1) % width];
      next[k] = h[k] + (r == 1 ? 1.f : change) * (memory * 2.f * mixed / (1.f + std::abs(mixed)) + 0.5f * hash(static_cast<unsigned>(r) + 77, k));
    }
    return next;
  }
  void head(const state& h, float* out) const {
    for (std::int32_t v = 0; v < vocabulary; ++v) {
      out[v] = 0;
      for (unsigned k = 0; k < width; ++k) out[v] += 2.f * h[k] * hash(static_cast<unsigned>(v) + 1000, k);
    }
  }

  tensor_view<const float, 2> advance(std::span<const loop_cell> cells) {
    trace.emplace_back(cells.begin(), cells.end());
    logits.assign(cells.size() * static_cast<std::size_t>(vocabulary), std::numeric_limits<float>::quiet_NaN());
    std::map<std::int32_t, std::size_t> old_sizes;
    for (const auto& [id, node] : nodes) old_sizes[id] = node.states.size();
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const loop_cell& c = cells[i];
      if (c.depth == 1) {
        EXPECT_FALSE(nodes.count(c.node));
        nodes[c.node] = {c.parent, c.token, c.position, {embedding(c.token)}};
      }
      EXPECT_TRUE(nodes.count(c.node));
      held& node = nodes[c.node];
      node.parent = c.parent;
      EXPECT_EQ(node.token, c.token);
      EXPECT_EQ(node.position, c.position);
      EXPECT_EQ(node.states.size(), static_cast<std::size_t>(c.depth));   // one loop after the other
      EXPECT_EQ(old_sizes.count(c.node) ? old_sizes[c.node] : 1, node.states.size());   // one per call
      EXPECT_LE(c.source, c.depth);
      std::vector<state> before;
      for (std::int32_t p = c.parent; p >= 0; p = nodes[p].parent) {
        EXPECT_TRUE(nodes.count(p));
        EXPECT_GE(nodes[p].states.size(), node.states.size());   // it makes this loop now, or has made it
        before.insert(before.begin(), read(nodes[p].states, c.source));
      }
      EXPECT_EQ(c.position, static_cast<std::int64_t>(kept.size() + before.size()));
      std::vector<state> all;
      for (const column& k : kept) all.push_back(read(k, c.source));
      all.insert(all.end(), before.begin(), before.end());
      node.states.push_back(loop(node.states.back(), c.depth, all));
      if (c.predicts) head(node.states.back(), &logits[i * static_cast<std::size_t>(vocabulary)]);
      if (poisoned_call == static_cast<std::int64_t>(trace.size()) && c.depth == poisoned_depth) logits[i * static_cast<std::size_t>(vocabulary)] = std::numeric_limits<float>::quiet_NaN();
    }
    return {logits.data(), extents{static_cast<std::int64_t>(cells.size()), std::int64_t{vocabulary}}};
  }
  state read(const column& states, std::int32_t source) const { return latest ? states.back() : states[static_cast<std::size_t>(source) - 1]; }
  void keep(std::int32_t node) {
    ASSERT_TRUE(nodes.count(node));
    ASSERT_EQ(nodes[node].parent, -1);
    ASSERT_EQ(nodes[node].states.size(), static_cast<std::size_t>(depth) + 1);   // all loops, no more
    kept.push_back(nodes[node].states);
    nodes.erase(node);
    for (auto& [id, other] : nodes)
      if (other.parent == node) other.parent = -1;
  }
  void forget(std::int32_t node) { EXPECT_EQ(nodes.erase(node), 1u); }

  // Plain decoding of this model, with no schedule: what its states are, and the logits after a text.
  static column states_after(const looped& m, const std::vector<column>& text, std::int32_t token, std::span<const std::int32_t> kv_map = {}) {
    column states{m.embedding(token)};
    for (std::int32_t r = 1; r <= m.depth; ++r) {
      std::vector<state> before;
      for (const column& c : text) before.push_back(c[static_cast<std::size_t>(kv_source(kv_map, r)) - 1]);
      states.push_back(m.loop(states.back(), r, before));
    }
    return states;
  }
  std::vector<column> plain_states(std::span<const std::int32_t> text, std::span<const std::int32_t> kv_map = {}) const {
    std::vector<column> all;
    for (const std::int32_t token : text) all.push_back(states_after(*this, all, token, kv_map));
    return all;
  }
  std::vector<float> plain_logits(std::span<const std::int32_t> text, std::span<const std::int32_t> kv_map = {}) const {
    std::vector<float> row(static_cast<std::size_t>(vocabulary));
    head(plain_states(text, kv_map).back().back(), row.data());
    return row;
  }
  ids plain_decoding_of(ids text, std::int64_t n, const auto& policy, std::uint64_t seed, const ids& ends = {}, std::span<const std::int32_t> kv_map = {}) const {
    sampling::row_workspace row(vocabulary);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::vector<float> z = plain_logits(text, kv_map);
      text.push_back(sampling::sample_row(tensor_view<const float, 1>{z.data(), extents{std::int64_t{vocabulary}}}, policy, {text, {}}, {.seed = seed, .position = static_cast<std::uint32_t>(text.size())}, row).token);
      if (std::find(ends.begin(), ends.end(), text.back()) != ends.end()) break;
    }
    return text;
  }
  void prefill(const ids& prompt, std::span<const std::int32_t> kv_map = {}) { kept = plain_states(std::span<const std::int32_t>(prompt).first(prompt.size() - 1), kv_map); }
};
static_assert(looped_model<looped>);

// Chances of enumeration::every_choice, shared by a schedule and its drafts.
struct every_chance {
  enumeration::every_choice* all;
  bool accept(std::int64_t at, std::uint32_t i, double p, double q) const { return all->accept(at, i, p, q); }
  std::size_t first(std::int64_t at, std::span<const double> p) const { return all->first(at, p); }
  std::size_t pick(std::int64_t at, std::span<const double> w, heddle::purpose why = heddle::purpose::residual) const { return all->pick(at, w, why); }
  template <class Row, class Chain>
  sampling::drawn plain(std::int64_t at, const Row& row, const Chain& policy, const sampling::history& before, sampling::row_workspace& memory, sampling::draw = {}) const { return all->plain(at, row, policy, before, memory); }
  random_key at(std::int64_t position, heddle::purpose why, std::uint32_t index) const { return all->at(position, why, index); }
};
struct every_draw {
  enumeration::every_choice* all;
  bool argmax_instead = false;   // a mistake: the draft is chosen, not drawn
  std::size_t operator()(std::int64_t, std::uint32_t, std::span<const float> weights) const {
    if (argmax_instead) return static_cast<std::size_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
    return all->choose(enumeration::row(weights.begin(), weights.end()));
  }
};

// The law of plain decoding, in double, of `n` tokens after a prompt.
inline std::map<ids, double> plain_law(const looped& m, const ids& prompt, std::size_t n, std::span<const std::int32_t> kv_map = {}) {
  std::map<ids, double> out;
  enumeration::extend({}, 1, n, [&](const ids& text) {
    ids all = prompt;
    all.insert(all.end(), text.begin(), text.end());
    enumeration::row p;
    for (const float z : m.plain_logits(all, kv_map)) p.push_back(std::exp(static_cast<double>(z)));
    return enumeration::normalised(p);
  }, out);
  return out;
}

}  // namespace toy
