// The engine of one row: the end of row.hpp, which describes it.
#pragma once
#include <heddle/distillation/row.hpp>

namespace heddle::distillation::inline HEDDLE_ISA {

/// `walked`: named rows that share the vocabulary; the others are read by column only.
template <class T, int named_rows, int walked, unsigned wanted_moments>
class row_walker {
  using number = real<T>;
  static constexpr std::int64_t lanes = number::lanes;
  static constexpr bool moments = wanted_moments != 0, moment_of[2] = {(wanted_moments & 1) != 0, (wanted_moments & 2) != 0};   // KL(0 || 1), KL(1 || 0)
  template <bool finite>
  using place = position<T, walked, finite>;
  using chunk_rows = detail::chunk_rows<T, walked>;

 public:
  row_walker(const detail::row_scratch<T>& memory, std::int64_t chunk) : memory_(memory), chunk_(chunk) {}

  // --- for formulas ---
  std::int64_t index() const { return index_; }
  std::int64_t vocabulary() const { return rows_[0].source.width; }
  void reject(heddle::status s) {
    if (status_ == heddle::status::ok) status_ = s;
  }

  template <class F>
  auto sum(F f) {
    constexpr int n = detail::num_terms<decltype(f(place<false>{}))>;
    double totals[n];
    record_.keep(totals, n, [&] { guarded([&]<bool finite>() { sum_terms<finite, n>(f, totals); }); });
    if constexpr (std::is_same_v<decltype(f(place<false>{})), number>) return totals[0];
    else {
      terms<double, n> all;
      for (int i = 0; i < n; ++i) all.values[i] = totals[i];
      return all;
    }
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
    else return not_negative(sum([=](auto v) { return weigh(p(v), log_ratio(p(v), q(v))); }));
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
    index_ = index, status_ = heddle::status::ok, columns_used_ = 0, bad_input_ = -1, bad_column_ = -1;
    for (int i = 0; i < named_rows; ++i) {
      const double own = sources[i].temperature > 0 ? sources[i].temperature : temperature;
      rows_[i] = {sources[i], detail::row_of(sources[i], places[i]), 1. / own};
    }
    record_.begin(memory, capacity, read_back);
  }
  heddle::status status() const { return status_; }
  int bad_input() const { return bad_input_; }
  std::int64_t bad_column() const { return bad_column_; }

  /// Maxima, normalisers and moments of the named rows; finds bad ones.
  void normalise_rows() {
    double numbers[2 * named_rows + 3];
    bool scanned = false;
    record_.keep(numbers, 2 * named_rows + 3, [&] {
      scan(), scanned = true;
      for (int i = 0; i < named_rows; ++i) numbers[2 * i] = normalisers_[i].max, numbers[2 * i + 1] = normalisers_[i].log_sum;
      numbers[2 * named_rows] = finite_, numbers[2 * named_rows + 1] = kl_of_first_two_[0], numbers[2 * named_rows + 2] = kl_of_first_two_[1];
    });
    for (int i = 0; i < named_rows; ++i) normalisers_[i] = {numbers[2 * i], numbers[2 * i + 1]};
    finite_ = numbers[2 * named_rows] != 0, kl_of_first_two_[0] = numbers[2 * named_rows + 1], kl_of_first_two_[1] = numbers[2 * named_rows + 2];
    if (!scanned)
      for (int i = 0; i < walked; ++i) fill_exps(i);
  }
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
  static double not_negative(double x) { return x < 0 ? 0 : x; }   // NaN stays

  template <class F>
  void guarded(F f) {
    if constexpr (std::is_same_v<T, float>)
      if (finite_) return f.template operator()<true>();
    f.template operator()<false>();
  }
  /// A chunk is a number of whole vectors, or less than one.
  std::int64_t chunk_at(std::int64_t first, std::int64_t width) const {
    const std::int64_t n = width - first < chunk_ ? width - first : chunk_;
    return n > lanes ? n - n % lanes : n;
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
      rows.first = first;
      for (int i = 0; i < walked; ++i) {
        rows.z[i] = detail::stage<T>(rows_[i].source, rows_[i].data, first, n, memory_.staged[i]);
        rows.exps[i] = memory_.exps[i] + first, rows.factor[i] = memory_.factors[i][number_of_chunk];
      }
      chunk(rows, n);
    }
  }

  template <bool finite, int n, class F>
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
    std::int64_t found = -1;
    each_chunk(i, [&](const T* z, std::int64_t first, std::int64_t n) {
      for (std::int64_t c = 0; c < n && found < 0; ++c)
        if (static_cast<double>(z[c]) == normalisers_[i].max) found = first + c;
    });
    return found;
  }
  std::int32_t* take_columns(std::int64_t count) {
    require(columns_used_ + count <= memory_.column_capacity, "distillation: a functional selects more than ", memory_.column_capacity, " columns of a row; its selected_columns() has to say how many");
    std::int32_t* const columns = memory_.columns + columns_used_;
    columns_used_ += count;
    return columns;
  }

  // --- the first pass ---
  struct running {
    double max = -math::infinity, sum = 0;
  };
  struct range {
    number max, squares;   // squares: finite only if all logits are, and small enough that no formula multiplies a rounded mass by more
  };
  [[gnu::always_inline]] inline static range range_of(const T* z, std::int64_t n) {
    range r{-math::infinity, 0};
    for (std::int64_t c = 0; c < n; c += lanes) {
      const number x = detail::load(z + c);
      r.max = max(x, r.max), r.squares = fma(x, x, r.squares);
    }
    return r;
  }
  /// Asks for what comes a chunk later: its columns arrive while those of this chunk are worked on.
  struct prefetcher {
    const char* at;
    std::int64_t step;
    [[gnu::always_inline]] inline void operator()(std::int64_t c) const { __builtin_prefetch(at + c * step, 0, 2); }
  };
  prefetcher behind(int i, std::int64_t column) const {
    const std::int64_t step = rows_[i].source.stride * detail::bytes_of(rows_[i].source.kind);
    return {static_cast<const char*>(rows_[i].data) + column * step, step};
  }
  void scan() {
    running sums[named_rows];
    double cross[2] = {};   // sum e^x_i (x_i - x_j) of rows 0 and 1, x = (z - max) / temperature
    finite_ = true;
    if constexpr (walked == named_rows) scan_rows(sums, cross, 0, named_rows);
    else
      for (int i = 0; i < named_rows; ++i) scan_rows(sums, cross, i, i + 1);
    for (int i = 0; i < named_rows; ++i) {
      normalisers_[i] = {sums[i].max, math::log(sums[i].sum)};
      if (sums[i].max == -math::infinity || !(sums[i].sum > 0)) return find_bad(i);
    }
    for (int i = 0; i < walked; ++i) finish_factors(i);
    if constexpr (moments)
      for (int i = 0; i < 2; ++i) {
        if (!moment_of[i]) continue;
        const double kl = (cross[i] / sums[i].sum - normalisers_[i].log_sum) + normalisers_[1 - i].log_sum;
        kl_of_first_two_[i] = kl != kl ? math::infinity : not_negative(kl);
      }
  }
  void scan_rows(running (&sums)[named_rows], double (&cross)[2], int begin, int end) {
    const std::int64_t width = rows_[begin].source.width;
    std::int64_t chunk = 0;
    for (std::int64_t first = 0, n; first < width; first += n, ++chunk) {
      n = chunk_at(first, width);
      const T* z[named_rows];
      double growth[named_rows];
      bool finite = true;
      for (int i = begin; i < end; ++i) {
        z[i] = detail::stage<T>(rows_[i].source, rows_[i].data, first, n, memory_.staged[i]);
        const range r = range_of(z[i], n);
        const double most = detail::lane_max(r.max);
        const double squares = detail::lane_sum(detail::first_lanes(r.squares, n, number(0)));
        if (squares - squares != 0) finite = false;
        growth[i] = sums[i].max == -math::infinity ? 0 : most > sums[i].max ? (most - sums[i].max) * rows_[i].inverse_temperature : 0;
        if (most > sums[i].max) sums[i].max = most;
        if (i < walked) memory_.factors[i][chunk] = sums[i].max;
      }
      finite_ = finite_ && finite;
      if constexpr (moments)
        for (int i = 0; i < 2; ++i)
          if (growth[0] != 0 || growth[1] != 0) cross[i] = sums[i].sum > 0 ? math::exp(-growth[i]) * (cross[i] + (growth[1 - i] - growth[i]) * sums[i].sum) : 0;
      for (int i = begin; i < end; ++i)
        if (growth[i] != 0) sums[i].sum *= math::exp(-growth[i]);
      if (finite && n >= lanes) add_chunk<true>(z, n, sums, cross, begin, end, first);
      else add_chunk<false>(z, n, sums, cross, begin, end, first);
    }
  }
  template <bool finite>
  void add_chunk(const T* const* z, std::int64_t n, running (&sums)[named_rows], double (&cross)[2], int begin, int end, std::int64_t first) {
    if constexpr (moments) {
      double totals[4];
      chunk_moments<finite>(z, n, sums, totals, first);
      for (int i = 0; i < 2; ++i) sums[i].sum += totals[i], cross[i] += totals[2 + i];
    }
    if constexpr (!moments || named_rows > 2)
      for (int i = moments ? 2 : begin; i < end; ++i) sums[i].sum += sum_of_exps<finite>(z[i], n, sums[i].max, rows_[i].inverse_temperature, i < walked ? memory_.exps[i] + first : memory_.values, behind(i, first + n));
  }
  template <bool finite>
  [[gnu::flatten]] static double sum_of_exps(const T* z, std::int64_t n, double max, double inverse_temperature, T* exps, prefetcher fetch) {
    const number shift = max == -math::infinity ? 0 : max, scale = inverse_temperature;
    number sum = 0;
    for (std::int64_t c = 0; c < n; c += lanes) {
      fetch(c);
      const number e = detail::exp_of_log<finite>((detail::load(z + c) - shift) * scale);
      sum = sum + e, detail::store(exps + c, e);
    }
    return detail::lane_sum(sum);
  }
  template <bool finite>
  [[gnu::flatten]] void chunk_moments(const T* const* z, std::int64_t n, const running (&sums)[named_rows], double (&totals)[4], std::int64_t first) const {
    const number shift0 = sums[0].max == -math::infinity ? 0 : sums[0].max, shift1 = sums[1].max == -math::infinity ? 0 : sums[1].max;
    const number scale0 = rows_[0].inverse_temperature, scale1 = rows_[1].inverse_temperature;
    const T *const z0 = z[0], *const z1 = z[1];
    T *const exps0 = memory_.exps[0] + first, *const exps1 = memory_.exps[1] + first;
    const prefetcher fetch0 = behind(0, first + n), fetch1 = behind(1, first + n);
    number sum0 = 0, sum1 = 0, cross0 = 0, cross1 = 0;
    for (std::int64_t c = 0; c < n; c += lanes) {
      fetch0(c), fetch1(c);
      const number log0 = (detail::load(z0 + c) - shift0) * scale0, log1 = (detail::load(z1 + c) - shift1) * scale1;
      const entry<number, finite> p{log0, detail::exp_of_log<finite>(log0)}, q{log1, detail::exp_of_log<finite>(log1)};
      detail::store(exps0 + c, p.p), detail::store(exps1 + c, q.p);
      sum0 = sum0 + p.p, sum1 = sum1 + q.p;
      if constexpr (finite) {
        const number ratio = log0 - log1;
        if constexpr (moment_of[0]) cross0 = fma(p.p, ratio, cross0);
        if constexpr (moment_of[1]) cross1 = fma(q.p, ratio, cross1);
      } else cross0 = cross0 + weigh(p, log_ratio(p, q)), cross1 = cross1 - weigh(q, log_ratio(q, p));
    }
    totals[0] = detail::lane_sum(sum0), totals[1] = detail::lane_sum(sum1), totals[2] = detail::lane_sum(cross0), totals[3] = -detail::lane_sum(cross1);
  }
  /// From the maximum that a chunk was computed with to the factor of its exponentials.
  void finish_factors(int i) {
    const detail::normaliser& own = normalisers_[i];
    const double whole = math::exp(-own.log_sum);
    double* const factors = memory_.factors[i];
    const std::int64_t width = rows_[i].source.width;
    std::int64_t chunk = 0;
    for (std::int64_t first = 0; first < width; first += chunk_at(first, width), ++chunk) {
      const double max = factors[chunk];   // -infinity: the exponentials so far are 0
      factors[chunk] = max == own.max || max == -math::infinity ? whole : math::exp((max - own.max) * rows_[i].inverse_temperature - own.log_sum);
    }
  }
  /// The exponentials of a row whose maximum is known.
  void fill_exps(int i) {
    std::int64_t chunk = 0;
    each_chunk(i, [&](const T* z, std::int64_t first, std::int64_t n) {
      const auto fill = finite_ && n >= lanes ? sum_of_exps<true> : sum_of_exps<false>;
      fill(z, n, normalisers_[i].max, rows_[i].inverse_temperature, memory_.exps[i] + first, behind(i, first + n));
      memory_.factors[i][chunk++] = math::exp(-normalisers_[i].log_sum);
    });
  }
  [[gnu::cold]] void find_bad(int i) {
    bad_input_ = i, bad_column_ = 0;
    for (std::int64_t c = 0; c < rows_[i].source.width; ++c) {
      const double z = detail::read_logit(rows_[i].source, rows_[i].data, c);
      if (z != z || z == math::infinity) return bad_column_ = c, reject(z != z ? heddle::status::nan_logit : heddle::status::inf_logit);
    }
    reject(heddle::status::empty_support);
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
      T* to[count] = {sinks[g].streamed ? memory_.results[g] : detail::place<T>(sinks[g], to_row[g], first, n, memory_.results[g])...};
      for (std::int64_t c = 0; c < n; c += lanes) {
        const place<finite> v = at_columns<finite>(rows, c);
        const number values[count] = {number(std::get<g>(gradients).dense(v))...};
        (detail::store(to[g] + c, (sparse[g] ? values[g] + detail::load(memory_.sparse[g] + c) : values[g]) * scale[g]), ...);
      }
      (detail::deliver(sinks[g], to_row[g], first, n, to[g]), ...);
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

  const detail::row_scratch<T>& memory_;
  std::int64_t chunk_, index_ = 0, columns_used_ = 0, bad_column_ = -1;
  detail::named_row rows_[named_rows];
  detail::normaliser normalisers_[named_rows];
  double kl_of_first_two_[2] = {};
  bool finite_ = true;
  int bad_input_ = -1;
  heddle::status status_ = heddle::status::ok;
  detail::scalar_record record_;
};

}  // namespace heddle::distillation::inline HEDDLE_ISA
