// Decoding by rounds: draft, one target pass, verification, keep the accepted path.
//
// The loop owns the token list and the verifier's scratch, nothing else; model and drafter are referred to and must outlive it.
//
// target_model   m.score(tree) -> logits [nodes, V], host, row u = logits after node u (a token_tree: the root is the newest token, which the caches do not
//                hold yet); valid until the next call. m.keep(path): the rows of the root and of the nodes in `path` are now part of the context, all
//                others are forgotten. Path: node indices, ascending depth, root not listed.
// drafter        d.propose(context, budget) -> draft_tree<law>, at most `budget` drafts, node 0 = context.back(); valid until the next call.
//                Optional d.keep(path), called with the model's.
//
// Before the first step the model's caches hold all tokens of the prompt but the last. After every step they hold all tokens of tokens() but the newest,
// whatever was drafted, accepted or cut off. Emission ends after the first end token, which is emitted, or with max_new_tokens; cutting off never
// changes what is accepted. With match or greedy the stream of tokens is that of plain decoding, for every drafter and draft length.
// Bad logits (NaN, +infinity, no support) throw before keep(); the step can be repeated or given up. Pairs of draft law and rule that are not
// lossless do not compile, unless the last argument is allow_lossy.
//
//     heddle::decode_loop loop{model, drafter, heddle::verify::match{.seed = 7}, policy, {.prompt = prompt, .max_new_tokens = 100, .draft_length = 8}};
//     while (!loop.done())
//       for (std::int32_t token : loop.step()) print(token);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/tensor.hpp>
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

namespace detail {
template <class T>
inline constexpr bool is_draft_tree = false;
template <draft_law Law>
inline constexpr bool is_draft_tree<draft_tree<Law>> = true;
}  // namespace detail

template <class D>
concept drafter = requires(D& d, std::span<const std::int32_t> context, std::int32_t budget) { requires detail::is_draft_tree<decltype(d.propose(context, budget))>; };

struct decode_options {
  std::span<const std::int32_t> prompt{};       ///< at least one token; copied
  std::int64_t max_new_tokens = 0;              ///< 0: no limit
  std::int32_t draft_length = 8;                ///< drafts per round at most; 0: plain decoding
  std::span<const std::int32_t> end_tokens{};   ///< copied
};

struct decode_stats {
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;  ///< drafts accepted by the rule, those cut off by an end token or max_new_tokens included
  std::int64_t emitted = 0;
  std::int64_t residual_fallback = 0;
  /// Emitted tokens per target pass.
  [[gnu::always_inline]] constexpr double mean_accepted_tokens() const { return rounds ? static_cast<double>(emitted) / static_cast<double>(rounds) : 0.; }
};

struct allow_lossy_tag {};
inline constexpr allow_lossy_tag allow_lossy{};

inline namespace HEDDLE_ISA {

template <target_model Model, drafter Drafter, class Rule, class Chain, class Tag = no_extension>
class decode_loop {
  static constexpr draft_law law = decltype(std::declval<Drafter&>().propose({}, 0))::law;
  static_assert(lossless<law, Rule> || std::is_same_v<Tag, allow_lossy_tag>, "this rule does not keep the target's law with this drafter's draft law; pass allow_lossy if that is wanted");

 public:
  decode_loop(Model& model, Drafter& drafter, const Rule& rule, const Chain& policy, const decode_options& options, Tag = {})
      : model_(model), drafter_(drafter), rule_(rule), policy_(policy), max_new_tokens_(options.max_new_tokens), draft_length_(options.draft_length) {
    require(!options.prompt.empty(), "decode_loop: option 'prompt' is empty; expected at least one token");
    require(options.max_new_tokens >= 0, "decode_loop: option 'max_new_tokens' is ", options.max_new_tokens, "; expected 0 (no limit) or more");
    require(options.draft_length >= 0, "decode_loop: option 'draft_length' is ", options.draft_length, "; expected 0 or more");
    tokens_.assign(options.prompt.begin(), options.prompt.end());
    end_tokens_.assign(options.end_tokens.begin(), options.end_tokens.end());
  }
  decode_loop(const decode_loop&) = delete;
  decode_loop& operator=(const decode_loop&) = delete;

  bool done() const { return done_; }
  /// The prompt and everything emitted.
  std::span<const std::int32_t> tokens() const { return tokens_; }
  const decode_stats& stats() const { return stats_; }

  /// One round; the tokens it emitted, valid until the next.
  std::span<const std::int32_t> step() {
    require(!done_, "decode_loop::step: generation has ended");
    const auto tree = drafter_.propose(tokens_, draft_length_);
    const auto logits = view_of(model_.score(shape_of(tree)));
    if (!memory_) memory_.emplace(logits.extent(1));
    const auto decided = rule_(tree, logits, policy_, tokens_, *memory_);
    require(decided.status == status::ok, "decode_loop::step: logits after ", tokens_.size(), " tokens: ", name_of(decided.status));

    const std::size_t emitted = cut(decided.tokens), before = tokens_.size();
    const auto kept = decided.path.first(emitted - 1 < decided.path.size() ? emitted - 1 : decided.path.size());
    tokens_.insert(tokens_.end(), decided.tokens.begin(), decided.tokens.begin() + static_cast<std::ptrdiff_t>(emitted));
    model_.keep(kept);
    if constexpr (requires { drafter_.keep(kept); }) drafter_.keep(kept);

    ++stats_.rounds;
    stats_.drafted += static_cast<std::int64_t>(tree.tokens.size()) - 1;
    stats_.accepted += decided.accepted;
    stats_.emitted += static_cast<std::int64_t>(emitted);
    stats_.residual_fallback += decided.residual_fallback;
    return std::span<const std::int32_t>(tokens_).subspan(before);
  }

 private:
  template <class Tree>
  token_tree shape_of(const Tree& tree) {
    depths_.resize(tree.tokens.size());
    require(!tree.tokens.empty() && tree.parents.size() == tree.tokens.size() && tree.tokens[0] == tokens_.back(), "decode_loop::step: the drafter's tree does not start with the last committed token, ", tokens_.back());
    depths_[0] = 0;
    for (std::size_t u = 1; u < depths_.size(); ++u) {
      require(tree.parents[u] >= 0 && static_cast<std::size_t>(tree.parents[u]) < u, "decode_loop::step: the drafter's tree: parent of node ", u, " is ", tree.parents[u], "; expected an earlier node");
      depths_[u] = depths_[static_cast<std::size_t>(tree.parents[u])] + 1;
    }
    return {tree.tokens, tree.parents, depths_};
  }

  /// How many of the tokens are emitted; sets done_.
  std::size_t cut(std::span<const std::int32_t> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool full = max_new_tokens_ > 0 && stats_.emitted + static_cast<std::int64_t>(i) + 1 == max_new_tokens_;
      if (full || is_end(tokens[i])) return done_ = true, i + 1;
    }
    return tokens.size();
  }
  bool is_end(std::int32_t token) const {
    for (const std::int32_t end : end_tokens_)
      if (token == end) return true;
    return false;
  }

  Model& model_;
  Drafter& drafter_;
  Rule rule_;
  Chain policy_;
  std::int64_t max_new_tokens_;
  std::int32_t draft_length_;
  aligned_vector<std::int32_t> tokens_, end_tokens_, depths_;
  std::optional<verify_workspace> memory_;
  decode_stats stats_;
  bool done_ = false;
};
template <class Model, class Drafter, class Rule, class Chain>
decode_loop(Model&, Drafter&, const Rule&, const Chain&, const decode_options&) -> decode_loop<Model, Drafter, Rule, Chain>;
template <class Model, class Drafter, class Rule, class Chain>
decode_loop(Model&, Drafter&, const Rule&, const Chain&, const decode_options&, allow_lossy_tag) -> decode_loop<Model, Drafter, Rule, Chain, allow_lossy_tag>;

}  // namespace HEDDLE_ISA
}  // namespace heddle
