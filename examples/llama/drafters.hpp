// The drafters of the example programs, behind one interface per draft law, and their names on a command line:
//
//   none             nothing
//   lookup           what followed the latest tokens when they occurred before (heddle::prompt_lookup)
//   suffix           the same for the longest suffix that occurs before (heddle::suffix_drafter)
//   auto             lookup or suffix, whichever promises more at the moment (heddle::best_of)
//   tree:suffix      a tree of what followed the latest tokens, by how often it did (heddle::suffix_tree_drafter)
//   self:LAYERS      the first LAYERS layers of the model itself, then its last norm and unembedding
//   heads:FILE       heads trained by distill_drafter on the model's last hidden state (heddle::draft_heads)
//   tree:self:LAYERS, tree:heads:FILE    the same as a tree of the most probable continuations (heddle::eagle_drafter)
//
// The lower layers read the model's own cache: its rows are theirs. Drafted rows are computed anew for every drafted token and never stay.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/sampling/chain.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <memory>
#include <span>
#include <string_view>

#include "model.hpp"

namespace llama {

class speaking_heads;
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

// What a drafter is made for.
struct draft_request {
  model& net;
  int sequence;
  chain policy;
  heddle::random_key key;  // seed and request
};

// Throws std::invalid_argument for a name that is not in the list above. Law: deterministic, or independent where draws_drafts(name).
template <draft_law Law>
std::unique_ptr<any_drafter<Law>> make_drafter(std::string_view name, const draft_request& request);
// A chain of tokens from heads that are in memory (head_drafter.hpp).
template <draft_law Law>
std::unique_ptr<any_drafter<Law>> make_drafter(const std::shared_ptr<const speaking_heads>& heads, const draft_request& request);

// Whether a drafter of this name can hand over the laws it drew from.
bool draws_drafts(std::string_view name);
// Whether a drafter of this name reads the hidden state of the last token in the cache.
bool reads_hidden(std::string_view name);
// Takes in all of a prompt but its last token; with the hidden state of what is in the cache then, if a drafter reads it.
void prefill(model& net, std::span<const token> tokens, int sequence, bool with_hidden);

}  // namespace llama
