#include "drafters.hpp"

#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/acceptance_history.hpp>
#include <heddle/speculative/draft/best_of.hpp>
#include <heddle/speculative/draft/calibrated.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/eagle_tree.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft/suffix_drafter.hpp>
#include <heddle/speculative/draft/suffix_tree.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "head_drafter.hpp"

namespace llama {
namespace {

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
  std::int32_t depth() const { return std::numeric_limits<std::int32_t>::max(); }  // tokens it can draft

 private:
  model& net_;
  std::size_t layers_;
  int sequence_;
};

// A chain of tokens from a head (early_exit, head_drafter) under the request's own sampling chain: deterministic, with the noise the target will have at that
// position (so that both choose alike more often: right for match and greedy), or independent draws, whose laws go with them.
template <draft_law Law, class Head>
class chain_drafter {
 public:
  chain_drafter(Head head, std::size_t vocabulary_size, const chain& policy, heddle::random_key key)
      : head_(std::move(head)), policy_(policy), key_(key), memory_(static_cast<std::int64_t>(vocabulary_size)) {}

  heddle::draft_tree<Law> propose(std::span<const token> context, std::int32_t budget) {
    nodes_.start(context.back());
    row_of_.clear(), indptr_.assign(1, 0), tokens_.clear(), probabilities_.clear();
    budget = std::min(budget, head_.depth());
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
    key.position = static_cast<std::uint32_t>(context.size()), key.index = static_cast<std::uint32_t>(path.size());   // no number serves two rounds
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

  Head head_;
  chain policy_;
  heddle::random_key key_;
  heddle::sampling::row_workspace memory_;
  heddle::draft_nodes nodes_;
  std::vector<std::int32_t> row_of_, tokens_;
  std::vector<std::int64_t> indptr_;
  std::vector<float> probabilities_;
};

template <draft_law Law, class Head>
std::unique_ptr<any_drafter<Law>> chain_of(Head head, const draft_request& request) {
  return std::make_unique<drafter_of<Law, chain_drafter<Law, Head>>>(std::move(head), request.net.config().vocab_size, request.policy, request.key);
}

template <class Head>
class tree_drafter {
 public:
  explicit tree_drafter(Head head) : head_(std::move(head)) {}
  tree_drafter(const tree_drafter&) = delete;
  tree_drafter& operator=(const tree_drafter&) = delete;
  auto propose(std::span<const token> context, std::int32_t budget) {
    const std::int32_t depth = std::min(head_.depth(), 4);
    drafter_.emplace(head_, heddle::eagle_options{.width = 4, .depth = std::max(depth, 1)});
    return drafter_->propose(context, depth == 0 ? 0 : budget);
  }

 private:
  Head head_;
  std::optional<heddle::eagle_drafter<Head>> drafter_;
};

std::size_t layers_of(std::string_view text, const model& net) {
  std::size_t layers = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), layers);
  const std::size_t most = net.config().num_layers;
  if (failure != std::errc{} || end != text.data() + text.size() || layers < 1 || layers > most)
    throw std::invalid_argument("--draft: '" + std::string(text) + "' layers; expected 1 to " + std::to_string(most));
  return layers;
}
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

bool draws_drafts(std::string_view name) { return name.starts_with("self:") || name.starts_with("heads:"); }
bool reads_hidden(std::string_view name) { return name.starts_with("heads:") || name.starts_with("tree:heads:"); }
void prefill(model& net, std::span<const token> tokens, int sequence, bool with_hidden) {
  const std::size_t apart = with_hidden && !tokens.empty() ? 1 : 0;
  net.prefill(tokens.first(tokens.size() - apart), sequence);
  row_buffer hidden;
  if (apart) net.prefill(tokens.last(1), hidden.resize(1, static_cast<std::int64_t>(net.config().hidden_size)), sequence);
}

template <draft_law Law>
std::unique_ptr<any_drafter<Law>> make_drafter(std::string_view name, const draft_request& request) {
  model& net = request.net;
  const std::string given(name);
  if (take(name, "self:")) return chain_of<Law>(early_exit(net, layers_of(name, net), request.sequence), request);
  if (take(name, "heads:")) return chain_of<Law>(head_drafter(net, std::string(name), request.sequence), request);
  if constexpr (Law == draft_law::deterministic) {
    if (name == "none") return std::make_unique<drafter_of<Law, heddle::no_drafter>>();
    if (name == "lookup") return std::make_unique<drafter_of<Law, matching<heddle::prompt_lookup>>>();
    if (name == "suffix") return std::make_unique<drafter_of<Law, matching<heddle::suffix_drafter>>>();
    if (name == "auto") return std::make_unique<drafter_of<Law, matching<heddle::prompt_lookup, heddle::suffix_drafter>>>();
    if (name == "tree:suffix") return std::make_unique<drafter_of<Law, counted_tree>>();
    if (take(name, "tree:self:")) return std::make_unique<drafter_of<Law, tree_drafter<early_exit>>>(early_exit(net, layers_of(name, net), request.sequence));
    if (take(name, "tree:heads:")) return std::make_unique<drafter_of<Law, tree_drafter<head_drafter>>>(head_drafter(net, std::string(name), request.sequence));
  }
  throw std::invalid_argument("--draft: there is no drafter '" + given + "'; expected none, lookup, suffix, auto, tree:suffix, self:LAYERS, heads:FILE, tree:self:LAYERS or tree:heads:FILE");
}

template <draft_law Law>
std::unique_ptr<any_drafter<Law>> make_drafter(const std::shared_ptr<const speaking_heads>& heads, const draft_request& request) {
  return chain_of<Law>(head_drafter(request.net, heads, request.sequence), request);
}

template std::unique_ptr<any_drafter<draft_law::deterministic>> make_drafter(std::string_view, const draft_request&);
template std::unique_ptr<any_drafter<draft_law::independent>> make_drafter(std::string_view, const draft_request&);
template std::unique_ptr<any_drafter<draft_law::deterministic>> make_drafter(const std::shared_ptr<const speaking_heads>&, const draft_request&);
template std::unique_ptr<any_drafter<draft_law::independent>> make_drafter(const std::shared_ptr<const speaking_heads>&, const draft_request&);

}  // namespace llama
