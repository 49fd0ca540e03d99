// Supervision inside a teacher token: after the student has emitted part of its bytes, the total mass of all student tokens that go on with the rest.
//
//   u            bytes that the student has emitted since the last common token boundary (token_alignment.hpp), t the teacher's law at that boundary
//   E(u)         teacher tokens T that begin with u and go on; rho_T = bytes(T) without u
//   w_rho        sum of t_T over T in E(u) with rho_T = rho, over that of all E(u); renormalised on the covered rho
//   C(rho)       student tokens that begin with rho;  S(rho) = sum of s over C(rho)
//   loss = -sum_rho w_rho ln S(rho)       gradient s_v (1 - sum_{rho: v in C(rho)} w_rho / S(rho)) / temperature
//
// How mass divides among the tokens of one C(rho) is left to the student. Rows with u empty (the entry of an event) belong to an aligned loss.
// event_set_targets   E, w and C of every row, made before the call from the two vocabularies and the teacher's logits; the sets are ranges of the
//                     byte order, nested or disjoint, kept as columns and innermost sets: 8 bytes per column of a row's union, 24 per event
// event_set_completion  the loss, a row functional of the student alone; use targets.mask() as its mask
// Row states: entry (u empty, or the row in no group), supervised, no_teacher_mass (nothing in E(u) has mass), uncovered (no student token goes on with
// any rho), bad_teacher (NaN or +infinity in E(u)). Only supervised rows count. Coverage: sum of w over covered rho, before renormalisation.
// S(rho) = 0 with w > 0: status infinite_divergence, gradient 0. Errors: events whose bytes or teacher rows do not exist, widths other than the
// vocabularies'. The targets must outlive the functional. The student's probabilities are summed in double.
// Cost per row: targets O(|E| log V + |union of C|); loss one scan and one gradient pass over V, and O(|union| + |E|) exponentials.
// Source: ESCD (event-set completion distillation).
//
//     const auto events = partial_events(align(student_ends, teacher_ends), student_ends);
//     const event_set_targets targets{student_order, teacher_order, text, events, teacher_logits};
//     const auto result = loss(student, event_set_completion{targets}, gradient, {.mask = targets.mask()});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/distillation/byte_vocabulary.hpp>
#include <heddle/distillation/per_row.hpp>
#include <heddle/distillation/token_alignment.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace heddle::distillation {

enum class completion_state : std::uint8_t { entry, supervised, no_teacher_mass, uncovered, bad_teacher };

inline namespace HEDDLE_ISA {

class event_set_targets {
 public:
  struct event {
    double weight;
    std::int64_t parent;   ///< the next larger set that contains this one, an event of the same row; -1: none
  };

  template <matrix Teacher>
    requires host_tensor<Teacher>
  event_set_targets(const byte_order& student, const byte_order& teacher, std::string_view text, std::span<const partial_event> rows, const Teacher& teacher_logits, double teacher_temperature = 1) : student_size_(student.size()) {
    const char* const name = "event_set_targets";
    const auto logits = view_of(teacher_logits);
    require(teacher_temperature > 0 && teacher_temperature < math::infinity, name, ": argument 'teacher_temperature' is ", teacher_temperature, "; expected a positive number");
    require(logits.extent(1) == teacher.size(), name, ": argument 'teacher_logits': extent 1 is ", logits.extent(1), "; expected the teacher's vocabulary, ", teacher.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const partial_event& e = rows[i];
      require(e.teacher_row >= -1 && e.teacher_row < logits.extent(0), name, ": argument 'rows': entry ", i, " names the teacher row ", e.teacher_row, "; expected -1 (none) to ", logits.extent(0) - 1);
      require(e.begin >= 0 && e.begin <= e.end && static_cast<std::size_t>(e.end) <= text.size(), name, ": argument 'rows': entry ", i, " names the bytes ", e.begin, " to ", e.end, "; expected a part of the text, ", text.size(), " bytes");
    }
    mask_.resize(rows.size()), state_.resize(rows.size()), coverage_.resize(rows.size());
    first_event_.assign(rows.size() + 1, 0), first_column_.assign(rows.size() + 1, 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const partial_event& e = rows[i];
      if (e.teacher_row >= 0 && e.begin < e.end) state_[i] = add_row(i, student, teacher, text.substr(static_cast<std::size_t>(e.begin), static_cast<std::size_t>(e.end - e.begin)), logits[e.teacher_row], teacher_temperature);
      mask_[i] = state_[i] == completion_state::supervised;
      first_event_[i + 1] = static_cast<std::int64_t>(events_.size()), first_column_[i + 1] = static_cast<std::int64_t>(columns_.size());
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(state_.size()); }
  std::int64_t vocabulary() const { return student_size_; }
  /// 1 where the row is supervised.
  std::span<const std::uint8_t> mask() const { return mask_; }
  std::span<const completion_state> states() const { return state_; }
  /// Per row: the share of the teacher's mass on E(u) whose rest some student token goes on with; 0 where there is no such mass.
  std::span<const double> coverage() const { return coverage_; }
  std::int64_t count(completion_state state) const {
    std::int64_t n = 0;
    for (const completion_state s : state_) n += s == state;
    return n;
  }

  /// Of row i: its events (sets before the sets inside them), the union of the sets as ascending columns, and the innermost event of each column.
  std::span<const event> events(std::int64_t i) const { return part(events_, first_event_, i); }
  std::span<const std::int32_t> columns(std::int64_t i) const { return part(columns_, first_column_, i); }
  std::span<const std::int32_t> innermost(std::int64_t i) const { return part(innermost_, first_column_, i); }
  std::int64_t first_event(std::int64_t i) const { return first_event_[static_cast<std::size_t>(i)]; }

 private:
  struct ranked_column {
    std::int32_t column, event;
  };

  template <class T>
  static std::span<const T> part(const aligned_vector<T>& all, const aligned_vector<std::int64_t>& first, std::int64_t i) {
    const auto row = static_cast<std::size_t>(i);
    return {all.data() + first[row], static_cast<std::size_t>(first[row + 1] - first[row])};
  }

  template <class Row>
  completion_state add_row(std::size_t i, const byte_order& student, const byte_order& teacher, std::string_view emitted, const Row& logits, double temperature) {
    std::span<const std::int32_t> open = teacher.beginning_with(emitted);
    while (!open.empty() && teacher.bytes(open[0]).size() == emitted.size()) open = open.subspan(1);   // tokens equal to u are complete
    double max = -math::infinity;
    for (const std::int32_t token : open) {
      const auto y = static_cast<double>(logits(token));
      if (y != y || y == math::infinity) return completion_state::bad_teacher;
      if (y > max) max = y;
    }
    if (max == -math::infinity) return completion_state::no_teacher_mass;

    double total = 0, covered = 0;
    const std::size_t first_event = events_.size();
    ranked_.clear(), enclosing_.clear();
    const std::int32_t* const order = student.tokens().data();
    std::int64_t filled = 0;   // columns of the byte order up to here are dealt with
    const auto fill = [&](std::int64_t to) {   // up to `to`, columns belong to the innermost open set
      for (; filled < to; ++filled) ranked_.push_back({order[filled], static_cast<std::int32_t>(enclosing_.back().event)});
    };
    const auto close = [&](std::int64_t before) {
      while (!enclosing_.empty() && enclosing_.back().end <= before) fill(enclosing_.back().end), enclosing_.pop_back();
    };
    for (std::size_t k = 0; k < open.size();) {
      const std::string_view bytes = teacher.bytes(open[k]), rest = bytes.substr(emitted.size());
      double mass = 0;
      for (; k < open.size() && detail::compare_bytes(teacher.bytes(open[k]), bytes) == 0; ++k) mass += math::exp((static_cast<double>(logits(open[k])) - max) / temperature);
      total += mass;
      if (!(mass > 0)) continue;
      const std::span<const std::int32_t> set = student.beginning_with(rest);
      if (set.empty()) continue;
      covered += mass;
      const std::int64_t begin = set.data() - order, end = begin + static_cast<std::int64_t>(set.size());
      close(begin);
      if (!enclosing_.empty()) fill(begin);
      filled = begin;
      const auto index = static_cast<std::int64_t>(events_.size() - first_event);
      events_.push_back({mass, enclosing_.empty() ? -1 : enclosing_.back().event});
      enclosing_.push_back({end, index});
    }
    close(student.size());
    coverage_[i] = covered / total;
    if (first_event == events_.size()) return completion_state::uncovered;
    for (std::size_t e = first_event; e < events_.size(); ++e) events_[e].weight /= covered;
    std::sort(ranked_.begin(), ranked_.end(), [](const ranked_column& a, const ranked_column& b) { return a.column < b.column; });
    for (const ranked_column& r : ranked_) columns_.push_back(r.column), innermost_.push_back(r.event);
    return completion_state::supervised;
  }

  struct open_set {
    std::int64_t end, event;
  };
  std::int64_t student_size_;
  aligned_vector<std::uint8_t> mask_;
  aligned_vector<completion_state> state_;
  aligned_vector<double> coverage_;
  aligned_vector<event> events_;
  aligned_vector<std::int32_t> columns_, innermost_;
  aligned_vector<std::int64_t> first_event_, first_column_;
  aligned_vector<ranked_column> ranked_;
  aligned_vector<open_set> enclosing_;
};

class event_set_completion {
 public:
  explicit event_set_completion(const event_set_targets& targets) : targets_(&targets), log_mass_(static_cast<std::size_t>(targets.first_event(targets.size()))), log_factor_(log_mass_.size()) {}

  void check(const call_shape& shape) const {
    require(shape.rows == targets_->size(), "event_set_completion: argument 'targets' has ", targets_->size(), " rows; expected one per row of logits, ", shape.rows);
    require(shape.vocabulary == targets_->vocabulary(), "event_set_completion: argument 'targets' is of a vocabulary of ", targets_->vocabulary(), " tokens; expected ", shape.vocabulary);
  }

  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    const std::int64_t i = row.index();
    const auto events = targets_->events(i);
    const auto columns = targets_->columns(i), innermost = targets_->innermost(i);
    double* const log_mass = log_mass_.data() + targets_->first_event(i);       // ln S(rho)
    double* const log_factor = log_factor_.data() + targets_->first_event(i);   // ln of the sum of w / S over the event and those around it
    const auto log_sum = [](double a, double b) {
      const double more = a > b ? a : b, less = a > b ? b : a;
      return less == -math::infinity ? more : more + math::log(1 + math::exp(less - more));
    };
    for (std::size_t e = 0; e < events.size(); ++e) log_mass[e] = -math::infinity;
    for (std::size_t j = 0; j < columns.size(); ++j) log_mass[innermost[j]] = log_sum(log_mass[innermost[j]], s.log_prob(columns[j]));
    for (std::size_t e = events.size(); e-- > 0;)
      if (events[e].parent >= 0) log_mass[events[e].parent] = log_sum(log_mass[events[e].parent], log_mass[e]);
    double value = 0, weight = 0;
    for (std::size_t e = 0; e < events.size(); ++e) {
      value -= events[e].weight * log_mass[e], weight += events[e].weight;
      const double own = math::log(events[e].weight) - log_mass[e];
      log_factor[e] = events[e].parent >= 0 ? log_sum(own, log_factor[events[e].parent]) : own;
    }
    return outcome{value, gradient{[=](auto v) { return weight * s(v).p; }, at(columns, [=](auto v, std::int64_t j) { return -math::exp(static_cast<double>(s(v).log) + log_factor[innermost[static_cast<std::size_t>(j)]]); })}};
  }

 private:
  const event_set_targets* targets_;
  mutable aligned_vector<double> log_mass_, log_factor_;   // each row writes its own part
};

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
