// Wavefront decoding of looped models: an early recurrence drafts the next token, and tokens at different depths advance together.
//
//   when (t, d) is done:  x_{t+1} from p_t^{(d)}, and position t + 1 enters; cells on a diagonal are one call (wavefront_pipeline.hpp)
//   when (t, T) is done:  the rule decides x_{t+1} against p_t^{(T)}; rejected: every cell behind t is dropped and the right token enters
// Needs no training and no second model. Speedup in calls T / (alpha d + (1 - alpha) T) for a share alpha of right drafts.
//
// What a draft is decides which rules are exact (anything else does not compile):
//   greedy_exit         argmax of the chain's law of p^{(d)}          deterministic: greedy, match, token
//   sampled_exit        drawn from that law, q = p^{(d)}              independent: greedy, match, token. Nothing is pruned, so C3 of draft_tree.hpp holds
//   shared_noise_exit   drawn as the target will draw                 unpredictable: match, greedy. Agrees more often than an independent draw
// With match and greedy the text is that of plain decoding with all T loops (and the same kv_map), token for token; with token its law is. Rows of p^{(d)} that
// hold NaN or have no support draft nothing.
//
// step() makes one call and returns the token that it settled, or none. Before the first step the model has kept all tokens of the prompt but the last; at the
// end all tokens but the newest, as after plain decoding. An end token that was drafted is not run before it is settled; positions behind
// max_new_tokens never enter. Bad logits at depth T throw before anything is kept; the step can be repeated: the position starts over.
// Refers to the model, which must outlive it. Draws: {seed, request, position of the drafted token} of the rule, purpose::draft. A dropped draft had no say in
// anything that was settled, so its number may come again for the draft that takes its place.
// Cost: ceil(T / d) cells per call at most; laws of that many drafts. Source: Wavefront Decoding.
//
//     heddle::wavefront wave{looped, heddle::verify::match{.seed = 7}, policy, {.prompt = prompt, .max_new_tokens = 100}, heddle::shared_noise_exit{}};
//     while (!wave.done())
//       for (std::int32_t token : wave.step()) print(token);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/draft_tree.hpp>
#include <heddle/speculative/lossless.hpp>
#include <heddle/speculative/schedule/detail/loop_text.hpp>
#include <heddle/speculative/schedule/looped_model.hpp>
#include <heddle/speculative/schedule/wavefront_pipeline.hpp>
#include <heddle/speculative/verdict.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace heddle {

struct wavefront_options {
  std::span<const std::int32_t> prompt{};       ///< at least one token; copied
  std::int64_t max_new_tokens = 0;              ///< 0: no limit
  std::span<const std::int32_t> end_tokens{};   ///< copied
  std::int32_t exit_depth = 1;                  ///< d, 1 to the model's loops
  std::span<const std::int32_t> kv_map{};       ///< kappa (looped_model.hpp), copied; empty: nothing is shared
};

struct greedy_exit {
  static constexpr draft_law law = draft_law::deterministic;
};
struct sampled_exit {
  static constexpr draft_law law = draft_law::independent;
};
struct shared_noise_exit {
  static constexpr draft_law law = draft_law::unpredictable;
};

inline namespace HEDDLE_ISA {

template <looped_model Model, class Rule, class Chain, class Exit = greedy_exit, class Chance = verify::detail::keyed_chance, class Draw = keyed_draws>
class wavefront {
  static_assert(lossless<Exit::law, Rule>, "this rule does not keep the target's law with drafts of this kind");

 public:
  wavefront(Model& model, const Rule& rule, const Chain& policy, const wavefront_options& options, Exit = {})
      : wavefront(model, rule, policy, options, Exit{}, verify::detail::chance_of(rule), detail::draws_of(rule)) {}
  wavefront(Model& model, const Rule& rule, const Chain& policy, const wavefront_options& options, Exit, Chance chance, Draw draw)
      : model_(model), rule_(rule), policy_(policy), schedule_{model.loops(), options.exit_depth}, pipeline_(checked(schedule_, options.kv_map)),
        text_("wavefront", options.prompt, options.max_new_tokens, options.end_tokens), chance_(chance), draw_(draw) {
    kv_map_.assign(options.kv_map.begin(), options.kv_map.end());
    flight_.reserve(static_cast<std::size_t>(schedule_.positions_in_flight()) + 1);
    flight_.assign(1, text_.tokens().back());
  }
  wavefront(const wavefront&) = delete;
  wavefront& operator=(const wavefront&) = delete;

  bool done() const { return text_.done(); }
  /// The prompt and everything settled.
  std::span<const std::int32_t> tokens() const { return text_.tokens(); }
  const loop_stats& stats() const { return stats_; }
  const wavefront_schedule& schedule() const { return schedule_; }

  std::span<const std::int32_t> step() {
    require(!done(), "wavefront::step: generation has ended");
    const auto logits = view_of(model_.advance(diagonal()));
    if (!memory_) memory_.emplace(logits.extent(1));
    pipeline_.advance();
    ++stats_.calls, stats_.cells += pipeline_.size();
    if (pipeline_.exits() && text_.has_room(pipeline_.size())) draft(logits[pipeline_.size() - 1]);
    if (!pipeline_.finishes()) return {};
    settle(logits[0]);
    return text_.tokens().last(1);
  }

 private:
  static const wavefront_schedule& checked(const wavefront_schedule& schedule, std::span<const std::int32_t> kv_map) {
    schedule.check("wavefront");
    check_kv_map("wavefront", kv_map, schedule.loops);
    return schedule;
  }

  /// Nodes are numbered by position; ceil(T / d) of them are in use, and one may just have entered.
  std::int32_t node(std::int32_t i) const { return static_cast<std::int32_t>((text_.size() + i) % (schedule_.positions_in_flight() + 1)); }

  std::span<const loop_cell> diagonal() {
    cells_.clear();
    for (std::int32_t i = 0; i < pipeline_.size(); ++i) {
      const std::int32_t r = pipeline_.depth(i) + 1;
      cells_.push_back({.node = node(i), .parent = i ? node(i - 1) : -1, .token = flight_[static_cast<std::size_t>(i)], .position = text_.size() - 1 + i,
                        .depth = r, .source = kv_source(kv_map_, r), .predicts = r == schedule_.exit_depth || r == schedule_.loops});
    }
    return cells_;
  }

  /// The token after the newest position, from its row at depth d.
  template <class Row>
  void draft(const Row& row) {
    const sampling::history before{text_.tokens(), std::span<const std::int32_t>(flight_).subspan(1)};
    const std::int64_t at = text_.size() + pipeline_.size() - 1;
    std::int32_t token = -1;
    if constexpr (Exit::law == draft_law::unpredictable) {
      if constexpr (requires { rule_.draw; }) token = chance_.plain(at, row, policy_, before, memory_->row(), rule_.draw).token;
      else token = chance_.plain(at, row, policy_, before, memory_->row()).token;
    } else {
      const sampling::law law = sampling::law_of(row, policy_, before, chance_.at(at, purpose::sample, 0), memory_->row());
      if (law.status != status::ok) return;
      if constexpr (Exit::law == draft_law::deterministic) token = most_probable(law);
      else token = drawn_from(law, at);
    }
    if (token < 0) return;
    flight_.push_back(token);
    if (!text_.is_end(token)) pipeline_.enter();
  }
  static std::int32_t most_probable(const sampling::law& law) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < law.tokens.size(); ++i)
      if (law.masses[i] > law.masses[best]) best = i;
    return law.tokens[best];
  }
  std::int32_t drawn_from(const sampling::law& law, std::int64_t at) {
    proposals_.emplace_back();
    proposal& q = proposals_.back();
    for (std::size_t i = 0; i < law.tokens.size(); ++i)
      if (const auto p = static_cast<float>(law.probability(i)); p > 0.f) q.tokens.push_back(law.tokens[i]), q.probabilities.push_back(p);
    q.indptr[1] = static_cast<std::int64_t>(q.tokens.size());
    return q.tokens[draw_(at, 0u, std::span<const float>(q.probabilities))];
  }

  /// The first position has made all loops: the next token of the text.
  template <class Row>
  void settle(const Row& row) {
    const bool drafted = flight_.size() > 1;
    const std::int32_t parents[] = {-1, 0}, row_of[] = {0, -1};
    draft_tree<Exit::law> star{std::span<const std::int32_t>(flight_).first(drafted ? 2 : 1), std::span<const std::int32_t>(parents).first(drafted ? 2 : 1)};
    if constexpr (is_sampled(Exit::law))
      if (drafted) star.laws = {.row_of = row_of, .indptr = proposals_[0].indptr, .tokens = proposals_[0].tokens, .probabilities = proposals_[0].probabilities};
    const detail::slot_decision next = detail::decide_slot(rule_, star, row, policy_, text_.tokens(), *memory_, chance_, stats_);
    if (next.status != status::ok) {
      forget_from(0), start_over(text_.tokens().back());
      fail("wavefront::step: logits after ", text_.size(), " tokens: ", name_of(next.status));
    }
    model_.keep(node(0));
    const bool goes_on = next.child > 0 && pipeline_.size() > 1 && !text_.is_end(next.token) && text_.has_room(1);
    if (!goes_on) forget_from(1);
    text_.emit(next.token);
    ++stats_.emitted;
    if (!goes_on) return start_over(next.token);
    flight_.erase(flight_.begin());
    if constexpr (is_sampled(Exit::law)) proposals_.erase(proposals_.begin());
    pipeline_.go_on();
  }
  void forget_from(std::int32_t first) {
    const std::int32_t started = pipeline_.depth(pipeline_.size() - 1) > 0 ? pipeline_.size() : pipeline_.size() - 1;   // the newest may have entered only just
    for (std::int32_t i = first; i < started; ++i) model_.forget(node(i));
  }
  void start_over(std::int32_t token) {
    flight_.assign(1, token), proposals_.clear();
    pipeline_.start_over();
  }

  struct proposal {   // a row of proposal_laws
    std::int64_t indptr[2] = {0, 0};
    aligned_vector<std::int32_t> tokens;
    aligned_vector<float> probabilities;
  };

  Model& model_;
  Rule rule_;
  Chain policy_;
  wavefront_schedule schedule_;
  wavefront_pipeline pipeline_;
  detail::loop_text text_;
  Chance chance_;
  Draw draw_;
  loop_stats stats_;
  aligned_vector<std::int32_t> kv_map_, flight_;   // flight: tokens in flight, the newest of the text first; a drafted end token last
  aligned_vector<proposal> proposals_;             // of flight[1], ..
  aligned_vector<loop_cell> cells_;
  std::optional<verify_workspace> memory_;
};
template <class Model, class Rule, class Chain, class Exit>
wavefront(Model&, const Rule&, const Chain&, const wavefront_options&, Exit) -> wavefront<Model, Rule, Chain, Exit>;
template <class Model, class Rule, class Chain>
wavefront(Model&, const Rule&, const Chain&, const wavefront_options&) -> wavefront<Model, Rule, Chain>;

}  // namespace HEDDLE_ISA
}  // namespace heddle
