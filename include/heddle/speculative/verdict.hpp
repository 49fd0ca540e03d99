// What a verifier decides about a draft.
//
// verdict           path (accepted nodes, root not listed), the tokens to emit (the accepted ones and one more), their status.
//                   With a status other than ok nothing is accepted or emitted. Valid until the workspace is used again.
// verify_workspace  the memory of verification: one row's scratch and the walk's lists; grows with the largest tree, and does not allocate once a rule has
//                   seen a tree of that size
// Extension         what a rule reports beyond that (events, interpolation weights); nothing by default
//
//     heddle::verify_workspace memory{vocabulary};
//     const auto decided = rule(tree, logits, policy, context, memory);
//     if (decided.status == heddle::status::ok) append(decided.tokens);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/sampling/row.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

struct no_extension {};

template <class Extension = no_extension>
struct verdict {
  std::span<const std::int32_t> path{};
  std::span<const std::int32_t> tokens{};
  std::int32_t accepted = 0;
  std::int32_t residual_fallback = 0;  ///< rejections whose residual law was zero by rounding: the token came from the target law instead
  heddle::status status = heddle::status::ok;
  [[no_unique_address]] Extension extension{};
};

inline namespace HEDDLE_ISA {

class verify_workspace {
 public:
  explicit verify_workspace(std::int64_t vocabulary) : row_(vocabulary) {}
  sampling::row_workspace& row() { return row_; }
  std::int64_t vocabulary() const { return row_.vocabulary(); }

  /// Children of a node: first_child(u), then next_sibling(child), -1 at the end, in draw order.
  void link(std::span<const std::int32_t> parents) {
    const std::size_t n = parents.size();
    if (first_child_.size() < n) first_child_.resize(n), next_sibling_.resize(n), last_child_.resize(n), path_.resize(n), tokens_.resize(n + 1);
    for (std::size_t u = 0; u < n; ++u) first_child_[u] = next_sibling_[u] = last_child_[u] = -1;
    for (std::size_t u = 1; u < n; ++u) {
      const auto parent = static_cast<std::size_t>(parents[u]);
      const auto node = static_cast<std::int32_t>(u);
      if (last_child_[parent] < 0)
        first_child_[parent] = node;
      else
        next_sibling_[static_cast<std::size_t>(last_child_[parent])] = node;
      last_child_[parent] = node;
    }
  }
  std::int32_t first_child(std::int32_t node) const { return first_child_[static_cast<std::size_t>(node)]; }
  std::int32_t next_sibling(std::int32_t node) const { return next_sibling_[static_cast<std::size_t>(node)]; }
  std::int32_t* path() { return path_.data(); }
  std::int32_t* tokens() { return tokens_.data(); }

  /// Room for the laws that rejections subtract: allocated once.
  void reserve_laws() {
    remaining_.resize(static_cast<std::size_t>(row_.vocabulary())), proposal_.resize(static_cast<std::size_t>(row_.vocabulary()));
  }
  /// The target's remaining law and the proposal's, per kept token.
  double* remaining() { return remaining_.data(); }
  double* proposal() { return proposal_.data(); }

  /// A copy of a law, for later: valid until the next one.
  sampling::law keep(const sampling::law& law) {
    if (kept_tokens_.empty()) kept_tokens_.resize(static_cast<std::size_t>(vocabulary())), kept_masses_.resize(kept_tokens_.size());
    for (std::size_t i = 0; i < law.tokens.size(); ++i) kept_tokens_[i] = law.tokens[i], kept_masses_[i] = law.masses[i];
    return {{kept_tokens_.data(), law.tokens.size()}, {kept_masses_.data(), law.masses.size()}, law.total, law.status};
  }

  /// Memory of a rule for records of one kind, for the events that its verdict refers to, and for the lists of a batched call.
  template <class T>
  T* records(std::size_t count) {
    return place<T>(records_, count);
  }
  template <class T>
  T* events(std::size_t count) {
    return place<T>(events_, count);
  }
  std::int32_t* lists(std::size_t count) { return place<std::int32_t>(lists_, count); }

 private:
  template <class T>
  static T* place(aligned_vector<std::byte>& memory, std::size_t count) {
    if (memory.size() < count * sizeof(T)) memory.resize(count * sizeof(T));
    return reinterpret_cast<T*>(memory.data());
  }
  sampling::row_workspace row_;
  aligned_vector<std::int32_t> first_child_, next_sibling_, last_child_, path_, tokens_, kept_tokens_;
  aligned_vector<std::uint64_t> kept_masses_;
  aligned_vector<double> remaining_, proposal_;
  aligned_vector<std::byte> records_, events_, lists_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
