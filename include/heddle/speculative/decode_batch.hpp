// Several requests decoded together: each round one target pass over the trees of all that are not done.
//
// What decode_loop.hpp says of one request holds for each; the stream of a request is the one it would have alone, token for token. Requests may differ in
// prompt, drafter (one each), rule (seed, request number), sampling chain, limits and in how much they draft in a round.
//
// batch_target_model   m.score(trees) -> logits [rows, V]: trees[r] is that of request r, without nodes where it is done; rows of request 0 first, then
//                      those of request 1, ...; m.keep(r, path): as target_model's keep, for a request that had nodes
//
// A request whose logits are bad ends with that status(); nothing of it is kept, the others go on. Drafters, model and pacer are referred to.
// With a pacer the lengths of all requests are chosen together, against what the joint pass costs.
//
//     heddle::decode_batch batch{model, heddle::batch_request{drafter_a, rule_a, policy, {.prompt = a}}, heddle::batch_request{drafter_b, rule_b, policy, {.prompt = b}}};
//     while (!batch.done()) {
//       batch.step();
//       for (std::size_t r = 0; r < batch.size(); ++r) print(r, batch.emitted(r));
//     }
#pragma once
#include <heddle/speculative/decode_loop.hpp>

#include <initializer_list>

namespace heddle {

template <class M>
concept batch_target_model = requires(M& model, std::span<const token_tree> trees, std::int32_t request, std::span<const std::int32_t> path) {
  { model.score(trees) } -> tensor_of<2>;
  model.keep(request, path);
};

template <drafter Drafter, class Rule, class Chain>
struct batch_request {
  Drafter& drafter;
  Rule rule;
  Chain policy;
  decode_options options;
};
template <class Drafter, class Rule, class Chain>
batch_request(Drafter&, Rule, Chain, decode_options) -> batch_request<Drafter, Rule, Chain>;

inline namespace HEDDLE_ISA {

template <batch_target_model Model, drafter Drafter, class Rule, class Chain, class Tag = no_extension>
class decode_batch {
  static constexpr draft_law law = detail::law_of_drafter<Drafter>;
  static_assert(lossless<law, Rule> || std::is_same_v<Tag, allow_lossy_tag>, "this rule does not keep the target's law with this drafter's draft law; pass allow_lossy if that is wanted");

 public:
  using request_type = batch_request<Drafter, Rule, Chain>;

  decode_batch(Model& model, std::span<const request_type> requests, Tag = {}) : model_(model) {
    for (const request_type& r : requests) requests_.push_back(state(r));
    trees_.resize(size()), shapes_.resize(size()), outlooks_.resize(size()), lengths_.resize(size());
  }
  template <class... More>
  explicit decode_batch(Model& model, const request_type& first, const More&... more) : decode_batch(model, std::span<const request_type>(std::initializer_list<request_type>{first, more...})) {}
  decode_batch(const decode_batch&) = delete;
  decode_batch& operator=(const decode_batch&) = delete;

  void pace_by(draft_pacer& pacer) { pacer_ = &pacer; }

  std::size_t size() const { return requests_.size(); }
  bool done() const {
    for (const state& r : requests_)
      if (!r.tokens.done()) return false;
    return true;
  }
  bool done(std::size_t request) const { return requests_[request].tokens.done(); }
  heddle::status status(std::size_t request) const { return requests_[request].status; }
  std::span<const std::int32_t> tokens(std::size_t request) const { return requests_[request].tokens.tokens(); }
  /// By the last step; valid until the next.
  std::span<const std::int32_t> emitted(std::size_t request) const { return requests_[request].emitted; }
  const decode_stats& stats(std::size_t request) const { return requests_[request].tokens.stats(); }

  void step() {
    require(!done(), "decode_batch::step: generation has ended");
    const double start = now();
    choose_lengths();
    std::int64_t rows = 0, active = 0;
    for (std::size_t r = 0; r < size(); ++r) {
      shapes_[r] = {}, requests_[r].emitted = {};
      if (done(r)) continue;
      trees_[r] = requests_[r].parts.drafter.propose(tokens(r), lengths_[r]);
      shapes_[r] = requests_[r].tokens.shape_of("decode_batch::step", trees_[r], lengths_[r]);
      rows += static_cast<std::int64_t>(shapes_[r].tokens.size()), ++active;
    }
    const double scoring = now();
    const auto logits = view_of(model_.score(std::span<const token_tree>(shapes_)));
    require(logits.extent(0) == rows, "decode_batch::step: the model gave ", logits.extent(0), " rows of logits for ", rows, " nodes");
    if (!memory_) memory_.emplace(logits.extent(1));
    std::int64_t first = 0;
    for (std::size_t r = 0; r < size(); ++r) {
      const auto nodes = static_cast<std::int64_t>(shapes_[r].tokens.size());
      if (nodes > 0) verify(r, logits.slice(first, nodes));
      first += nodes;
    }
    if (pacer_) {
      pacer_->drafted(rows - active, scoring - start);
      pacer_->passed(rows, now() - scoring);
    }
  }

 private:
  struct state {
    explicit state(const request_type& r) : parts(r), tokens("decode_batch", r.options) {}
    request_type parts;
    detail::decode_request tokens;
    std::span<const std::int32_t> emitted{};
    heddle::status status = heddle::status::ok;
  };

  void choose_lengths() {
    for (std::size_t r = 0; r < size(); ++r) lengths_[r] = requests_[r].tokens.draft_length();
    if (!pacer_) return;
    aligned_vector<std::span<const double>>& open = outlooks_;
    open.clear();
    for (std::size_t r = 0; r < size(); ++r)
      if (!done(r)) open.push_back(requests_[r].tokens.outlook(requests_[r].parts.drafter));
    chosen_.resize(open.size());
    pacer_->lengths(open, chosen_);
    for (std::size_t r = 0, i = 0; r < size(); ++r)
      if (!done(r)) lengths_[r] = chosen_[i++];
  }
  template <class Logits>
  void verify(std::size_t index, const Logits& logits) {
    state& r = requests_[index];
    const auto decided = r.parts.rule(trees_[index], logits, r.parts.policy, r.tokens.tokens(), *memory_);
    r.status = decided.status;
    if (decided.status != heddle::status::ok) return r.tokens.give_up();
    const auto round = r.tokens.take(decided);
    model_.keep(static_cast<std::int32_t>(index), round.kept);
    if constexpr (requires { r.parts.drafter.keep(round.kept); }) r.parts.drafter.keep(round.kept);
    r.emitted = round.emitted;
  }
  double now() const { return pacer_ ? pacer_->now() : 0; }

  Model& model_;
  aligned_vector<state> requests_;
  aligned_vector<draft_tree<law>> trees_;
  aligned_vector<token_tree> shapes_;
  aligned_vector<std::span<const double>> outlooks_;
  aligned_vector<std::int32_t> lengths_, chosen_;
  draft_pacer* pacer_ = nullptr;
  std::optional<verify_workspace> memory_;
};
template <class Model, class Drafter, class Rule, class Chain, class... More>
decode_batch(Model&, const batch_request<Drafter, Rule, Chain>&, const More&...) -> decode_batch<Model, Drafter, Rule, Chain>;
template <class Model, class Drafter, class Rule, class Chain, std::size_t N>
decode_batch(Model&, std::span<const batch_request<Drafter, Rule, Chain>, N>) -> decode_batch<Model, Drafter, Rule, Chain>;

}  // namespace HEDDLE_ISA
}  // namespace heddle
