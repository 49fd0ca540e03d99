// The first pass over the named rows of a walker: maxima, normalisers, exponentials, moments; finds bad rows.
//
// Each chunk is read once. Its exponentials are taken below a reference: the largest logit of the first columns, replaced by the largest of a chunk that rises far above
// it, which is then done again. So the reference, and with it the last bits of a probability, rarely depend on the chunk.
// Whether all logits of a chunk are numbers shows in the sum of its exponents.
#pragma once
#include <heddle/distillation/row.hpp>

namespace heddle::distillation::detail::inline HEDDLE_ISA {

/// `walked`: named rows that share the vocabulary; the others are read by column only. `wanted_moments`: KL(0 || 1), KL(1 || 0).
template <class T, int named_rows, int walked, unsigned wanted_moments>
class row_scan {
 protected:
  using number = real<T>;
  static constexpr std::int64_t lanes = number::lanes;
  static constexpr bool moments = wanted_moments != 0, moment_of[2] = {(wanted_moments & 1) != 0, (wanted_moments & 2) != 0};
  static constexpr bool keeps_ratio = wanted_moments == 1;   // ln s - ln t stands where the exponentials of row 1 would

  row_scan(const row_scratch<T>& memory, std::int64_t chunk) : memory_(memory), chunk_(chunk) {}

  void open_rows(std::int64_t index, const row_source* sources, const std::int64_t* places, double temperature) {
    index_ = index, status_ = heddle::status::ok, bad_input_ = -1, bad_column_ = -1;
    for (int i = 0; i < named_rows; ++i) {
      const double own = sources[i].temperature > 0 ? sources[i].temperature : temperature;
      rows_[i] = {sources[i], row_of(sources[i], places[i]), 1. / own};
    }
  }
  /// A chunk is a number of whole vectors, or less than one.
  std::int64_t chunk_at(std::int64_t first, std::int64_t width) const {
    const std::int64_t n = width - first < chunk_ ? width - first : chunk_;
    return n > lanes ? n - n % lanes : n;
  }
  logit_cells<T> cells(int i, std::int64_t first, std::int64_t n) const { return detail::cells<T>(rows_[i].source, rows_[i].data, first, n, memory_.staged[i]); }
  static double not_negative(double x) { return x < 0 ? 0 : x; }   // NaN stays

  void scan() {
    running sums[named_rows];
    double cross[2] = {};   // sum e^x_i (x_i - x_j) of rows 0 and 1, x = (z - reference) / temperature
    finite_ = true;
    if constexpr (walked == named_rows) scan_rows(sums, cross, 0, named_rows);
    else
      for (int i = 0; i < named_rows; ++i) scan_rows(sums, cross, i, i + 1);
    for (int i = 0; i < named_rows; ++i) {
      normalisers_[i] = {sums[i].reference, math::log(sums[i].sum)};
      if (sums[i].reference == -math::infinity || !(sums[i].sum > 0)) return find_bad(i);
    }
    finish_factors();
    if constexpr (moments)
      for (int i = 0; i < 2; ++i) {
        if (!moment_of[i]) continue;
        const double kl = (cross[i] / sums[i].sum - normalisers_[i].log_sum) + normalisers_[1 - i].log_sum;
        kl_of_first_two_[i] = kl != kl ? math::infinity : not_negative(kl);
      }
  }
  const row_scratch<T>& memory_;
  std::int64_t chunk_, index_ = 0, bad_column_ = -1;
  named_row rows_[named_rows];
  normaliser normalisers_[named_rows];
  double kl_of_first_two_[2] = {};
  bool finite_ = true;
  int bad_input_ = -1;
  heddle::status status_ = heddle::status::ok;

 private:
  static constexpr double highest_sum = 3000;     // of exponentials of a chunk: none is above e^8, as e^x has an error of x ulp
  static constexpr double lowest_logs = -1e19;    // no formula multiplies a rounded mass by more than that
  struct running {
    double reference = -math::infinity, sum = 0;
  };
  struct chunk_sums {
    double sum, cross;
    bool finite;
  };

  void scan_rows(running (&sums)[named_rows], double (&cross)[2], int begin, int end) {
    const std::int64_t width = rows_[begin].source.width;
    for (int i = begin; i < end; ++i)
      for (std::int64_t first = 0, n; first < width && first < longest_chunk; first += n) n = chunk_at(first, width), raise(sums, cross, i, largest(i, first, n));
    chunk_sums own[named_rows];
    std::int64_t chunk = 0;
    for (std::int64_t first = 0, n; first < width; first += n, ++chunk) {
      n = chunk_at(first, width);
      for (int i = begin; i < end; ++i)
        if (sums[i].reference == -math::infinity) raise(sums, cross, i, largest(i, first, n));
      for (bool again = true; again;) {
        const bool whole = finite_ && n >= lanes;
        if (whole) add_chunk<true>(sums, own, begin, end, first, n);
        else add_chunk<false>(sums, own, begin, end, first, n);
        again = false;
        for (int i = begin; i < end; ++i) {
          if (whole && !own[i].finite) finite_ = false, again = true;
          if (own[i].sum > highest_sum) again = raise(sums, cross, i, largest(i, first, n)) || again;
        }
      }
      if (n < lanes) finite_ = finite_ && tail_is_finite(begin, end, first, n);
      for (int i = begin; i < end; ++i) {
        sums[i].sum += own[i].sum;
        if (moments && i < 2) cross[i] += own[i].cross;
        if (i < walked) memory_.factors[i][chunk] = sums[i].reference;
      }
    }
  }
  /// Sums of row i are below `reference` from now on, if that is higher.
  bool raise(running (&sums)[named_rows], double (&cross)[2], int i, double reference) {
    const double growth = (reference - sums[i].reference) * rows_[i].inverse_temperature;
    if (!(growth > 0)) return false;
    if (sums[i].sum > 0) {
      finite_ = finite_ && growth < -lowest_logs;   // what came before lies as deep below the new reference
      const double less = math::exp(-growth);
      if (moments && i < 2) cross[i] = less * (cross[i] - growth * sums[i].sum), cross[1 - i] += growth * sums[1 - i].sum;
      sums[i].sum *= less;
    }
    sums[i].reference = reference;
    return true;
  }
  double largest(int i, std::int64_t first, std::int64_t n) const {
    const logit_cells<T> z = cells(i, first, n);
    number most = -math::infinity;
    for (std::int64_t c = 0; c < n; c += lanes) most = max(z.load(c), most);
    return lane_max(most);
  }
  bool tail_is_finite(int begin, int end, std::int64_t first, std::int64_t n) const {
    for (int i = begin; i < end; ++i)
      for (std::int64_t c = first; c < first + n; ++c) {
        const double z = read_logit(rows_[i].source, rows_[i].data, c);
        if (!(z > lowest_logs && z < -lowest_logs)) return false;
      }
    return true;
  }

  /// Exponentials of a chunk of rows begin .. end - 1, and their sums.
  template <bool finite>
  void add_chunk(const running (&sums)[named_rows], chunk_sums (&own)[named_rows], int begin, int end, std::int64_t first, std::int64_t n) const {
    if constexpr (moments) add_pair<finite>(sums, own, first, n);
    if constexpr (!moments || named_rows > 2)
      for (int i = moments ? 2 : begin; i < end; ++i) own[i] = exps_of_row<finite>(cells(i, first, n), n, exponent_of(i, sums), i < walked ? memory_.exps[i] + first : memory_.values, behind(i, first + n));
  }
  struct exponent {
    number reference, scale;
    [[gnu::always_inline]] inline number operator()(const number& z) const { return (z - reference) * scale; }
  };
  exponent exponent_of(int i, const running (&sums)[named_rows]) const { return {number(sums[i].reference == -math::infinity ? 0 : sums[i].reference), number(rows_[i].inverse_temperature)}; }

  /// Asks for what comes a chunk later: its columns arrive while those of this chunk are worked on.
  struct prefetcher {
    const char* at;
    std::int64_t step;
    [[gnu::always_inline]] inline void operator()(std::int64_t c) const { __builtin_prefetch(at + c * step, 0, 2); }
  };
  prefetcher behind(int i, std::int64_t column) const {
    const std::int64_t step = rows_[i].source.stride * bytes_of(rows_[i].source.kind);
    return {static_cast<const char*>(rows_[i].data) + column * step, step};
  }
  /// e^x; of x above any that is kept only something large.
  template <bool finite>
  [[gnu::always_inline]] inline static number exp_below(const number& x) {
    if constexpr (finite) return exp_of_log<true>(min(x, number(80)));
    else return exp_of_log<false>(select(x > 80, 80, x));   // NaN stays
  }
  static bool are_finite(const number& logs) {
    const double total = lane_sum(logs);
    return total > lowest_logs && total < math::infinity;
  }
  template <bool finite>
  [[gnu::flatten]] static chunk_sums exps_of_row(logit_cells<T> z, std::int64_t n, exponent below, T* exps, prefetcher fetch) {
    number sum = 0, logs = 0;
    for (std::int64_t c = 0; c < n; c += lanes) {
      fetch(c);
      const number log = below(z.load(c)), e = exp_below<finite>(log);
      sum = sum + e, logs = logs + log, detail::store(exps + c, e);
    }
    return {lane_sum(sum), 0, finite && are_finite(logs)};
  }
  template <bool finite>
  [[gnu::flatten]] void add_pair(const running (&sums)[named_rows], chunk_sums (&own)[named_rows], std::int64_t first, std::int64_t n) const {
    const logit_cells<T> z = cells(0, first, n), y = cells(1, first, n);
    const exponent below_s = exponent_of(0, sums), below_t = exponent_of(1, sums);
    T *const exps = memory_.exps[0] + first, *const exps_or_ratio = memory_.exps[1] + first;
    const prefetcher fetch_s = behind(0, first + n), fetch_t = behind(1, first + n);
    number sum_s = 0, sum_t = 0, cross_s = 0, cross_t = 0, logs = 0;
    for (std::int64_t c = 0; c < n; c += lanes) {
      fetch_s(c), fetch_t(c);
      const number log_s = below_s(z.load(c)), log_t = below_t(y.load(c));
      const entry<number, finite> p{log_s, exp_below<finite>(log_s)}, q{log_t, exp_below<finite>(log_t)};
      const number ratio = log_ratio(p, q);
      detail::store(exps + c, p.p), detail::store(exps_or_ratio + c, keeps_ratio ? ratio : q.p);
      sum_s = sum_s + p.p, sum_t = sum_t + q.p, logs = logs + (log_s + log_t);
      if constexpr (finite) {
        if constexpr (moment_of[0]) cross_s = fma(p.p, ratio, cross_s);
        if constexpr (moment_of[1]) cross_t = fma(q.p, -ratio, cross_t);
      } else cross_s = cross_s + weigh(p, ratio), cross_t = cross_t + weigh(q, log_ratio(q, p));
    }
    const bool all_finite = finite && are_finite(logs);
    own[0] = {lane_sum(sum_s), lane_sum(cross_s), all_finite}, own[1] = {lane_sum(sum_t), lane_sum(cross_t), all_finite};
  }

  /// From the reference that a chunk was computed with to the factor of its exponentials (and what its kept ratios lack).
  void finish_factors() {
    const std::int64_t width = rows_[0].source.width;
    double whole[walked];
    for (int i = 0; i < walked; ++i) whole[i] = math::exp(-normalisers_[i].log_sum);
    std::int64_t chunk = 0;
    for (std::int64_t first = 0; first < width; first += chunk_at(first, width), ++chunk) {
      double log[walked];
      for (int i = 0; i < walked; ++i) {
        double& factor = memory_.factors[i][chunk];   // -infinity: the exponentials so far are 0
        const double drop = factor == -math::infinity ? 0 : (factor - normalisers_[i].reference) * rows_[i].inverse_temperature;
        log[i] = drop - normalisers_[i].log_sum;
        factor = drop == 0 ? whole[i] : math::exp(log[i]);
      }
      if constexpr (keeps_ratio) memory_.factors[1][chunk] = log[0] - log[1];
    }
  }
  [[gnu::cold]] void find_bad(int i) {
    bad_input_ = i, bad_column_ = 0;
    for (std::int64_t c = 0; c < rows_[i].source.width; ++c) {
      const double z = read_logit(rows_[i].source, rows_[i].data, c);
      if (z != z || z == math::infinity) {
        bad_column_ = c, status_ = z != z ? heddle::status::nan_logit : heddle::status::inf_logit;
        return;
      }
    }
    status_ = heddle::status::empty_support;
  }
};

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

#include <heddle/distillation/detail/row_walker.hpp>
