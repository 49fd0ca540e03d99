// Decoding by rounds: draft, one target pass, verification, keep the accepted path.
//
// The loop owns the token list and the verifier's scratch, nothing else; model and drafter are referred to and must outlive it.
//
// target_model   m.score(tree) -> logits [nodes, V], host, row u = logits after node u (a token_tree: the root is the newest token, which the caches do not
//                hold yet); valid until the next call. m.keep(path): the rows of the root and of the nodes in `path` are now part of the context, all
//                others are forgotten. Path: node indices, ascending depth, root not listed.
// drafter        d.propose(context, budget) -> draft_tree<law>, at most `budget` drafts (more are an error), node 0 = context.back(); valid until the next call.
//                Optional d.keep(path), called after the model's. Optional d.outlook(context, budget) -> std::span<const double>: the probabilities that the
//                nodes of its next proposal are accepted, as it expects (draft/best_of.hpp).
//
// Before the first step the model's caches hold all tokens of the prompt but the last. After every step they hold all tokens of tokens() but the newest,
// whatever was drafted, accepted or cut off. Emission ends after the first end token, which is emitted, or with max_new_tokens; cutting off never
// changes what is accepted. With match or greedy the stream of tokens is that of plain decoding, for every drafter and draft length.
// Bad logits (NaN, +infinity, no support) throw before keep(); the step can be repeated or given up. Pairs of draft law and rule that are not
// lossless do not compile, unless the last argument is allow_lossy.
//
// Draft length: options.draft_length each round; or, after pace_by(pacer), what pays at the moment, at most draft_length and never beyond
// max_new_tokens (draft_pacer.hpp). Without an outlook of the drafter, acceptance is counted by rank.
//
//     heddle::draft_pacer pacer;
//     heddle::decode_loop loop{model, drafter, heddle::verify::match{.seed = 7}, policy, {.prompt = prompt, .max_new_tokens = 100, .draft_length = 32}};
//     loop.pace_by(pacer);
//     while (!loop.done())
//       for (std::int32_t token : loop.step()) print(token);
#pragma once
#include <heddle/core/tensor.hpp>
#include <heddle/speculative/detail/decode_request.hpp>
#include <heddle/speculative/draft_pacer.hpp>
#include <heddle/speculative/draft_tree.hpp>
#include <heddle/speculative/lossless.hpp>
#include <heddle/speculative/verdict.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace heddle {

template <class M>
concept target_model = requires(M& model, const token_tree& tree, std::span<const std::int32_t> path) {
  { model.score(tree) } -> tensor_of<2>;
  model.keep(path);
};

struct allow_lossy_tag {};
inline constexpr allow_lossy_tag allow_lossy{};

inline namespace HEDDLE_ISA {

template <target_model Model, drafter Drafter, class Rule, class Chain, class Tag = no_extension>
class decode_loop {
  static_assert(lossless<detail::law_of_drafter<Drafter>, Rule> || std::is_same_v<Tag, allow_lossy_tag>, "this rule does not keep the target's law with this drafter's draft law; pass allow_lossy if that is wanted");

 public:
  decode_loop(Model& model, Drafter& drafter, const Rule& rule, const Chain& policy, const decode_options& options, Tag = {})
      : model_(model), drafter_(drafter), rule_(rule), policy_(policy), request_("decode_loop", options) {}
  decode_loop(const decode_loop&) = delete;
  decode_loop& operator=(const decode_loop&) = delete;

  /// From now on the pacer, which must outlive the loop, chooses how many tokens are drafted.
  void pace_by(draft_pacer& pacer) { pacer_ = &pacer; }

  bool done() const { return request_.done(); }
  /// The prompt and everything emitted.
  std::span<const std::int32_t> tokens() const { return request_.tokens(); }
  const decode_stats& stats() const { return request_.stats(); }

  /// One round; the tokens it emitted, valid until the next.
  std::span<const std::int32_t> step() {
    require(!done(), "decode_loop::step: generation has ended");
    const double start = now();
    std::int32_t budget = request_.draft_length();
    if (pacer_) budget = pacer_->length(request_.outlook(drafter_));
    const double drafting = now();
    const auto tree = drafter_.propose(tokens(), budget);
    const auto drafts = static_cast<std::int32_t>(tree.tokens.size()) - 1;
    const double scoring = now();
    const auto logits = view_of(model_.score(request_.shape_of("decode_loop::step", tree, budget)));
    if (!memory_) memory_.emplace(logits.extent(1));
    const auto decided = rule_(tree, logits, policy_, tokens(), *memory_);
    require(decided.status == status::ok, "decode_loop::step: logits after ", tokens().size(), " tokens: ", name_of(decided.status));
    const auto round = request_.take(decided);
    model_.keep(round.kept);
    if constexpr (requires { drafter_.keep(round.kept); }) drafter_.keep(round.kept);
    if (pacer_) {
      const double end = now();
      pacer_->drafted(drafts, scoring - (foreseeing_drafter<Drafter> ? start : drafting));
      pacer_->passed(drafts + 1, end - scoring);
    }
    return round.emitted;
  }

 private:
  double now() const { return pacer_ ? pacer_->now() : 0; }

  Model& model_;
  Drafter& drafter_;
  Rule rule_;
  Chain policy_;
  detail::decode_request request_;
  draft_pacer* pacer_ = nullptr;
  std::optional<verify_workspace> memory_;
};
template <class Model, class Drafter, class Rule, class Chain>
decode_loop(Model&, Drafter&, const Rule&, const Chain&, const decode_options&) -> decode_loop<Model, Drafter, Rule, Chain>;
template <class Model, class Drafter, class Rule, class Chain>
decode_loop(Model&, Drafter&, const Rule&, const Chain&, const decode_options&, allow_lossy_tag) -> decode_loop<Model, Drafter, Rule, Chain, allow_lossy_tag>;

}  // namespace HEDDLE_ISA
}  // namespace heddle
