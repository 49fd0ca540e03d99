// The drafters of the example programs, behind one interface per draft law, and their names on a command line:
//
//   none             nothing
//   lookup           what followed the latest tokens when they occurred before (heddle::prompt_lookup)
//   suffix           the same for the longest suffix that occurs before (heddle::suffix_drafter)
//   auto             lookup or suffix, whichever promises more at the moment (heddle::best_of)
//   tree:suffix      a tree of what followed the latest tokens, by how often it did (heddle::suffix_tree_drafter)
//   self:LAYERS      the first LAYERS layers of the model itself, then its last norm and unembedding
//   tree:self:LAYERS the same as a tree of the most probable continuations (heddle::eagle_drafter)
//
// The lower layers read the model's own cache: its rows are theirs. Drafted rows are computed anew for every drafted token and never stay.
#pragma once

#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/acceptance_history.hpp>
#include <heddle/speculative/draft/best_of.hpp>
#include <heddle/speculative/draft/calibrated.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/eagle_tree.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft/suffix_drafter.hpp>
#include <heddle/speculative/draft/suffix_tree.hpp>

#include <charconv>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "model.hpp"

namespace llama {

using heddle::draft_law;
using chain = heddle::sampling::chain<heddle::sampling::parameters>;

// A drafter of any kind; each serves one sequence.
template <draft_law Law>
class any_drafter {
 public:
  virtual ~any_drafter() = default;
  virtual heddle::draft_tree<Law> propose(std::span<const token> context, std::int32_t budget) = 0;
  virtual std::span<const double> outlook(std::span<const token> context, std::int32_t budget) = 0;
  virtual void keep(std::span<const std::int32_t> path) = 0;
};

// Any drafter of the library's kind, made from the arguments. One that foresees nothing is judged by the ranks of what was accepted of it.
template <draft_law Law, class Drafter>
class drafter_of final : public any_drafter<Law> {
 public:
  template <class... Arguments>
  explicit drafter_of(Arguments&&... arguments) : drafter_(std::forward<Arguments>(arguments)...) {}

  heddle::draft_tree<Law> propose(std::span<const token> context, std::int32_t budget) override {
    const auto tree = drafter_.propose(context, budget);
    drafts_ = static_cast<std::int32_t>(tree.tokens.size()) - 1;
    return tree;
  }
  std::span<const double> outlook(std::span<const token> context, std::int32_t budget) override {
    if constexpr (requires { drafter_.outlook(context, budget); }) return drafter_.outlook(context, budget);
    else return ranks_.outlook(budget);
  }
  void keep(std::span<const std::int32_t> path) override {
    ranks_.observe(drafts_, path);
    if constexpr (requires { drafter_.keep(path); }) drafter_.keep(path);
  }

 private:
  Drafter drafter_;
  heddle::rank_acceptance ranks_;
  std::int32_t drafts_ = 0;
};

// Drafters that continue repeated text, judged by their matches.
template <class... Drafters>
class matching {
 public:
  auto propose(std::span<const token> context, std::int32_t budget) { return best_.propose(context, budget); }
  std::span<const double> outlook(std::span<const token> context, std::int32_t budget) { return best_.outlook(context, budget); }

 private:
  std::tuple<Drafters...> drafters_;
  heddle::best_of<Drafters...> best_ = std::make_from_tuple<heddle::best_of<Drafters...>>(std::apply([](auto&... d) { return std::tie(d...); }, drafters_));
};

class counted_tree {
 public:
  auto propose(std::span<const token> context, std::int32_t budget) { return drafter_.propose(context, budget); }
  std::span<const double> outlook(std::span<const token> context, std::int32_t budget) { return drafter_.outlook(context, budget); }

 private:
  heddle::suffix_tree_drafter tree_{{.factor = 4, .offset = 2}};
  heddle::calibrated<heddle::suffix_tree_drafter> drafter_{tree_};
};

// The lower layers of a model as a drafter's head.
class early_exit {
 public:
  early_exit(model& net, std::size_t layers, int sequence) : net_(net), layers_(layers), sequence_(sequence) {}
  tensor_view<const float, 2> expand(const heddle::token_tree& tree, std::span<const std::int32_t> frontier) {
    return net_.score_with(layers_, tree, frontier, sequence_);
  }

 private:
  model& net_;
  std::size_t layers_;
  int sequence_;
};

// A chain of tokens from the lower layers under the request's own sampling chain: deterministic, with the noise the target will have at that
// position (so that both choose alike more often: right for match and greedy), or independent draws, whose laws go with them.
template <draft_law Law>
class self_drafter {
 public:
  self_drafter(model& net, std::size_t layers, int sequence, const chain& policy, heddle::random_key key)
      : head_(net, layers, sequence), policy_(policy), key_(key), memory_(static_cast<std::int64_t>(net.config().vocab_size)) {}

  heddle::draft_tree<Law> propose(std::span<const token> context, std::int32_t budget) {
    nodes_.start(context.back());
    row_of_.clear(), indptr_.assign(1, 0), tokens_.clear(), probabilities_.clear();
    for (std::int32_t node = 0; node < budget; ++node) {
      const auto row = head_.expand(nodes_.shape(), std::span(&node, 1))[0];
      nodes_.add(node, draw(row, context, nodes_.tokens().subspan(1)));
      row_of_.push_back(node);
    }
    row_of_.push_back(-1);
    if constexpr (is_sampled(Law))
      return {nodes_.tokens(), nodes_.parents(), {.row_of = row_of_, .indptr = indptr_, .tokens = tokens_, .probabilities = probabilities_}};
    else return {nodes_.tokens(), nodes_.parents()};
  }

 private:
  token draw(const tensor_view<const float, 1>& row, std::span<const token> context, std::span<const token> path) {
    heddle::random_key key = key_;
    key.position = static_cast<std::uint32_t>(context.size() + path.size());
    const heddle::sampling::history before{context, path};
    if constexpr (!is_sampled(Law)) return heddle::sampling::sample_row(row, policy_, before, key, memory_).token;
    key.purpose = heddle::purpose::draft;
    const auto law = heddle::sampling::law_of(row, policy_, before, key, memory_);
    const double target = heddle::uniform(key) * static_cast<double>(law.total);
    double below = 0;
    std::size_t drawn = law.tokens.size() - 1;
    for (std::size_t i = law.tokens.size(); i-- > 0;) {
      tokens_.push_back(law.tokens[i]), probabilities_.push_back(static_cast<float>(law.probability(i)));
      if (below <= target) drawn = i;
      below += static_cast<double>(law.masses[i]);
    }
    indptr_.push_back(static_cast<std::int64_t>(tokens_.size()));
    return law.tokens[drawn];
  }

  early_exit head_;
  chain policy_;
  heddle::random_key key_;
  heddle::sampling::row_workspace memory_;
  heddle::draft_nodes nodes_;
  std::vector<std::int32_t> row_of_, tokens_;
  std::vector<std::int64_t> indptr_;
  std::vector<float> probabilities_;
};

class self_tree {
 public:
  self_tree(model& net, std::size_t layers, int sequence) : head_(net, layers, sequence) {}
  auto propose(std::span<const token> context, std::int32_t budget) { return drafter_.propose(context, budget); }

 private:
  early_exit head_;
  heddle::eagle_drafter<early_exit> drafter_{head_, {.width = 4, .depth = 4}};
};

// What a drafter is made for.
struct draft_request {
  model& net;
  int sequence;
  chain policy;
  heddle::random_key key;  // seed and request
};

namespace detail {

inline std::size_t layers_of(std::string_view text, const model& net) {
  std::size_t layers = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), layers);
  const std::size_t most = net.config().num_layers;
  if (failure != std::errc{} || end != text.data() + text.size() || layers < 1 || layers > most)
    throw std::invalid_argument("--draft: '" + std::string(text) + "' layers; expected 1 to " + std::to_string(most));
  return layers;
}
inline bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace detail

// Whether a drafter of this name can hand over the laws it drew from.
inline bool draws_drafts(std::string_view name) { return name.starts_with("self:"); }

template <draft_law Law>
std::unique_ptr<any_drafter<Law>> make_drafter(std::string_view name, const draft_request& request) {
  model& net = request.net;
  const std::string given(name);
  if (detail::take(name, "self:"))
    return std::make_unique<drafter_of<Law, self_drafter<Law>>>(net, detail::layers_of(name, net), request.sequence, request.policy, request.key);
  if constexpr (Law == draft_law::deterministic) {
    if (name == "none") return std::make_unique<drafter_of<Law, heddle::no_drafter>>();
    if (name == "lookup") return std::make_unique<drafter_of<Law, matching<heddle::prompt_lookup>>>();
    if (name == "suffix") return std::make_unique<drafter_of<Law, matching<heddle::suffix_drafter>>>();
    if (name == "auto") return std::make_unique<drafter_of<Law, matching<heddle::prompt_lookup, heddle::suffix_drafter>>>();
    if (name == "tree:suffix") return std::make_unique<drafter_of<Law, counted_tree>>();
    if (detail::take(name, "tree:self:")) return std::make_unique<drafter_of<Law, self_tree>>(net, detail::layers_of(name, net), request.sequence);
  }
  throw std::invalid_argument("--draft: there is no drafter '" + given + "'; expected none, lookup, suffix, auto, tree:suffix, self:LAYERS or tree:self:LAYERS");
}

}  // namespace llama
