// Vocabularies as byte strings: which tokens begin with given bytes, and which tokens two vocabularies share.
//
// vocabulary_bytes  a view of all tokens' bytes: token v is bytes[offsets[v]] .. bytes[offsets[v + 1] - 1]
// byte_order        its token ids sorted by bytes (as unsigned numbers; equal strings: lower ids first). The tokens that begin with a string are
//                   one contiguous range of that order, found in O(log V) comparisons.
// shared_vocabulary pairs (student token, teacher token) with the same bytes, student tokens ascending. Tokens without bytes (control tokens) have
//                   no partner; of several tokens with equal bytes in one vocabulary the lowest id counts. No pair at all is an error.
//
// The bytes stay the caller's and must outlive the objects. Errors: offsets that do not start at 0, fall, or end elsewhere than the bytes.
// Cost: O(V log V) string comparisons once, 4 bytes per token.
//
//     const heddle::distillation::byte_order order{{bytes, offsets}};
//     const auto endings = order.beginning_with("ing");       // token ids
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace heddle::distillation {

struct vocabulary_bytes {
  std::span<const char> bytes{};
  std::span<const std::int64_t> offsets{};   ///< one more than tokens
  [[gnu::always_inline]] inline std::int64_t size() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  [[gnu::always_inline]] inline std::string_view operator[](std::int64_t token) const {
    const auto v = static_cast<std::size_t>(token);
    return {bytes.data() + offsets[v], static_cast<std::size_t>(offsets[v + 1] - offsets[v])};
  }
};

/// A student token and the teacher token with the same bytes.
struct token_pair {
  std::int32_t student, teacher;
};

namespace detail::inline HEDDLE_ISA {

/// Negative, 0 or positive: bytes as unsigned numbers, a prefix before what it begins.
inline int compare_bytes(std::string_view a, std::string_view b) {
  const std::size_t common = a.size() < b.size() ? a.size() : b.size();
  const int order = common ? std::memcmp(a.data(), b.data(), common) : 0;
  return order ? order : a.size() < b.size() ? -1 : a.size() > b.size();
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

inline bool begins_with(std::string_view text, std::string_view prefix) { return text.size() >= prefix.size() && (prefix.empty() || std::memcmp(text.data(), prefix.data(), prefix.size()) == 0); }

class byte_order {
 public:
  explicit byte_order(const vocabulary_bytes& vocabulary) : vocabulary_(vocabulary) {
    const auto& offsets = vocabulary.offsets;
    require(!offsets.empty() && offsets[0] == 0, "byte_order: argument 'vocabulary': its offsets do not start with 0");
    require(offsets.size() - 1 <= 0x7fffffff, "byte_order: argument 'vocabulary' has ", offsets.size() - 1, " tokens; expected at most 2^31 - 1");
    for (std::size_t v = 0; v + 1 < offsets.size(); ++v)
      require(offsets[v] <= offsets[v + 1], "byte_order: argument 'vocabulary': the offset after token ", v, " is ", offsets[v + 1], "; expected at least ", offsets[v]);
    require(static_cast<std::size_t>(offsets[offsets.size() - 1]) == vocabulary.bytes.size(), "byte_order: argument 'vocabulary': its offsets end at ", offsets[offsets.size() - 1], "; expected the number of bytes, ", vocabulary.bytes.size());
    order_.resize(offsets.size() - 1);
    for (std::size_t v = 0; v < order_.size(); ++v) order_[v] = static_cast<std::int32_t>(v);
    std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
      const int order = detail::compare_bytes(vocabulary_[a], vocabulary_[b]);
      return order < 0 || (order == 0 && a < b);
    });
  }

  const vocabulary_bytes& vocabulary() const { return vocabulary_; }
  std::string_view bytes(std::int64_t token) const { return vocabulary_[token]; }
  std::int64_t size() const { return vocabulary_.size(); }
  /// All token ids, sorted by bytes.
  std::span<const std::int32_t> tokens() const { return order_; }

  /// The tokens that begin with `prefix` (those equal to it first), sorted by bytes: a range of tokens().
  std::span<const std::int32_t> beginning_with(std::string_view prefix) const {
    const auto first = std::partition_point(order_.begin(), order_.end(), [&](std::int32_t v) { return detail::compare_bytes(vocabulary_[v], prefix) < 0; });
    const auto last = std::partition_point(first, order_.end(), [&](std::int32_t v) { return begins_with(vocabulary_[v], prefix); });
    return {order_.data() + (first - order_.begin()), static_cast<std::size_t>(last - first)};
  }

 private:
  vocabulary_bytes vocabulary_;
  aligned_vector<std::int32_t> order_;
};

class shared_vocabulary {
 public:
  shared_vocabulary(const byte_order& student, const byte_order& teacher) : student_size_(student.size()), teacher_size_(teacher.size()) {
    const auto a = student.tokens(), b = teacher.tokens();
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      const std::string_view text = student.bytes(a[i]);
      const int order = detail::compare_bytes(text, teacher.bytes(b[j]));
      if (order > 0) {
        ++j;
      } else {
        if (order == 0 && !text.empty()) pairs_.push_back({a[i], b[j]});
        do ++i;
        while (order == 0 && i < a.size() && detail::compare_bytes(student.bytes(a[i]), text) == 0);   // further student tokens with the same bytes
      }
    }
    require(!pairs_.empty(), "shared_vocabulary: arguments 'student' and 'teacher' have no token with bytes in common");
    std::sort(pairs_.begin(), pairs_.end(), [](const token_pair& x, const token_pair& y) { return x.student < y.student; });
  }

  std::span<const token_pair> pairs() const { return pairs_; }
  std::int64_t size() const { return static_cast<std::int64_t>(pairs_.size()); }
  std::int64_t student_size() const { return student_size_; }
  std::int64_t teacher_size() const { return teacher_size_; }

 private:
  aligned_vector<token_pair> pairs_;
  std::int64_t student_size_, teacher_size_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
