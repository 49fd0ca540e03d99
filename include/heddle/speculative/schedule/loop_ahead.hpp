// LoopAhead: self-speculation of looped models. Early loops draft, deeper loops say which branches are worth running, all T loops decide tokens.
//
// The drafts are a tree; a cell is (node, depth). Each call takes every active cell one loop further, in one batch:
//   1  a frontier node (one without drafts behind it) that reaches depth r_0 drafts: z [K, V] = A(h^{(r_0)}), and up to K new nodes enter at depth 0, a chain
//      (width 1) or the most probable tree (ddtree.hpp)
//   2  at feedback depths a node j tells about the tokens drafted behind it: e(j -> x) = log p_j^{(r)}(x) - max_v log p_j^{(r)}(v) <= 0.
//      Score of a node = sum over its path of the latest e, or of log q of the draft where j has not told yet
//   3  the best W nodes run (ties: the shallower, then the earlier one). Scores fall along a path, so that is the best set that contains the nodes before
//      each; the root always runs. The others pause: their states stay, and they go on where they were when there is room
//   4  the root at depth T decides its token by the rule; the draft that was right goes on as the root, what contradicts it is forgotten; if none was right the
//      token enters as a new node
// Drafts are chosen by rule and pausing never takes one away, so `match` and `greedy` give the text of plain decoding and `token` its law (C3 and C5 of
// draft_tree.hpp: a paused draft is still verified). Dropping drafts by scores that look at the drafts themselves would bend the law.
//
// lookahead      l.look_ahead(node, slots) -> logits [<= slots, V], host: the tokens after that node, from its state at depth r_0, which the model has just
//                computed. Drafting ends before a row with NaN, +infinity or no support
// step()         one call; the tokens that it settled, valid until the next. Before the first step the model has kept all tokens of the prompt but the
//                last, at the end all but the newest. End tokens that were drafted are not run; nothing enters behind max_new_tokens
// Bad logits of the root at depth T throw before it is kept; the step can be repeated: everything in flight starts over.
// K = 0 or W = 1: plain decoding, T calls per token. Speedup in calls: T (1 + L) / (T + r_0) when a new tree waits for the last one to be used up, L = drafts
// that are right (unpipelined_speedup); at most T K / r_0 (pipelined_ceiling). Memory O(nodes T) keys and values. Model and lookahead must outlive it.
// Source: LoopAhead, after the abstract; the lookahead's form, the score and the rule for pausing are this library's.
//
//     heddle::loop_ahead loop{looped, lookahead, heddle::verify::match{.seed = 7}, policy, {.prompt = prompt, .max_new_tokens = 100, .lookahead_depth = 2, .drafts = 4}};
//     while (!loop.done())
//       for (std::int32_t token : loop.step()) print(token);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>
#include <heddle/speculative/draft/ddtree.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>
#include <heddle/speculative/lossless.hpp>
#include <heddle/speculative/schedule/detail/loop_text.hpp>
#include <heddle/speculative/schedule/looped_model.hpp>
#include <heddle/speculative/verdict.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace heddle {

template <class L>
concept lookahead_drafter = requires(L& lookahead, std::int32_t node, std::int32_t slots) {
  { lookahead.look_ahead(node, slots) } -> tensor_of<2>;
};

struct loop_ahead_options {
  std::span<const std::int32_t> prompt{};            ///< at least one token; copied
  std::int64_t max_new_tokens = 0;                   ///< 0: no limit
  std::span<const std::int32_t> end_tokens{};        ///< copied
  std::int32_t lookahead_depth = 1;                  ///< r_0, less than the model's loops
  std::int32_t drafts = 4;                           ///< K: slots and nodes of one draft; 0: plain decoding
  std::int32_t width = 1;                            ///< tokens considered per slot; 1: chains
  bool pipelined = true;                             ///< false: draft only when nothing but the root is left
  std::int32_t max_active = 64;                      ///< W: cells per call
  std::int32_t max_nodes = 256;                      ///< in flight at most; drafts that find no room are not made
  std::span<const std::int32_t> feedback_depths{};   ///< ascending, 1 .. T - 1; copied
  double lookahead_temperature = 1.;                 ///< of the lookahead's logits
  std::span<const std::int32_t> kv_map{};            ///< kappa (looped_model.hpp), copied
};

inline namespace HEDDLE_ISA {

inline double unpipelined_speedup(std::int32_t loops, std::int32_t lookahead_depth, double right) { return loops * (1 + right) / (loops + lookahead_depth); }
inline double pipelined_ceiling(std::int32_t loops, std::int32_t lookahead_depth, std::int32_t drafts) { return static_cast<double>(loops) * drafts / lookahead_depth; }

template <looped_model Model, lookahead_drafter Lookahead, class Rule, class Chain, class Chance = verify::detail::keyed_chance>
class loop_ahead {
  static_assert(lossless<draft_law::deterministic, Rule>, "this rule does not keep the target's law with drafts that are chosen by rule");

 public:
  loop_ahead(Model& model, Lookahead& lookahead, const Rule& rule, const Chain& policy, const loop_ahead_options& options)
      : loop_ahead(model, lookahead, rule, policy, options, verify::detail::chance_of(rule)) {}
  loop_ahead(Model& model, Lookahead& lookahead, const Rule& rule, const Chain& policy, const loop_ahead_options& options, Chance chance)
      : model_(model), lookahead_(lookahead), rule_(rule), policy_(policy), options_(options), loops_(model.loops()),
        text_("loop_ahead", options.prompt, options.max_new_tokens, options.end_tokens), chance_(chance) {
    check_kv_map("loop_ahead", options.kv_map, loops_);
    require(options.drafts >= 0, "loop_ahead: option 'drafts' is ", options.drafts, "; expected 0 or more");
    require(options.drafts == 0 || (options.lookahead_depth >= 1 && options.lookahead_depth < loops_), "loop_ahead: option 'lookahead_depth' is ", options.lookahead_depth, "; expected 1 to ", loops_ - 1);
    require(options.width >= 1, "loop_ahead: option 'width' is ", options.width, "; expected 1 or more");
    require(options.max_active >= 1, "loop_ahead: option 'max_active' is ", options.max_active, "; expected 1 or more");
    require(options.max_nodes >= 1, "loop_ahead: option 'max_nodes' is ", options.max_nodes, "; expected 1 or more");
    require(options.lookahead_temperature >= 1e-6 && options.lookahead_temperature <= 1e6, "loop_ahead: option 'lookahead_temperature' is ", options.lookahead_temperature, "; expected 1e-6 to 1e6");
    for (std::size_t i = 0; i < options.feedback_depths.size(); ++i)
      require(options.feedback_depths[i] > (i ? options.feedback_depths[i - 1] : 0) && options.feedback_depths[i] < loops_, "loop_ahead: option 'feedback_depths': entry ", i, " is ", options.feedback_depths[i], "; expected ascending depths from 1 to ", loops_ - 1);
    feedback_.assign(options.feedback_depths.begin(), options.feedback_depths.end());
    kv_map_.assign(options.kv_map.begin(), options.kv_map.end());
    options_.prompt = options_.end_tokens = options_.feedback_depths = options_.kv_map = {};
    root_ = enter(-1, text_.tokens().back(), 0.);
  }
  loop_ahead(const loop_ahead&) = delete;
  loop_ahead& operator=(const loop_ahead&) = delete;

  bool done() const { return text_.done(); }
  /// The prompt and everything settled.
  std::span<const std::int32_t> tokens() const { return text_.tokens(); }
  const loop_stats& stats() const { return stats_; }

  std::span<const std::int32_t> step() {
    require(!done(), "loop_ahead::step: generation has ended");
    choose_active();
    const auto logits = view_of(model_.advance(batch()));
    if (!memory_) memory_.emplace(logits.extent(1));
    for (const std::int32_t id : active_) ++at(id).depth;
    ++stats_.calls, stats_.cells += static_cast<std::int64_t>(active_.size());
    for (const std::int32_t id : active_)
      if (at(id).depth == options_.lookahead_depth) draft_behind(id);
    for (std::size_t i = 0; i < active_.size(); ++i)
      if (is_feedback(at(active_[i]).depth)) tell(active_[i], logits[static_cast<std::int64_t>(i)]);
    const std::size_t before = text_.tokens().size();
    while (!done() && at(root_).depth == loops_ && settle(logits, text_.tokens().size() > before)) {}
    return text_.tokens().subspan(before);
  }

 private:
  struct node {
    std::int32_t parent, token;
    std::int64_t position;
    std::int32_t depth = 0;         // loops made
    bool alive = true, is_end = false;
    double edge = 0, score = 0;     // latest e of the node before about this one, or log q; sum along the path
  };
  node& at(std::int32_t id) { return nodes_[static_cast<std::size_t>(id)]; }
  const node& at(std::int32_t id) const { return nodes_[static_cast<std::size_t>(id)]; }
  bool is_feedback(std::int32_t depth) const { return std::binary_search(feedback_.begin(), feedback_.end(), depth); }

  std::int32_t enter(std::int32_t parent, std::int32_t token, double edge) {
    std::int32_t id = static_cast<std::int32_t>(nodes_.size());
    if (free_.empty()) nodes_.emplace_back();
    else id = free_.back(), free_.pop_back();
    at(id) = {.parent = parent, .token = token, .position = parent < 0 ? text_.size() - 1 : at(parent).position + 1, .is_end = parent >= 0 && text_.is_end(token), .edge = edge};
    order_.push_back(id);
    return id;
  }

  /// The best nodes, in the order in which they entered: parents first.
  void choose_active() {
    active_.clear();
    for (const std::int32_t id : order_) {   // parents come first
      node& u = at(id);
      u.score = u.parent < 0 ? 0. : at(u.parent).score + u.edge;
      if (!u.is_end) active_.push_back(id);
    }
    const auto waiting = static_cast<std::ptrdiff_t>(active_.size()) - options_.max_active;
    if (waiting <= 0) return;
    stats_.paused += waiting;
    std::stable_sort(active_.begin(), active_.end(), [&](std::int32_t a, std::int32_t b) {
      return at(a).score != at(b).score ? at(a).score > at(b).score : at(a).position < at(b).position;
    });
    for (std::size_t i = static_cast<std::size_t>(options_.max_active); i < active_.size(); ++i) at(active_[i]).alive = false;   // for the moment
    active_.clear();
    for (const std::int32_t id : order_) {
      if (at(id).alive && !at(id).is_end) active_.push_back(id);
      at(id).alive = true;
    }
  }
  std::span<const loop_cell> batch() {
    cells_.clear();
    for (const std::int32_t id : active_) {
      const node& u = at(id);
      const std::int32_t r = u.depth + 1;
      cells_.push_back({.node = id, .parent = u.parent, .token = u.token, .position = u.position, .depth = r, .source = kv_source(kv_map_, r), .predicts = r == loops_ || is_feedback(r)});
    }
    return cells_;
  }

  void draft_behind(std::int32_t frontier) {
    const auto ahead = static_cast<std::int32_t>(at(frontier).position - at(root_).position);
    std::int32_t slots = 0;   // those that may still matter
    while (slots < options_.drafts && text_.has_room(ahead + slots + 1)) ++slots;
    const std::int32_t room = std::min(options_.drafts, options_.max_nodes - static_cast<std::int32_t>(order_.size()));
    if (slots == 0 || room <= 0 || has_drafts(frontier) || (!options_.pipelined && order_.size() > 1)) return;
    const auto logits = view_of(lookahead_.look_ahead(frontier, slots));
    std::int64_t usable = 0;
    while (usable < std::min<std::int64_t>(slots, logits.extent(0)) && is_finite(largest_logit(logits[usable]))) ++usable;
    if (usable == 0) return;
    const draft_tree<draft_law::deterministic> tree = ddtree_.build(at(frontier).token, ranker_.rank(logits.slice(0, usable), options_.width, options_.lookahead_temperature), room);
    entered_.assign(1, frontier);
    for (std::size_t u = 1; u < tree.tokens.size(); ++u) {
      const auto parent = static_cast<std::size_t>(tree.parents[u]);
      const bool follows_an_end = entered_[parent] < 0 || (parent > 0 && at(entered_[parent]).is_end);
      entered_.push_back(follows_an_end ? -1 : enter(entered_[parent], tree.tokens[u], ddtree_.log_scores()[u] - ddtree_.log_scores()[parent]));
    }
  }

  bool has_drafts(std::int32_t id) const {
    return std::any_of(order_.begin(), order_.end(), [&](std::int32_t other) { return at(other).parent == id; });
  }

  /// e of every token drafted behind the node. A bad row tells nothing.
  template <class Row>
  void tell(std::int32_t id, const Row& row) {
    if (!has_drafts(id)) return;
    const double max = largest_logit(row), temperature = static_cast<double>(policy_.parameters().temperature);
    if (!is_finite(max)) return;
    for (const std::int32_t other : order_)
      if (at(other).parent == id) at(other).edge = (static_cast<double>(row(at(other).token)) - max) / (temperature > 0. ? temperature : 1.);
  }
  static bool is_finite(double x) { return x > -math::infinity && x < math::infinity; }
  /// +infinity for rows that hold a NaN.
  template <class Row>
  static double largest_logit(const Row& row) {
    double max = -math::infinity;
    for (std::int64_t v = 0; v < row.extent(0); ++v) {
      const auto z = static_cast<double>(row(v));
      if (!(z < math::infinity)) return math::infinity;
      if (z > max) max = z;
    }
    return max;
  }

  /// The root has made all loops: the next token of the text. False: nothing more to settle. `settled`: this step has emitted already.
  template <class Logits>
  bool settle(const Logits& logits, bool settled) {
    const std::int64_t row = std::find(active_.begin(), active_.end(), root_) - active_.begin();
    star_.assign(1, root_), star_tokens_.assign(1, at(root_).token), star_parents_.assign(1, -1);
    for (const std::int32_t id : order_)
      if (at(id).parent == root_) star_.push_back(id), star_tokens_.push_back(at(id).token), star_parents_.push_back(0);
    const draft_tree<draft_law::deterministic> star{star_tokens_, star_parents_};
    const detail::slot_decision next = detail::decide_slot(rule_, star, logits[row], policy_, text_.tokens(), *memory_, chance_, stats_);
    if (next.status != status::ok) {
      leave_only(-1);
      root_ = enter(-1, text_.tokens().back(), 0.);
      if (!settled) fail("loop_ahead::step: logits after ", text_.size(), " tokens: ", name_of(next.status));
      return false;
    }
    text_.emit(next.token);
    ++stats_.emitted;
    model_.keep(root_);
    at(root_).depth = 0;   // the model knows it no more
    const std::int32_t child = next.child > 0 && !done() ? star_[static_cast<std::size_t>(next.child)] : -1;
    leave_only(child);
    if (child >= 0) at(child).parent = -1;
    root_ = child >= 0 || done() ? child : enter(-1, next.token, 0.);
    return !done();
  }
  /// Everything goes but the node and what follows it (-1: everything).
  void leave_only(std::int32_t child) {
    for (const std::int32_t id : order_) {
      node& u = at(id);
      u.alive = id == child || (u.parent >= 0 && at(u.parent).alive);
      if (u.alive) continue;
      if (u.depth > 0) model_.forget(id);
      free_.push_back(id);
    }
    order_.erase(std::remove_if(order_.begin(), order_.end(), [&](std::int32_t id) { return !at(id).alive; }), order_.end());
  }

  Model& model_;
  Lookahead& lookahead_;
  Rule rule_;
  Chain policy_;
  loop_ahead_options options_;
  std::int32_t loops_;
  detail::loop_text text_;
  Chance chance_;
  loop_stats stats_;
  aligned_vector<std::int32_t> feedback_, kv_map_;
  aligned_vector<node> nodes_;
  std::int32_t root_ = -1;
  aligned_vector<std::int32_t> order_, free_, active_, entered_;   // order_: nodes in flight as they entered
  aligned_vector<std::int32_t> star_, star_tokens_, star_parents_;
  aligned_vector<loop_cell> cells_;
  slot_ranker ranker_;
  ddtree ddtree_;
  std::optional<verify_workspace> memory_;
};
template <class Model, class Lookahead, class Rule, class Chain>
loop_ahead(Model&, Lookahead&, const Rule&, const Chain&, const loop_ahead_options&) -> loop_ahead<Model, Lookahead, Rule, Chain>;

}  // namespace HEDDLE_ISA
}  // namespace heddle
