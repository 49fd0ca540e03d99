// Losses of rows: the general call.
//
// A row is one supervised position: k named rows of logits over one vocabulary (student, teacher, teacher without a condition, reference, ...). A row
// functional is a callable f(row, s, t, ...) with one softmax handle per named row (row.hpp) that returns an outcome (outcome.hpp).
//
//   rows = per_row(f, options, z, y, ...)        values, statuses; named rows: any host matrices [N, V] of float, double, float16 or bfloat16, any strides
//   rows.backward(upstream, dz, dy, ...)         dz[i] = upstream[i] dL_i / dz: any element and strides; may be the logits themselves (same view)
//   measure(f, options, out, z, y, ...)          f returns terms(a, b, ...) of doubles -> out [N, n] of double; weights and metrics
//   with_temperature(y, tau)                     a named row with its own temperature        select_rows(y, map)   its row i is y[map[i]]
// If a named row is double, everything is computed in double.
//
// Optional members of a functional
//   static constexpr moments pair_moments = moments::both  row.kl of named rows 0 and 1 costs no pass of its own (or ::forward, ::reverse: one of the two)
//   static constexpr bool keeps_term = true               row.sum_keeping keeps a number per column; else row.kept computes it again
//   std::int64_t selected_columns() const                 most columns that row.top_k and row.unite give out in one row
//   static constexpr bool separate_vocabularies = true    named rows of different V; walks go over row 0, others are read by column
//   void check(const call_shape&) const                   throws what is wrong with the functional's own data, before anything is written
//
// Bad values: a row with NaN or +infinity, or with nothing above -infinity, gets that status, value 0 and gradient 0; a row whose value is +infinity gets
// status infinite_divergence and gradient 0, as has one whose value is no number. on_bad_row = throw_error throws afterwards and names the row and column. Masked rows are never read: value
// 0, status ok, gradient 0. Rows with upstream 0 are not read by backward.
// Errors before anything is written: shapes, temperatures, mask, map, upstream of good rows that is not finite, and what the functional checks.
// Determinism: a row's bits depend on the chunk and the row alone, not on the executor. Accumulator: see row.hpp.
// Cost per row: O(V) per sum of the formula while the row is in cache, one more pass for the gradient; backward scans the named rows again, but reads recorded
// sums of the formula back. Memory: per worker a few chunks; per row sixteen doubles for per_row, and a row more where a term is kept. Allocates.
//
//     const auto rows = per_row(reverse_kl{}, {.temperature = 2}, student, teacher);
//     const auto w = my_weights(rows.values());                        // a sequence-level loss, a gate, ...
//     rows.backward(w, grad_student);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/share_items.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/core/workspace.hpp>
#include <heddle/distillation/detail/row_inputs.hpp>
#include <heddle/distillation/row.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

/// Divergences of named rows 0 (s) and 1 (t) that the first scan computes on the way.
enum class moments : std::uint8_t { none = 0, reverse = 1, forward = 2, both = 3 };   // reverse: KL(s || t), forward: KL(t || s)

struct row_options {
  double temperature = 1;                         ///< of named rows without their own
  std::span<const std::uint8_t> mask{};           ///< one per row, 0: not supervised; empty: all are
  std::int64_t chunk = 0;                         ///< columns at a time, at most 1024; 0: 1024
  heddle::on_bad_row on_bad_row = heddle::on_bad_row::report;
  executor_ref executor{};
};

/// What a functional may check before anything is written.
struct call_shape {
  std::int64_t rows = 0, vocabulary = 0;
  std::span<const std::uint8_t> mask{};
  std::int64_t teacher_vocabulary = 0;   ///< of named row 1, which may differ where vocabularies are separate
  [[gnu::always_inline]] constexpr bool masked(std::int64_t row) const { return !mask.empty() && mask.data()[row] == 0; }
};

inline namespace HEDDLE_ISA {

/// One id per row, each a column; ids of masked rows may be anything.
template <class Tokens>
void check_tokens(const char* function, const char* argument, const Tokens& tokens, const call_shape& shape) {
  require(static_cast<std::int64_t>(tokens.size()) == shape.rows, function, ": argument '", argument, "' has ", tokens.size(), " entries; expected one per row, ", shape.rows);
  for (std::int64_t r = 0; r < shape.rows; ++r)
    if (!shape.masked(r)) require(tokens.data()[r] >= 0 && tokens.data()[r] < shape.vocabulary, function, ": argument '", argument, "': entry ", r, " is ", tokens.data()[r], "; expected 0 to ", shape.vocabulary - 1);
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

template <class F>
constexpr moments pair_moments_of() {
  if constexpr (!requires { F::pair_moments; }) return moments::none;
  else if constexpr (std::same_as<std::remove_cv_t<decltype(F::pair_moments)>, bool>) return F::pair_moments ? moments::both : moments::none;
  else return F::pair_moments;
}
template <class F>
constexpr bool keeps_term() {
  if constexpr (requires { F::keeps_term; }) return F::keeps_term;
  else return false;
}
template <class F>
concept has_separate_vocabularies = F::separate_vocabularies;

struct bad_value {
  std::int64_t row = -1, column = -1;
  int input = -1;
  heddle::status status = heddle::status::ok;
};

constexpr const char* name_of_input(int i) { return i == 0 ? "student" : i == 1 ? "teacher" : i == 2 ? "third row" : i == 3 ? "fourth row" : "further row"; }

template <class T, class F, int k>
class row_call {
  static constexpr bool separate = has_separate_vocabularies<F>;

 public:
  static constexpr int walked = separate ? 1 : k;
  using walker = row_walker<T, k, walked, static_cast<unsigned>(pair_moments_of<F>()), keeps_term<F>()>;
  static constexpr int record_size = recorded_sums;
  static_assert(pair_moments_of<F>() == moments::none || (k >= 2 && !separate), "pair_moments needs two named rows of one vocabulary");

  row_call(const char* function, const F& functional, const row_options& options, const row_input (&inputs)[static_cast<std::size_t>(k)]) : function_(function), functional_(functional), options_(options) {
    for (int i = 0; i < k; ++i) sources_[i] = inputs[i].source, maps_[i] = inputs[i].map;
    check();
  }

  std::int64_t rows() const { return sources_[0].rows; }
  std::int64_t vocabulary() const { return sources_[0].width; }
  const row_source& source(int i) const { return sources_[i]; }
  const row_options& options() const { return options_; }
  bool masked(std::int64_t r) const { return !options_.mask.empty() && options_.mask[static_cast<std::size_t>(r)] == 0; }

  /// Checks a gradient, and decides how it is written.
  void check_gradient(int g, row_sink& sink, std::int64_t sink_rows, std::int64_t sink_width) const {
    const char* const argument = g == 0 ? "gradient" : "further gradient";
    require(sink_rows == rows(), function_, ": argument '", argument, "': extent 0 is ", sink_rows, "; expected ", rows());
    require(sink_width == sources_[g].width, function_, ": argument '", argument, "': extent 1 is ", sink_width, "; expected ", sources_[g].width);
    for (int i = 0; i < k; ++i)
      require(sink.data != sources_[i].data || rows() == 0 || (sink.kind == sources_[i].kind && sink.stride == sources_[i].stride && sink.row_stride == sources_[i].row_stride && maps_[i].empty()), function_,
              ": argument '", argument, "' begins where logits do, with another shape; expected a buffer of its own, or the very view of those logits");
    for (int i = 0; i < k; ++i)
      require(sink.data == sources_[i].data || !maps_[i].empty() || !overlaps(bytes_of_rows(sink, sources_[i].rows, sources_[i].width), bytes_of_rows(sources_[i], sources_[i].rows, sources_[i].width)), function_, ": argument '", argument, "' overlaps the logits of argument '", name_of_input(i), "'; expected a buffer of its own, or the very view of those logits");
    constexpr std::int64_t cached_bytes = std::int64_t{8} << 20;
    sink.streamed = sink_rows * sink_width * bytes_of(sink.kind) > cached_bytes;
    for (int i = 0; i < k; ++i) sink.streamed = sink.streamed && sink.data != sources_[i].data;
  }

  /// visit(walker, r, record) for every row, shared out among workers; each returns what was wrong with the row. Returns the first bad row.
  template <class Visit>
  bad_value each_row(double* records, Visit visit) const {
    return each_row(0, rows(), records, visit);
  }
  template <class Visit>
  bad_value each_row(std::int64_t begin, std::int64_t end, double* records, Visit visit) const {
    const auto count = static_cast<std::size_t>(end - begin);
    if (count == 0) return {};
    const std::size_t concurrency = options_.executor.concurrency(), workers = count < concurrency ? count : concurrency;
    const std::int64_t chunk = options_.chunk > 0 && options_.chunk < longest_chunk ? options_.chunk : longest_chunk;
    scratch_layout measured;
    row_scratch<T> unused;
    lay_out(measured, unused, chunk);
    const std::size_t share = measured.bytes();
    const scratch memory(function_, {}, workers * (share + scratch_alignment));
    shared_index next(begin);
    options_.executor.bulk(workers, [&](std::size_t worker) {
      std::byte* const own = memory.data() + worker * (share + scratch_alignment);
      bad_value& first_bad = *new (own) bad_value{};
      scratch_layout pieces{own + scratch_alignment};
      row_scratch<T> buffers;
      lay_out(pieces, buffers, chunk);
      walker row(buffers, chunk);
      for (std::int64_t r; (r = next.advance()) < end;) {
        const heddle::status s = visit(row, r, records ? records + r * record_size : nullptr);
        if (s != heddle::status::ok && first_bad.row < 0) first_bad = {r, row.bad_column(), row.bad_input(), s};
      }
      finish_streams();
    });
    bad_value first;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      const auto& found = *reinterpret_cast<const bad_value*>(memory.data() + worker * (share + scratch_alignment));
      if (found.row >= 0 && (first.row < 0 || found.row < first.row)) first = found;
    }
    return first;
  }

  /// Evaluates the functional on row r: `use(outcome)` if the named rows are fine.
  template <class Use>
  heddle::status evaluate(walker& row, std::int64_t r, double* record, bool read_back, Use use) const {
    std::int64_t places[k];
    for (int i = 0; i < k; ++i) places[i] = maps_[i].empty() ? r : maps_[i][static_cast<std::size_t>(r)];
    row.open(r, sources_, places, options_.temperature, record, record_size, read_back);
    row.normalise_rows();
    if (row.status() != heddle::status::ok) return row.status();
    return use(result_of(row));
  }
  /// What the functional says of an opened row.
  auto result_of(walker& row) const {
    return [&]<int... i>(std::integer_sequence<int, i...>) { return functional_(row, row.template handle<i>()...); }(std::make_integer_sequence<int, k>{});
  }

  /// upstream dL / dz of the first G named rows.
  template <int G, class... Gradients>
  void write(walker& row, const outcome<Gradients...>& out, double upstream, const row_sink* sinks) const {
    static_assert(G <= sizeof...(Gradients), "the functional has no gradient with respect to so many named rows");
    double scales[G];
    for (int g = 0; g < G; ++g) scales[g] = upstream * row.inverse_temperature(g);
    [&]<std::size_t... g>(std::index_sequence<g...>) { row.write(std::tie(std::get<g>(out.gradients)...), scales, sinks); }(std::make_index_sequence<G>{});
  }
  template <int G>
  void clear(std::int64_t r, const row_sink* sinks) const {
    for (int g = 0; g < G; ++g) write_zeros(sinks[g], r, sources_[g].width);
  }

  void throw_if_asked(const bad_value& bad) const {
    if (bad.row < 0 || options_.on_bad_row != heddle::on_bad_row::throw_error) return;
    if (bad.status == heddle::status::nan_logit || bad.status == heddle::status::inf_logit)
      fail(function_, ": argument '", name_of_input(bad.input), "': row ", bad.row, ", column ", bad.column, " is ", bad.status == heddle::status::nan_logit ? "NaN" : "+infinity", "; expected a number or -infinity");
    if (bad.input >= 0) fail(function_, ": argument '", name_of_input(bad.input), "': row ", bad.row, " has nothing above -infinity");
    fail(function_, ": row ", bad.row, " has status ", name_of(bad.status));
  }

 private:
  void check() const {
    require(options_.temperature > 0 && options_.temperature < math::infinity, function_, ": option 'temperature' is ", options_.temperature, "; expected a positive number");
    require(options_.chunk >= 0, function_, ": option 'chunk' is ", options_.chunk, "; expected 0 or more");
    for (int i = 0; i < k; ++i) {
      require(sources_[i].rows == rows(), function_, ": argument '", name_of_input(i), "': extent 0 is ", sources_[i].rows, "; expected ", rows());
      require(sources_[i].width > 0, function_, ": argument '", name_of_input(i), "': extent 1 is ", sources_[i].width, "; expected 1 or more");
      require(sources_[i].width <= std::numeric_limits<std::int32_t>::max(), function_, ": argument '", name_of_input(i), "': extent 1 is ", sources_[i].width, "; expected less than 2^31");
      const double temperature = sources_[i].temperature > 0 ? sources_[i].temperature : options_.temperature;
      require(1. / temperature <= static_cast<double>(std::numeric_limits<float>::max()), function_, ": the temperature of argument '", name_of_input(i), "' is ", temperature, "; expected one whose inverse is a number");
      if (!separate) require(sources_[i].width == vocabulary(), function_, ": argument '", name_of_input(i), "': extent 1 is ", sources_[i].width, "; expected ", vocabulary());
    }
    require(options_.mask.empty() || static_cast<std::int64_t>(options_.mask.size()) == rows(), function_, ": option 'mask' has ", options_.mask.size(), " entries; expected none or one per row, ", rows());
    if constexpr (requires(const call_shape& shape) { functional_.check(shape); }) functional_.check(call_shape{rows(), vocabulary(), options_.mask, k > 1 ? sources_[k > 1].width : 0});
  }
  void lay_out(scratch_layout& pieces, row_scratch<T>& to, std::int64_t chunk) const {
    const auto columns = static_cast<std::size_t>(chunk + 2 * simd::lanes);
    for (int i = 0; i < k; ++i) to.staged[i] = pieces.take<T>(columns), to.sparse[i] = pieces.take<T>(columns), to.results[i] = pieces.take<T>(columns);
    for (int i = 0; i < walked; ++i) {
      to.exps[i] = pieces.take<T>(static_cast<std::size_t>(vocabulary() + simd::lanes));
      to.factors[i] = pieces.take<double>(static_cast<std::size_t>(vocabulary() / (chunk < simd::lanes ? chunk : chunk / simd::lanes * simd::lanes) + 3));
    }
    to.values = pieces.take<T>(columns);
    to.kept = keeps_term<F>() ? pieces.take<T>(static_cast<std::size_t>(vocabulary() + simd::lanes)) : nullptr;
    to.column_capacity = 0;
    if constexpr (requires { functional_.selected_columns(); }) {
      const std::int64_t asked = functional_.selected_columns();
      to.column_capacity = asked < 4 * vocabulary() ? asked : 4 * vocabulary();
    }
    to.columns = pieces.take<std::int32_t>(static_cast<std::size_t>(to.column_capacity));
    to.keys = pieces.take<T>(static_cast<std::size_t>(to.column_capacity));
  }

  const char* function_;
  F functional_;
  row_options options_;
  row_source sources_[k];
  std::span<const std::int32_t> maps_[k];
};

/// float, or double if some matrix of logits is.
template <class Rows>
struct computes_in {
  using type = std::conditional_t<std::is_same_v<element_type<Rows>, double>, double, float>;
};
template <class Rows>
struct computes_in<tempered_rows<Rows>> : computes_in<Rows> {};
template <class Rows>
struct computes_in<selected_rows<Rows>> : computes_in<Rows> {};
template <class... Rows>
using number_of = std::conditional_t<(std::is_same_v<typename computes_in<Rows>::type, double> || ...), double, float>;

/// The value of an outcome; -infinity and what is not a number came from infinities too.
inline double defined(double value) { return value - value == 0 ? value : math::infinity; }

/// One row of a call: value (and gradient, if G > 0 and upstream is not 0).
template <int G, class Call>
heddle::status evaluate_row(const Call& call, typename Call::walker& row, std::int64_t r, double* record, double& value, double upstream, const row_sink* sinks) {
  value = 0;
  if (call.masked(r)) {
    call.template clear<G>(r, sinks);
    return heddle::status::ok;
  }
  bool written = false;
  const heddle::status s = call.evaluate(row, r, record, false, [&](const auto& out) {
    if (row.status() == heddle::status::infinite_divergence) value = math::infinity;
    if (row.status() != heddle::status::ok) return row.status();
    value = defined(out.value);
    if (!(value - value == 0)) return heddle::status::infinite_divergence;
    if constexpr (G > 0)
      if (upstream != 0) call.template write<G>(row, out, upstream, sinks), written = true;
    return heddle::status::ok;
  });
  if (!written) call.template clear<G>(r, sinks);
  return s;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// Values and statuses of rows, and their gradient on demand. Refers to the logits, the mask and the executor: they must outlive it, and the logits stay as they are.
template <class T, class F, int k>
class row_losses {
  using call_type = detail::row_call<T, F, k>;

 public:
  row_losses(const F& functional, const row_options& options, const detail::row_input (&inputs)[static_cast<std::size_t>(k)]) : call_("per_row", functional, options, inputs) {
    const auto n = static_cast<std::size_t>(call_.rows());
    values_.resize(n), status_.resize(n), records_.resize(n * call_type::record_size);
    const detail::bad_value bad = call_.each_row(records_.data(), [&](typename call_type::walker& row, std::int64_t r, double* record) {
      return status_[static_cast<std::size_t>(r)] = detail::evaluate_row<0>(call_, row, r, record, values_[static_cast<std::size_t>(r)], 0, nullptr);
    });
    call_.throw_if_asked(bad);
  }

  std::int64_t size() const { return call_.rows(); }
  std::span<const double> values() const { return {values_.data(), values_.size()}; }
  std::span<const heddle::status> status() const { return {status_.data(), status_.size()}; }
  bool masked(std::int64_t r) const { return call_.masked(r); }
  const row_options& options() const { return call_.options(); }
  /// Of the student.
  double temperature() const { return call_.source(0).temperature > 0 ? call_.source(0).temperature : options().temperature; }
  std::int64_t rows_kept() const {
    std::int64_t kept = 0;
    for (std::int64_t r = 0; r < size(); ++r) kept += !masked(r) && status_[static_cast<std::size_t>(r)] == heddle::status::ok;
    return kept;
  }

  /// upstream[r] * dL_r / dz of named row 0, then of the next ones. One call at a time on one object: functionals may work in memory of their own.
  template <matrix... Gradients>
  void backward(std::span<const double> upstream, const Gradients&... gradients) const {
    constexpr int G = sizeof...(Gradients);
    static_assert(G >= 1 && G <= k, "backward takes a gradient for the first, the first two, ... named rows");
    require(static_cast<std::int64_t>(upstream.size()) == size(), "backward: argument 'upstream' has ", upstream.size(), " entries; expected one per row, ", size());
    for (std::int64_t r = 0; r < size(); ++r)
      if (!masked(r) && status_[static_cast<std::size_t>(r)] == heddle::status::ok)
        require(upstream.data()[r] - upstream.data()[r] == 0, "backward: argument 'upstream': entry ", r, " is ", upstream.data()[r], "; expected a finite number");
    detail::row_sink sinks[] = {detail::sink_of(gradients)...};
    int g = 0;
    (call_.check_gradient(g, sinks[g], view_of(gradients).extent(0), view_of(gradients).extent(1)), ..., ++g);
    call_.each_row(const_cast<double*>(records_.data()), [&](typename call_type::walker& row, std::int64_t r, double* record) {
      const double u = upstream.data()[r];
      if (u == 0 || masked(r) || status_[static_cast<std::size_t>(r)] != heddle::status::ok) call_.template clear<G>(r, sinks);
      else
        call_.evaluate(row, r, record, true, [&](const auto& out) {
          call_.template write<G>(row, out, u, sinks);
          return heddle::status::ok;
        });
      return heddle::status::ok;
    });
  }

 private:
  call_type call_;
  aligned_vector<double> values_, records_;
  aligned_vector<heddle::status> status_;
};

template <class F, detail::row_argument... Rows>
auto per_row(const F& functional, const row_options& options, const Rows&... rows) {
  constexpr int k = sizeof...(Rows);
  static_assert(k >= 1 && k <= 8, "one to eight named rows");
  const detail::row_input inputs[] = {detail::input_of(rows)...};
  return row_losses<detail::number_of<Rows...>, F, k>(functional, options, inputs);
}
template <class F, detail::row_argument First, detail::row_argument... Rows>
auto per_row(const F& functional, const First& first, const Rows&... rows) {
  return per_row(functional, row_options{}, first, rows...);
}

/// out[r] = the terms that the functional returns for row r; zeros for masked and bad rows. Returns the statuses.
template <class F, tensor_of<2> Out, detail::row_argument... Rows>
  requires(host_tensor<Out> && writable_tensor<Out> && std::same_as<element_type<Out>, double>)
aligned_vector<heddle::status> measure(const F& functional, const row_options& options, const Out& out, const Rows&... rows) {
  constexpr int k = sizeof...(Rows);
  const detail::row_input inputs[] = {detail::input_of(rows)...};
  using call_type = detail::row_call<detail::number_of<Rows...>, F, k>;
  const call_type call("measure", functional, options, inputs);
  const auto to = view_of(out);
  using result = decltype(call.result_of(std::declval<typename call_type::walker&>()));
  constexpr int n = detail::num_terms<result>;
  require_shape("measure", "out", to, extents{call.rows(), n});
  aligned_vector<heddle::status> statuses(static_cast<std::size_t>(call.rows()));
  const detail::bad_value bad = call.each_row(nullptr, [&](typename call_type::walker& row, std::int64_t r, double*) {
    for (int i = 0; i < n; ++i) to(r, i) = 0;
    heddle::status& s = statuses[static_cast<std::size_t>(r)];
    if (call.masked(r)) return s = heddle::status::ok;
    return s = call.evaluate(row, r, nullptr, false, [&](const auto& values) {
      if (row.status() == heddle::status::ok)
        for (int i = 0; i < n; ++i) to(r, i) = values.values[i];
      return row.status();
    });
  });
  call.throw_if_asked(bad);
  return statuses;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
