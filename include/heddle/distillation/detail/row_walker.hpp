// Walks of formulas over one row: the end of row.hpp, which describes them.
#pragma once
#include <heddle/distillation/detail/row_scan.hpp>

namespace heddle::distillation::inline HEDDLE_ISA {

/// keeps_term: there is memory for a number per column.
template <class T, int named_rows, int walked, unsigned wanted_moments, bool keeps_term = false>
class row_walker : detail::row_scan<T, named_rows, walked, wanted_moments> {
  using scan = detail::row_scan<T, named_rows, walked, wanted_moments>;
  using scan::memory_, scan::rows_, scan::normalisers_, scan::kl_of_first_two_, scan::finite_, scan::status_, scan::index_, scan::chunk_at, scan::cells, scan::not_negative, scan::moment_of, scan::lanes;
  using number = real<T>;
  template <bool finite>
  using place = position<T, walked, finite, scan::keeps_ratio, keeps_term>;
  using chunk_rows = detail::chunk_rows<T, walked>;

 public:
  row_walker(const detail::row_scratch<T>& memory, std::int64_t chunk) : scan(memory, chunk) {}

  // --- for formulas ---
  std::int64_t index() const { return index_; }
  std::int64_t vocabulary() const { return rows_[0].source.width; }
  void reject(heddle::status s) {
    if (status_ == heddle::status::ok) status_ = s;
  }

  template <class F>
  auto sum(F f) {
    using result = decltype(f(place<false>{}));
    constexpr int n = detail::num_terms<result>;
    terms<double, n> totals;
    record_.keep(totals.values, n, [&] { guarded([&]<bool finite>() { sum_terms<finite, n>(f, totals.values); }); });
    if constexpr (std::is_same_v<result, number>) return totals.values[0];
    else return totals;
  }
  /// f(v) = terms(a, ..., x): sums of all but x, which row.kept(f) is from then on. One at a time; where nothing is kept, kept(f) computes x again.
  template <class F>
  auto sum_keeping(F f) {
    constexpr int n = detail::num_terms<decltype(f(place<false>{}))> - 1;
    terms<double, n> totals, again;
    bool walked_now = !keeps_term;
    const auto walk_once = [&](terms<double, n>& to) { guarded([&]<bool finite>() { sum_terms<finite, n, keeps_term>(f, to.values); }), walked_now = true; };
    record_.keep(totals.values, n, [&] { walk_once(totals); });
    if (!walked_now) walk_once(again);   // the sums are on record, the terms are not
    return totals;
  }
  template <class F>
  detail::kept_term<F> kept(F f) const {
    return {f};
  }
  /// ln p - ln q; of named rows 0 and 1 without another look at their logits where moments::reverse is all that is wanted.
  template <class P, class Q>
  auto log_ratio(P p, Q q) const {
    return [=](auto v) __attribute__((always_inline)) {
      if constexpr (decltype(v)::has_ratio && decltype(v)::finite && std::is_same_v<P, softmax<T, 0>> && std::is_same_v<Q, softmax<T, 1>>) return v.ratio();
      else return distillation::log_ratio(p(v), q(v));
    };
  }
  template <class F>
  double maximum(F f) {
    double most;
    record_.keep(&most, 1, [&] { guarded([&]<bool finite>() { most = largest<finite>(f); }); });
    return most;
  }
  template <class F>
  double minimum(F f) {
    return -maximum([f](auto v) { return -f(v); });
  }
  template <class F>
  double log_sum_exp(F f) {
    double lse;
    record_.keep(&lse, 1, [&] { guarded([&]<bool finite>() { lse = log_sum<finite>(f); }); });
    return lse;
  }
  template <class F>
  normalised<F> normalise(F f) {
    const double lse = log_sum_exp(f);
    if (lse == -math::infinity) return reject(heddle::status::empty_support), normalised<F>{f, 0};
    if (!(lse < math::infinity)) return reject(heddle::status::infinite_divergence), normalised<F>{f, 0};
    return {f, lse};
  }

  /// sum p (ln p - ln q), at least 0
  template <class P, class Q>
  double kl(P p, Q q) {
    if constexpr (moment_of[0] && std::is_same_v<P, softmax<T, 0>> && std::is_same_v<Q, softmax<T, 1>>) return kl_of_first_two_[0];
    else if constexpr (moment_of[1] && std::is_same_v<P, softmax<T, 1>> && std::is_same_v<Q, softmax<T, 0>>) return kl_of_first_two_[1];
    else return not_negative(sum([=](auto v) { return weigh(p(v), distillation::log_ratio(p(v), q(v))); }));
  }
  template <class P>
  double entropy(P p) {
    return not_negative(-sum([=](auto v) { return weigh(p(v), p(v).log); }));
  }
  template <class P, class Q>
  double tv(P p, Q q) {
    return 0.5 * sum([=](auto v) { return abs(p(v).p - q(v).p); });
  }
  /// The gradient s_v (a_v - sum s a) of a loss whose derivative with respect to s_v is a_v.
  template <class S, class A>
  auto chain(S s, A a) {
    const double mean = sum([=](auto v) { return weigh(s(v), a(v)); });
    return [=](auto v) __attribute__((always_inline)) { return weigh(s(v), a(v) - mean); };
  }

  /// A single column, in double.
  single_position<walked> at(std::int64_t column) const {
    single_position<walked> v;
    v.column = column;
    for (int i = 0; i < walked; ++i) v.logits[i] = detail::read_logit(rows_[i].source, rows_[i].data, column);
    return v;
  }
  template <int i>
  std::int64_t argmax(const softmax<T, i>&) {
    double best;
    record_.keep(&best, 1, [&] { best = static_cast<double>(first_at_maximum(i)); });
    return static_cast<std::int64_t>(best);
  }
  template <int i>
  std::span<const std::int32_t> top_k(const softmax<T, i>&, std::int64_t k) {
    const std::int64_t width = rows_[i].source.width, count = k < width ? k : width;
    std::int32_t* const columns = take_columns(count);
    if (count == width) {
      for (std::int64_t c = 0; c < width; ++c) columns[c] = static_cast<std::int32_t>(c);
      return {columns, static_cast<std::size_t>(count)};
    }
    detail::best_k<T> best(memory_.keys, columns, count);
    each_chunk(i, [&](const T* z, std::int64_t first, std::int64_t n) {
      constexpr std::int64_t step = 4 * lanes;
      for (std::int64_t c = 0; c < n; c += step) {
        if (best.full() && c + step <= n && !any_above(z + c, best.worst())) continue;
        for (std::int64_t l = c; l < c + step && l < n; ++l)
          if (!best.full() || z[l] > best.worst()) best.offer(z[l], static_cast<std::int32_t>(first + l));
      }
    });
    detail::sort_by_index(columns, memory_.keys, count);
    return {columns, static_cast<std::size_t>(count)};
  }
  /// Ascending columns, and where each stood in the list.
  detail::sorted_columns sort(std::span<const std::int32_t> list) {
    const auto n = static_cast<std::int64_t>(list.size());
    std::int32_t *const columns = take_columns(n), *const order = take_columns(n);
    for (std::int64_t i = 0; i < n; ++i) columns[i] = list.data()[i], order[i] = static_cast<std::int32_t>(i);
    detail::sort_by_index(columns, order, n);
    return {{columns, list.size()}, {order, list.size()}};
  }
  std::span<const std::int32_t> unite(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    std::int32_t* const columns = take_columns(static_cast<std::int64_t>(a.size() + b.size()));
    std::size_t n = 0, i = 0, j = 0;
    while (i < a.size() || j < b.size()) {
      const bool from_a = j == b.size() || (i < a.size() && a.data()[i] <= b.data()[j]);
      const std::int32_t column = from_a ? a.data()[i] : b.data()[j];
      if (i < a.size() && a.data()[i] == column) ++i;
      if (j < b.size() && b.data()[j] == column) ++j;
      columns[n++] = column;
    }
    return {columns, n};
  }

  // --- for the calls ---
  void open(std::int64_t index, const detail::row_source* sources, const std::int64_t* places, double temperature, double* memory, int capacity, bool read_back) {
    scan::open_rows(index, sources, places, temperature);
    columns_used_ = 0;
    record_.begin(memory, capacity, read_back);
  }
  heddle::status status() const { return status_; }
  int bad_input() const { return scan::bad_input_; }
  std::int64_t bad_column() const { return scan::bad_column_; }

  /// Maxima, normalisers and moments of the named rows; finds bad ones.
  void normalise_rows() { scan::scan(); }
  template <int i>
  softmax<T, i> handle() const {
    return {rows_[i], normalisers_[i]};
  }

  /// Writes scale[g] * gradient g to row `index` of sink g.
  template <class... Gradients>
  void write(const std::tuple<Gradients...>& gradients, const double* scales, const detail::row_sink* sinks) {
    guarded([&]<bool finite>() { write_chunks<finite>(gradients, scales, sinks, std::make_index_sequence<sizeof...(Gradients)>{}); });
  }
  template <class F, class G, class... Sparse>
  void write(const std::tuple<const gradient<choice<F, G>, Sparse...>&>& one, const double* scales, const detail::row_sink* sinks) {
    const auto& chosen = std::get<0>(one);
    const auto with = [&](const auto& dense) {
      std::apply([&](const Sparse&... sparse) {
        const gradient g(dense, sparse...);
        write(std::tuple<const decltype(g)&>(g), scales, sinks);
      }, chosen.sparse);
    };
    if (chosen.dense.first) with(chosen.dense.f);
    else with(chosen.dense.g);
  }
  double inverse_temperature(int i) const { return rows_[i].inverse_temperature; }

 private:
  template <class F>
  void guarded(F f) {
    if constexpr (std::is_same_v<T, float>)
      if (finite_) return f.template operator()<true>();
    f.template operator()<false>();
  }
  template <class F>
  void each_chunk(int i, F f) {
    const detail::named_row& row = rows_[i];
    for (std::int64_t first = 0, n; first < row.source.width; first += n) n = chunk_at(first, row.source.width), f(detail::stage<T>(row.source, row.data, first, n, memory_.staged[i]), first, n);
  }
  template <bool finite>
  [[gnu::always_inline]] inline static place<finite> at_columns(const chunk_rows& rows, std::int64_t c) {
    return {&rows, rows.first + c};
  }
  template <class Chunk>
  void walk(Chunk chunk) {
    const std::int64_t width = vocabulary();
    std::int64_t number_of_chunk = 0;
    for (std::int64_t first = 0, n; first < width; first += n, ++number_of_chunk) {
      n = chunk_at(first, width);
      chunk_rows rows;
      rows.first = first, rows.kept = keeps_term ? memory_.kept + first : nullptr;
      for (int i = 0; i < walked; ++i) {
        rows.z[i] = cells(i, first, n);
        rows.exps[i] = memory_.exps[i] + first, rows.factor[i] = memory_.factors[i][number_of_chunk];
      }
      chunk(rows, n);
    }
  }

  template <bool finite, int n, bool keeping = false, class F>
  [[gnu::flatten]] void sum_terms(F f, double (&totals)[n]) {
    for (double& t : totals) t = 0;
    walk([&](const chunk_rows& rows, std::int64_t count) __attribute__((always_inline)) {
      number sums[n];
      for (number& s : sums) s = 0;
      for (std::int64_t c = 0; c < count; c += lanes) {
        const auto values = f(at_columns<finite>(rows, c));
        if constexpr (std::is_same_v<std::remove_cv_t<decltype(values)>, number>) sums[0] = sums[0] + values;
        else
          for (int i = 0; i < n; ++i) sums[i] = sums[i] + values.values[i];
        if constexpr (keeping) detail::store(memory_.kept + rows.first + c, values.values[n]);
      }
      for (int i = 0; i < n; ++i) totals[i] += detail::lane_sum(detail::first_lanes(sums[i], count, number(0)));
    });
  }
  template <bool finite, class F>
  [[gnu::flatten]] double largest(F f) {
    double most = -math::infinity;
    walk([&](const chunk_rows& rows, std::int64_t count) __attribute__((always_inline)) {
      number best = -math::infinity;
      for (std::int64_t c = 0; c < count; c += lanes) best = max(f(at_columns<finite>(rows, c)), best);
      const double own = detail::lane_max(detail::first_lanes(best, count, number(-math::infinity)));
      most = own > most ? own : most;
    });
    return most;
  }
  template <bool finite, class F>
  [[gnu::flatten]] double log_sum(F f) {
    double most = -math::infinity, total = 0;
    walk([&](const chunk_rows& rows, std::int64_t count) __attribute__((always_inline)) {
      number best = -math::infinity;
      for (std::int64_t c = 0; c < count; c += lanes) {
        const number x = detail::first_lanes(number(f(at_columns<finite>(rows, c))), count, number(-math::infinity));
        best = max(x, best);
        detail::store(memory_.values + c, x);
      }
      const double own = detail::lane_max(best);
      if (own > most) total = total > 0 ? total * math::exp(most - own) : 0, most = own;
      const number shift = most == -math::infinity ? 0 : most;
      number sum = 0;
      for (std::int64_t c = 0; c < count; c += lanes) sum = sum + detail::exp_of_log<false>(detail::load(memory_.values + c) - shift);
      total += detail::lane_sum(sum);
    });
    return most == -math::infinity && total == 0 ? most : most + math::log(total);
  }

  /// Of four vectors.
  static bool any_above(const T* z, T limit) {
    number most = detail::load(z);
    for (int i = 1; i < 4; ++i) most = max(detail::load(z + i * lanes), most);
    if constexpr (std::is_same_v<T, double>) return most.value > limit;
    else return simd::bits_of(simd::less(simd::splat(limit), most.value)) != 0;
  }
  std::int64_t first_at_maximum(int i) {
    std::int64_t found = 0;
    T most = -std::numeric_limits<T>::infinity();
    each_chunk(i, [&](const T* z, std::int64_t first, std::int64_t n) {
      number own = -math::infinity;
      for (std::int64_t c = 0; c < n; c += lanes) own = max(detail::load(z + c), own);
      if (!(detail::lane_max(own) > static_cast<double>(most))) return;
      for (std::int64_t c = 0; c < n; ++c)
        if (z[c] > most) most = z[c], found = first + c;
    });
    return found;
  }
  std::int32_t* take_columns(std::int64_t count) {
    require(columns_used_ + count <= memory_.column_capacity, "distillation: a functional selects more than ", memory_.column_capacity, " columns of a row; its selected_columns() has to say how many");
    std::int32_t* const columns = memory_.columns + columns_used_;
    columns_used_ += count;
    return columns;
  }

  // --- the last pass ---
  template <class V, class Sparse>
  bool add_sparse(const Sparse& sparse, std::int64_t& cursor, std::int64_t first, std::int64_t n, T* sums, bool begun) {
    for (; cursor < sparse.count() && sparse.column(cursor) < first + n; ++cursor) {
      if (!begun)
        for (std::int64_t c = 0; c < n + lanes - 1; ++c) sums[c] = 0;
      begun = true;
      sums[sparse.column(cursor) - first] += static_cast<T>(sparse(at(sparse.column(cursor)), cursor));
    }
    return begun;
  }
  template <bool finite, class... Gradients, std::size_t... g>
  [[gnu::flatten]] void write_chunks(const std::tuple<Gradients...>& gradients, const double* scales, const detail::row_sink* sinks, std::index_sequence<g...>) {
    constexpr std::size_t count = sizeof...(Gradients);
    void* to_row[count] = {detail::row_of(sinks[g], index_)...};
    const number scale[count] = {number(scales[g])...};
    auto cursors = std::tuple{cursor_set<std::tuple_size_v<decltype(std::get<g>(gradients).sparse)>>{}...};
    walk([&](const chunk_rows& rows, std::int64_t n) __attribute__((always_inline)) {
      const std::int64_t first = rows.first;
      // everything a chunk needs is read before any of it is written: the gradient may replace the logits
      const bool sparse[count] = {sparse_of(std::get<g>(gradients).sparse, std::get<g>(cursors), first, n, memory_.sparse[g])...};
      const detail::gradient_cells<T> to[count] = {detail::place<T>(sinks[g], to_row[g], first, n, memory_.results[g])...};
      for (std::int64_t c = 0; c < n; c += lanes) {
        const place<finite> v = at_columns<finite>(rows, c);
        const number values[count] = {number(std::get<g>(gradients).dense(v))...};
        (to[g].store(c, (sparse[g] ? values[g] + detail::load(memory_.sparse[g] + c) : values[g]) * scale[g]), ...);
      }
      (to[g].deliver(sinks[g], to_row[g], first, n), ...);
    });
  }
  template <std::size_t n>
  struct cursor_set {
    std::int64_t at[n ? n : 1] = {};
  };
  template <class... Sparse, std::size_t n>
  bool sparse_of(const std::tuple<Sparse...>& all, cursor_set<n>& cursors, std::int64_t first, std::int64_t count, T* sums) {
    bool begun = false;
    if constexpr (n > 0)
      [&]<std::size_t... i>(std::index_sequence<i...>) { ((begun = add_sparse<place<false>>(std::get<i>(all), cursors.at[i], first, count, sums, begun)), ...); }(std::make_index_sequence<n>{});
    return begun;
  }

  std::int64_t columns_used_ = 0;
  detail::scalar_record record_;
};

}  // namespace heddle::distillation::inline HEDDLE_ISA
