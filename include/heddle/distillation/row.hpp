// One row of the vocabulary as formulas see it: named rows of logits, distributions over the columns, and sums of formulas.
//
// position v       where a formula is evaluated: a few columns at a time, of type V::number (real<float> or real<double>)
// entry            what a distribution p is at v:  p(v).log = ln p_v,  p(v).p = p_v
// softmax<T, i>    the distribution of named row i, softmax(z / temperature); z.logit(v) is the raw logit
// normalised<F>    q_v = e^f(v) / Z of any formula f
// any callable on v that returns an entry is a distribution too
// weigh(p, x)      p x; 0 where p has no mass, whatever x is; +infinity where x is (even if p rounds to 0)
// log_ratio(p, q)  ln p - ln q; 0 where neither has mass
// mixture(b, t, s) the entry of b t + (1 - b) s
//
// row_walker       one row of a call; each of its sums walks the vocabulary once, in chunks, while the row is in cache
//     row.sum(f), row.log_sum_exp(f), row.maximum(f), row.minimum(f), row.normalise(f), row.kl(p, q), row.entropy(p), row.tv(p, q), row.chain(s, a),
//     row.log_ratio(p, q): the formula ln p - ln q; row.sum_keeping(f) of f = terms(a, ..., x): sums of all but x, which row.kept(f) gives back at each column,
//     row.argmax(s), row.top_k(s, k), row.unite(a, b), row.sort(list), row.at(column), row.index(), row.vocabulary(), row.reject(status)
//
// Sums: lanes in the type of the formula over at most 1024 columns, then in double, in a fixed order: the bits of a result depend on the chunk alone, and on it
// only to the accuracy of a float. log softmax is fma(z - reference, 1 / temperature, -log Z): adding a constant to all logits of a row changes no bit where the sum is exact.
//
//     const auto reverse_kl = [](auto& row, auto s, auto t) {
//       const double kl = row.sum([=](auto v) { return weigh(s(v), log_ratio(s(v), t(v))); });
//       return outcome{kl, distillation::gradient{[=](auto v) { return weigh(s(v), log_ratio(s(v), t(v)) - kl); }}};
//     };
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/distillation/detail/logit_rows.hpp>
#include <heddle/distillation/detail/selection.hpp>
#include <heddle/distillation/outcome.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation::inline HEDDLE_ISA {

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {

template <class T>
[[gnu::always_inline]] inline real<T> load(const T* p) {
  if constexpr (std::is_same_v<T, double>) return *p;
  else return simd::load(p);
}
template <class T>
[[gnu::always_inline]] inline void store(T* p, const real<T>& x) {
  if constexpr (std::is_same_v<T, double>) *p = x.value;
  else simd::store(p, x.value);
}

/// Contiguous logits, of T or of bfloat16, which widens on the way.
template <class T>
struct logit_cells {
  const void* at;
  bool narrow;
  [[gnu::always_inline]] inline real<T> load(std::int64_t c) const {
    if constexpr (std::is_same_v<T, float>)
      if (narrow) return simd::load(static_cast<const bfloat16*>(at) + c);
    return detail::load(static_cast<const T*>(at) + c);
  }
};
/// Columns first .. first + count - 1 where they are, if whole vectors can be read there, else in `buffer`.
template <class T>
logit_cells<T> cells(const row_source& s, const void* row, std::int64_t first, std::int64_t count, T* buffer) {
  if (std::is_same_v<T, float> && s.kind == element_kind::bf16 && s.stride == 1 && count % simd::lanes == 0) return {static_cast<const bfloat16*>(row) + first, true};
  return {stage<T>(s, row, first, count, buffer), false};
}

/// Where a kernel puts a chunk of a gradient: the destination itself, past caches or not, or a buffer from which it is delivered.
template <class T>
struct gradient_cells {
  enum class kind : std::uint8_t { buffer, direct, direct_bf16, streamed, streamed_bf16 };
  void* at;
  kind how;
  [[gnu::always_inline]] inline void store(std::int64_t c, const real<T>& x) const {
    if constexpr (std::is_same_v<T, float>) {
      if (how == kind::streamed) return store_past_caches(static_cast<float*>(at) + c, x.value);
      if (how == kind::streamed_bf16) return store_past_caches(static_cast<bfloat16*>(at) + c, x.value);
      if (how == kind::direct_bf16) return simd::store(static_cast<bfloat16*>(at) + c, x.value);
    }
    detail::store(static_cast<T*>(at) + c, x);
  }
  void deliver(const row_sink& s, void* row, std::int64_t first, std::int64_t count) const {
    if (how == kind::buffer) detail::deliver(s, row, first, count, static_cast<const T*>(at));
  }
};
template <class T>
gradient_cells<T> place(const row_sink& s, void* row, std::int64_t first, std::int64_t count, T* buffer) {
  using kind = typename gradient_cells<T>::kind;
  const bool narrow = std::is_same_v<T, float> && s.kind == element_kind::bf16;
  if ((s.kind != kind_of<T> && !narrow) || s.stride != 1 || count % real<T>::lanes != 0) return {buffer, kind::buffer};
  char* const to = static_cast<char*>(row) + first * bytes_of(s.kind);
  const bool streamed = std::is_same_v<T, float> && s.streamed && reinterpret_cast<std::uintptr_t>(to) % 32 == 0;
  if (narrow) return {to, streamed ? kind::streamed_bf16 : kind::direct_bf16};
  return {to, streamed ? kind::streamed : kind::direct};
}

/// A few columns of the named rows: logits, exponentials of the first scan with what makes probabilities of them, and what a formula kept.
/// Where the scan keeps ln s - ln t, that stands for the exponentials of row 1, and its factor is to be added.
template <class T, int named_rows>
struct chunk_rows {
  logit_cells<T> z[named_rows];
  const T* exps[named_rows];
  const T* kept;
  real<T> factor[named_rows];
  std::int64_t first;
};

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

/// `finite`: no logit of the row is -infinity, so that nothing has to be guarded.
template <class T, int named_rows, bool finite_logits, bool keeps_ratio = false, bool keeps_term = false>
struct position {
  using number = real<T>;
  static constexpr int rows = named_rows;
  static constexpr bool finite = finite_logits, scanned = true, has_ratio = keeps_ratio, has_kept = keeps_term;
  const detail::chunk_rows<T, named_rows>* chunk;
  std::int64_t column;   ///< of the first lane
  [[gnu::always_inline]] inline number logit(int i) const { return chunk->z[i].load(column - chunk->first); }
  [[gnu::always_inline]] inline number probability(int i) const { return detail::load(chunk->exps[i] + (column - chunk->first)) * chunk->factor[i]; }
  [[gnu::always_inline]] inline number ratio() const { return detail::load(chunk->exps[1] + (column - chunk->first)) + chunk->factor[1]; }
  [[gnu::always_inline]] inline number kept() const { return detail::load(chunk->kept + (column - chunk->first)); }
};
/// One column.
template <int named_rows>
struct single_position {
  using number = real<double>;
  static constexpr int rows = named_rows;
  static constexpr bool finite = false, scanned = false, has_ratio = false, has_kept = false;
  std::int64_t column;
  real<double> logits[named_rows];
  [[gnu::always_inline]] inline number logit(int i) const { return logits[i]; }
};

template <class R, bool finite = false>
struct entry {
  R log, p;
};
template <class R>
entry(R, R) -> entry<R>;

template <class R, bool finite>
[[gnu::always_inline]] inline R weigh(const entry<R, finite>& p, const std::type_identity_t<R>& x) {
  if constexpr (finite) return p.p * x;
  else return select(p.log == -math::infinity, 0, select(x == math::infinity, x, p.p * x));
}
template <class R, bool a_finite, bool b_finite>
[[gnu::always_inline]] inline R log_ratio(const entry<R, a_finite>& a, const entry<R, b_finite>& b) {
  if constexpr (a_finite && b_finite) return a.log - b.log;
  else return select(a.log == b.log, 0, a.log - b.log);
}

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {
/// e^x of x <= 0 (or barely above).
template <bool finite>
[[gnu::always_inline]] inline real<double> exp_of_log(real<double> x) {
  return exp(x);
}
/// finite: x is a number, and e^x is at least e^-87.33. Our own fit of (e^r - 1) / r on |r| <= ln(2) / 2, relative error 1e-7.
template <bool finite>
[[gnu::always_inline]] inline real<float> exp_of_log(real<float> x) {
  using namespace simd;
  if constexpr (!finite) return simd::exp(x.value);
  const f32x16 y = simd::max(x.value, splat(-87.33f)), round = splat(12582912.f);   // 1.5 * 2^23: adding it rounds to the nearest integer
  const f32x16 n = simd::fma(y, splat(1.44269504f), round);
  const f32x16 r = simd::fma(n - round, splat(-0.693147181f), y);
  f32x16 p = splat(0.008290272f);
  p = simd::fma(p, r, splat(0.04189816f));
  p = simd::fma(p, r, splat(0.16667639f));
  p = simd::fma(p, r, splat(0.49999148f));
  p = simd::fma(p, r, splat(0.9999997f));
  p = simd::fma(p, r, splat(1.f));
  return floats_of(bits_of(p) + shift_left<23>(bits_of(n)));
}

struct named_row {
  row_source source;
  const void* data = nullptr;   // of this row
  double inverse_temperature = 1;
};
struct normaliser {
  double reference = 0, log_sum = 0;   // at or a little below the largest z; ln of sum e^((z - reference) / temperature)
};
}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

/// b t + (1 - b) s
template <class R, bool t_finite, bool s_finite>
[[gnu::always_inline]] inline entry<R, t_finite && s_finite> mixture(const std::type_identity_t<R>& b, const entry<R, t_finite>& t, const entry<R, s_finite>& s) {
  entry<R, t_finite && s_finite> m;
  m.p = b * t.p + (1 - b) * s.p;
  if constexpr (t_finite && s_finite && std::is_same_v<R, real<float>>) m.log.value = detail::log_of_normal(m.p.value, simd::splat(0.f));
  else m.log = log(m.p);
  return m;
}

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {
/// ln of a probability; finite: of one that comes from finite logits, where 0 may pass as e^-88.
template <bool finite, class R>
[[gnu::always_inline]] inline R log_of_mass(const R& p) {
  if constexpr (finite && std::is_same_v<R, real<float>>) return log_of_normal(p.value, simd::splat(0.f));
  else return log(p);
}
}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

template <class T, int i>
class softmax {
 public:
  static constexpr int index = i;
  softmax(const detail::named_row& row, const detail::normaliser& n) : row_(&row), reference_(n.reference), log_sum_(n.log_sum), inverse_temperature_(row.inverse_temperature) {}

  template <class V>
  [[gnu::always_inline]] inline auto operator()(const V& v) const {
    using R = typename V::number;
    static_assert(i < V::rows, "rows of separate vocabularies are not walked together: read columns with log_prob(column)");
    const R log = fma(v.logit(i) - R(reference_), R(inverse_temperature_), R(-log_sum_));
    if constexpr (V::has_ratio && i == 1) return entry<R, V::finite>{log, detail::exp_of_log<V::finite>(log)};
    else if constexpr (V::scanned) return entry<R, V::finite>{log, v.probability(i)};
    else return entry<R, V::finite>{log, exp(log)};
  }
  template <class V>
  [[gnu::always_inline]] inline auto logit(const V& v) const {
    return v.logit(i);
  }

  std::int64_t width() const { return row_->source.width; }
  double temperature() const { return 1. / inverse_temperature_; }
  double lse() const { return reference_ * inverse_temperature_ + log_sum_; }
  double logit_at(std::int64_t column) const { return detail::read_logit(row_->source, row_->data, column); }
  double log_prob(std::int64_t column) const { return math::fma(logit_at(column) - reference_, inverse_temperature_, -log_sum_); }

 private:
  const detail::named_row* row_;
  double reference_, log_sum_, inverse_temperature_;
};

/// q_v = e^(f(v) - log_sum)
template <class F>
struct normalised {
  F log_weight;
  double log_sum;
  template <class V>
  [[gnu::always_inline]] inline auto operator()(const V& v) const {
    using R = typename V::number;
    const R log = log_weight(v) - R(log_sum);
    return entry<R>{log, detail::exp_of_log<false>(log)};
  }
};

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {

inline constexpr std::int64_t longest_chunk = 1024;
inline constexpr int recorded_sums = 16;   // scalars of a row that are kept for a later gradient

/// Scalars of a row, kept when it is first evaluated and read back in the same order when its gradient is asked for later.
struct scalar_record {
  double* values = nullptr;
  int capacity = 0, used = 0;
  bool reading = false;
  void begin(double* memory, int size, bool read) {
    values = memory, capacity = memory ? size : 0, reading = read && memory;
    used = 0;
  }
  template <class Compute>
  void keep(double* numbers, int n, Compute compute) {
    const bool fits = used + n <= capacity;
    if (fits && reading)
      for (int i = 0; i < n; ++i) numbers[i] = values[used + i];
    else compute();
    if (fits && !reading)
      for (int i = 0; i < n; ++i) values[used + i] = numbers[i];
    used += n;
  }
};

struct sorted_columns {
  std::span<const std::int32_t> columns, order;
};

template <class T>
struct row_scratch {
  T* staged[8];      // a chunk of each named row
  T* exps[8];        // e^((z - max so far) / temperature) of each named row, all of it
  double* factors[8];   // what makes probabilities of them, per chunk
  T* kept;           // of a formula, all of the row
  T* values;         // of a formula
  T* sparse[8];      // gradients at single columns
  T* results[8];     // a chunk of each gradient
  std::int32_t* columns;   // selections
  T* keys;
  std::int64_t column_capacity;
};

/// The last term of a formula, as the walk that kept it left it.
template <class F>
struct kept_term {
  F terms;
  template <class V>
  [[gnu::always_inline]] inline auto operator()(const V& v) const {
    if constexpr (V::has_kept) return v.kept();
    else {
      const auto all = terms(v);
      return all.values[sizeof all.values / sizeof all.values[0] - 1];
    }
  }
};

template <class R>
inline constexpr int num_terms = 1;
template <class R, int n>
inline constexpr int num_terms<terms<R, n>> = n;

template <class T>
[[gnu::always_inline]] inline double lane_sum(real<T> x) {
  if constexpr (std::is_same_v<T, double>) return x.value;
  else {
    float lane[simd::lanes];
    simd::store(lane, x.value);
    double pair[8];
    for (int i = 0; i < 8; ++i) pair[i] = static_cast<double>(lane[i]) + static_cast<double>(lane[i + 8]);
    return ((pair[0] + pair[4]) + (pair[2] + pair[6])) + ((pair[1] + pair[5]) + (pair[3] + pair[7]));
  }
}
template <class T>
[[gnu::always_inline]] inline double lane_max(real<T> x) {
  if constexpr (std::is_same_v<T, double>) return x.value;
  else return static_cast<double>(simd::reduce_max(x.value));
}
/// x in the first n lanes, `rest` in the others.
template <class T>
[[gnu::always_inline]] inline real<T> first_lanes(real<T> x, std::int64_t n, real<T> rest) {
  if constexpr (std::is_same_v<T, double>) return x;
  else return n >= simd::lanes ? x.value : simd::select(simd::mask_of((1u << n) - 1u), x.value, rest.value);
}

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

#include <heddle/distillation/detail/row_scan.hpp>
