// A loss of hidden states: the logits z = h W^T are made, used and turned into gradients a block of rows at a time.
//
//   L = loss(h W^T, teacher, functional)        dh = dz W        dW = dz^T h
//   fused_linear_loss(hidden, unembedding, teacher, functional, d_hidden, d_unembedding, options)
//   fused_linear_loss(hidden, unembedding, functional, d_hidden, d_unembedding, options)      functionals of the student alone: nll, given_top_k (a teacher as
//                                                                                              k log-probabilities and their tail), ...
//   hidden [N, d], unembedding [V, d]: float, float16, bfloat16 or double; teacher: logits [N, V] as in loss(), or linear_rows{hidden, unembedding} of any width of its own
//   d_hidden [N, d], d_unembedding [V, d]: overwritten; float (double if hidden or unembedding is), unit stride along d, apart from all inputs; no_gradient leaves one out (a frozen unembedding)
// Options, reductions, statuses, masks: loss.hpp; weights are known beforehand. A row with a bad status, or masked, adds nothing to either gradient, whatever its hidden state holds.
// Memory: a block of rows x V numbers, at most about 24 MiB together with the teacher's (one row at least), and per worker a few rows: never N x V.
// Determinism: blocks depend on V alone; every element is a chain of fma in a fixed order, so threads and executors change no bit. Accumulator: float (double).
// Cost: 6 N V d flops. Bytes: W twice and dW twice per block of rows.
//
//     fused_linear_loss(hidden, unembedding, teacher_logits, reverse_kl{}, d_hidden, d_unembedding, {.executor = team});
#pragma once
#include <heddle/distillation/detail/product_tiles.hpp>
#include <heddle/distillation/loss.hpp>

namespace heddle::distillation::inline HEDDLE_ISA {

/// A teacher by its hidden states [N, d] and unembedding [V, d].
template <matrix Hidden, matrix Unembedding>
struct linear_rows {
  Hidden hidden;
  Unembedding unembedding;
};
template <matrix H, matrix W>
linear_rows(H, W) -> linear_rows<H, W>;

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {

template <class M>
inline constexpr bool is_linear = false;
template <class H, class W>
inline constexpr bool is_linear<linear_rows<H, W>> = true;

constexpr std::int64_t padded(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// Hands out [0, count) in pieces to the workers of a call.
template <class Work>
void share_out(const executor_ref& executor, std::int64_t count, std::int64_t piece, Work work) {
  const auto pieces = static_cast<std::size_t>((count + piece - 1) / piece);
  const std::size_t workers = executor.concurrency() < pieces ? executor.concurrency() : pieces;
  share_items(executor, workers, static_cast<std::int64_t>(pieces), [&](std::size_t worker, std::int64_t i) {
    work(worker, i * piece, (i + 1) * piece < count ? (i + 1) * piece : count);
  });
}

/// z = h W^T for the rows of a block, and what the gradients need of h.
template <class T>
class linear_block {
  static constexpr std::int64_t lanes = real<T>::lanes, rows_of_w = 48, chain = 256;

 public:
  linear_block(const row_source& hidden, const row_source& unembedding, std::int64_t rows, const executor_ref& executor)
      : hidden_(hidden), unembedding_(unembedding), executor_(executor), width_(padded(hidden.width, lanes)), lane_rows_(padded(rows, lanes)),
        by_lane_(static_cast<std::size_t>(lane_rows_ * hidden.width)), own_(executor.concurrency() * scratch_numbers()) {}

  /// z[r, v] with row stride V; rows for which skip(r) count as zeros.
  template <class Skip>
  void logits(std::int64_t first_row, std::int64_t rows, T* z, std::int64_t stride, Skip skip) {
    const std::int64_t d = hidden_.width, vocabulary = unembedding_.rows;
    std::vector<T, aligned_allocator<T>> row(static_cast<std::size_t>(d));
    for (std::int64_t r = 0; r < lane_rows_; ++r) {   // [tile of rows][input][lane]
      if (r < rows && !skip(first_row + r)) copy_columns(hidden_, row_of(hidden_, first_row + r), 0, d, row.data());
      else
        for (T& x : row) x = 0;
      for (std::int64_t k = 0; k < d; ++k) by_lane_[static_cast<std::size_t>((r / lanes * d + k) * lanes + r % lanes)] = row[static_cast<std::size_t>(k)];
    }
    share_out(executor_, vocabulary, rows_of_w, [&](std::size_t worker, std::int64_t begin, std::int64_t end) {
      T *const w = scratch(worker), *const tile = w + tile_height * width_;
      for (std::int64_t v = begin; v < end; v += tile_height) {
        const std::int64_t height = end - v < tile_height ? end - v : tile_height;
        for (std::int64_t i = 0; i < height; ++i) copy_columns(unembedding_, row_of(unembedding_, v + i), 0, width_, w + i * width_);
        for (std::int64_t r = 0; r < rows; r += lanes) {
          product_tile(w, width_, 1, by_lane_.data() + r * d, lanes, d, height, true, tile, lanes);
          for (std::int64_t lane = 0; lane < lanes && r + lane < rows; ++lane)
            for (std::int64_t i = 0; i < height; ++i) z[(r + lane) * stride + v + i] = tile[i * lanes + lane];
        }
      }
    });
  }

  /// out[r, k] = sum over v of dz[r, v] W[v, k]
  void to_hidden(std::int64_t rows, const T* dz, std::int64_t stride, T* out) {
    const std::int64_t vocabulary = unembedding_.rows, tiles = width_ / lanes, workers = static_cast<std::int64_t>(executor_.concurrency());
    share_out(executor_, tiles, (tiles + workers - 1) / workers, [&](std::size_t worker, std::int64_t begin, std::int64_t end) {
      T* const packed = scratch(worker);   // [tile of columns][v][lane]
      const std::int64_t columns = (end - begin) * lanes;
      T* const row = packed + chain * columns;
      for (std::int64_t v = 0; v < vocabulary; v += chain) {
        const std::int64_t count = vocabulary - v < chain ? vocabulary - v : chain;
        for (std::int64_t j = 0; j < count; ++j) {
          copy_columns(unembedding_, row_of(unembedding_, v + j), begin * lanes, columns, row);
          for (std::int64_t t = 0; t < end - begin; ++t) store(packed + (t * chain + j) * lanes, load(row + t * lanes));
        }
        for (std::int64_t t = begin; t < end; ++t) product_tile(dz + v, stride, 1, packed + (t - begin) * chain * lanes, lanes, count, rows, v == 0, out + t * lanes, width_);
      }
    });
  }

  /// dW[v, k] (+)= sum over r of dz[r, v] h[r, k]; rows for which skip(r) count as zeros.
  template <class Skip>
  void to_unembedding(std::int64_t first_row, std::int64_t rows, const T* dz, std::int64_t stride, bool begin_sum, T* dw, std::int64_t dw_stride, Skip skip) {
    const std::int64_t d = hidden_.width, vocabulary = unembedding_.rows;
    std::vector<T, aligned_allocator<T>> h(static_cast<std::size_t>(rows * width_));   // [tile of inputs][row][lane]
    std::vector<T, aligned_allocator<T>> one(static_cast<std::size_t>(width_));
    for (std::int64_t r = 0; r < rows; ++r) {
      if (skip(first_row + r))
        for (T& x : one) x = 0;
      else copy_columns(hidden_, row_of(hidden_, first_row + r), 0, width_, one.data());
      for (std::int64_t k = 0; k < width_; ++k) h[static_cast<std::size_t>((k / lanes * rows + r) * lanes + k % lanes)] = one[static_cast<std::size_t>(k)];
    }
    share_out(executor_, vocabulary, rows_of_w, [&](std::size_t worker, std::int64_t begin, std::int64_t end) {
      T *const columns = scratch(worker), *const edge = columns + rows * rows_of_w;   // [row][v]
      const std::int64_t count = end - begin;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t v = 0; v < count; ++v) columns[r * rows_of_w + v] = dz[r * stride + begin + v];
      for (std::int64_t v = 0; v < count; v += tile_height) {
        const std::int64_t height = count - v < tile_height ? count - v : tile_height;
        for (std::int64_t k = 0; k < d; k += lanes) {
          const T* const lane = h.data() + k * rows;
          T* const to = dw + (begin + v) * dw_stride + k;
          if (k + lanes <= d) product_tile(columns + v, 1, rows_of_w, lane, lanes, rows, height, begin_sum, to, dw_stride);
          else {
            product_tile(columns + v, 1, rows_of_w, lane, lanes, rows, height, true, edge, lanes);
            for (std::int64_t i = 0; i < height; ++i)
              for (std::int64_t j = 0; k + j < d; ++j) to[i * dw_stride + j] = begin_sum ? edge[i * lanes + j] : to[i * dw_stride + j] + edge[i * lanes + j];
          }
        }
      }
    });
  }
  std::int64_t width() const { return width_; }

 private:
  std::size_t scratch_numbers() const {
    const std::int64_t workers = static_cast<std::int64_t>(executor_.concurrency()), tiles = width_ / lanes, share = (tiles + workers - 1) / workers * lanes;
    const std::int64_t for_logits = tile_height * (width_ + lanes), for_hidden = (chain + 1) * share, for_unembedding = lane_rows_ * rows_of_w + tile_height * lanes;
    const std::int64_t most = for_hidden > for_unembedding ? for_hidden : for_unembedding;
    return static_cast<std::size_t>(padded(most > for_logits ? most : for_logits, 64));
  }
  T* scratch(std::size_t worker) { return own_.data() + worker * scratch_numbers(); }

  row_source hidden_, unembedding_;
  executor_ref executor_;
  std::int64_t width_, lane_rows_;
  aligned_vector<T> by_lane_, own_;
};

inline std::int64_t rows_of_block(std::int64_t rows, std::int64_t numbers_per_row, std::int64_t bytes_of_number) {
  constexpr std::int64_t budget = std::int64_t{24} << 20, most = 30 * tile_height;
  std::int64_t fitting = budget / (numbers_per_row * bytes_of_number);
  fitting = fitting > most ? most : fitting;
  fitting = fitting >= tile_height ? fitting / tile_height * tile_height : fitting > 1 ? fitting : 1;
  return fitting < rows ? fitting : rows;
}

inline void check_linear(const row_source& hidden, const row_source& unembedding, std::int64_t rows, const char* names) {
  require(hidden.rows == rows, "fused_linear_loss: argument '", names, "': ", hidden.rows, " hidden states; expected ", rows);
  require(hidden.width > 0 && unembedding.width == hidden.width, "fused_linear_loss: argument '", names, "': width of the unembedding is ", unembedding.width, "; expected ", hidden.width, ", as of the hidden states, and not 0");
}

template <class T, class F, int k, class DHidden, class DUnembedding>
loss_result fused_linear(const F& functional, const row_source& hidden, const row_source& unembedding, const row_source* teacher_hidden, const row_source* teacher_unembedding, row_input teacher,
                         const DHidden& d_hidden, const DUnembedding& d_unembedding, const loss_options& options) {
  constexpr const char* function = "fused_linear_loss";
  constexpr bool has_hidden = !std::same_as<DHidden, no_gradient_type>, has_unembedding = !std::same_as<DUnembedding, no_gradient_type>;
  constexpr int G = has_hidden || has_unembedding ? 1 : 0;
  const std::int64_t n = hidden.rows, d = hidden.width, vocabulary = unembedding.rows;
  check_linear(hidden, unembedding, n, "hidden");
  if (teacher_hidden) check_linear(*teacher_hidden, *teacher_unembedding, n, "teacher");
  const std::int64_t teacher_numbers = teacher_hidden ? teacher_unembedding->rows : 0;
  const std::int64_t block = rows_of_block(n, vocabulary + teacher_numbers, sizeof(T));
  aligned_vector<T> z(static_cast<std::size_t>(block * vocabulary)), y(static_cast<std::size_t>(block * teacher_numbers)), dh(has_hidden ? static_cast<std::size_t>(block * padded(d, real<T>::lanes)) : 0);

  row_input inputs[k];
  inputs[0].source = {z.data(), n, vocabulary, vocabulary, 1, kind_of<T>, 0, 0};
  if constexpr (k == 2) {
    inputs[1] = teacher;
    if (teacher_hidden) inputs[1].source = {y.data(), n, teacher_numbers, teacher_numbers, 1, kind_of<T>, 0, 0};
    if (inputs[1].source.temperature == 0) inputs[1].source.temperature = options.teacher_temperature;
  }
  const row_factors factors(function, options, n);
  { const row_call<T, F, k> shapes(function, functional, row_options_of(options), inputs); }
  tensor_view<T, 2> to_hidden, to_unembedding;
  if constexpr (has_hidden) to_hidden = view_of(d_hidden), require_shape(function, "d_hidden", to_hidden, extents{n, d}), require(to_hidden.stride(1) == 1 || d == 1, function, ": argument 'd_hidden' has stride ", to_hidden.stride(1), " along its width; expected 1");
  if constexpr (has_unembedding) to_unembedding = view_of(d_unembedding), require_shape(function, "d_unembedding", to_unembedding, extents{vocabulary, d}), require(to_unembedding.stride(1) == 1 || d == 1, function, ": argument 'd_unembedding' has stride ", to_unembedding.stride(1), " along its width; expected 1");

  constexpr auto rows_of = [](const tensor_view<T, 2>& x) { return byte_rows{static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(x.data())), x.extent(0), x.stride(0) * std::int64_t{sizeof(T)}, x.extent(1) * std::int64_t{sizeof(T)}}; };
  std::int64_t teacher_rows = teacher.map.empty() ? teacher.source.rows : 0;   // of a selection: up to the last that is selected
  for (const std::int32_t row : teacher.map) teacher_rows = row < teacher_rows ? teacher_rows : row + 1;
  const auto check_input = [&](const row_source& input, std::int64_t input_rows) {   // read again after gradients of a block are written
    if (!input.data || input_rows == 0) return;
    const auto lies_in = [&](const tensor_view<T, 2>& x) { return x.size() > 0 && (static_cast<const void*>(x.data()) == input.data || overlaps(rows_of(x), bytes_of_rows(input, input_rows, input.width))); };
    if constexpr (has_hidden) require(!lies_in(to_hidden), function, ": argument 'd_hidden' lies where an input does; expected a buffer of its own");
    if constexpr (has_unembedding) require(!lies_in(to_unembedding), function, ": argument 'd_unembedding' lies where an input does; expected a buffer of its own");
  };
  check_input(hidden, n), check_input(unembedding, vocabulary), check_input(teacher.source, teacher_rows);
  if (teacher_hidden) check_input(*teacher_hidden, n), check_input(*teacher_unembedding, teacher_unembedding->rows);
  if constexpr (has_hidden && has_unembedding) require(!overlaps(rows_of(to_hidden), rows_of(to_unembedding)), function, ": argument 'd_unembedding' lies where 'd_hidden' does; expected a buffer of its own");
  loss_result result;
  result.row_values.resize(static_cast<std::size_t>(n)), result.row_status.resize(static_cast<std::size_t>(n));
  linear_block<T> student(hidden, unembedding, block, options.executor);
  const auto masked = [&](std::int64_t r) { return factors.masked(r); };
  bad_value bad;
  if constexpr (has_unembedding)
    if (n == 0)
      for (std::int64_t v = 0; v < vocabulary; ++v)
        for (std::int64_t c = 0; c < d; ++c) to_unembedding(v, c) = 0;
  for (std::int64_t first = 0; first < n; first += block) {
    const std::int64_t rows = n - first < block ? n - first : block;
    student.logits(first, rows, z.data(), vocabulary, masked);
    inputs[0].source.first = first;
    if (k == 2 && teacher_hidden) {
      linear_block<T>(*teacher_hidden, *teacher_unembedding, block, options.executor).logits(first, rows, y.data(), teacher_numbers, masked);
      inputs[k - 1].source.first = first;
    }
    const row_call<T, F, k> call(function, functional, row_options_of(options), inputs);
    const row_sink dz{z.data(), vocabulary, 1, kind_of<T>, false, first};
    const bad_value found = call.each_row(first, first + rows, nullptr, [&](auto& row, std::int64_t r, double*) {
      const auto i = static_cast<std::size_t>(r);
      return result.row_status[i] = evaluate_row<G>(call, row, r, nullptr, result.row_values[i], factors(r), &dz);
    });
    if (bad.row < 0) bad = found;
    const auto idle = [&](std::int64_t r) { return factors(r) == 0 || result.row_status[static_cast<std::size_t>(r)] != heddle::status::ok; };
    if constexpr (has_hidden) {
      student.to_hidden(rows, z.data(), vocabulary, dh.data());
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < d; ++c) to_hidden(first + r, c) = idle(first + r) ? 0 : dh[static_cast<std::size_t>(r * student.width() + c)];
    }
    if constexpr (has_unembedding) student.to_unembedding(first, rows, z.data(), vocabulary, first == 0, to_unembedding.data(), to_unembedding.stride(0), idle);
  }
  for (std::int64_t r = 0; r < n; ++r) result.rows_kept += !masked(r) && result.row_status[static_cast<std::size_t>(r)] == heddle::status::ok;
  result.value = factors.total(result.row_values, result.row_status);
  const row_call<T, F, k> call(function, functional, row_options_of(options), inputs);
  call.throw_if_asked(bad);
  return result;
}

template <class T, class Gradient>
concept linear_gradient = std::same_as<Gradient, no_gradient_type> || (matrix<Gradient> && writable_tensor<Gradient> && std::same_as<element_type<Gradient>, T>);

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

template <matrix Hidden, matrix Unembedding, class F, class DHidden, class DUnembedding>
  requires(host_tensor<Hidden> && host_tensor<Unembedding> && detail::linear_gradient<detail::number_of<Hidden, Unembedding>, DHidden> && detail::linear_gradient<detail::number_of<Hidden, Unembedding>, DUnembedding>)
loss_result fused_linear_loss(const Hidden& hidden, const Unembedding& unembedding, const F& functional, const DHidden& d_hidden, const DUnembedding& d_unembedding, const loss_options& options = {}) {
  using T = detail::number_of<Hidden, Unembedding>;
  return detail::fused_linear<T, F, 1>(functional, detail::input_of(hidden).source, detail::input_of(unembedding).source, nullptr, nullptr, {}, d_hidden, d_unembedding, options);
}
template <matrix Hidden, matrix Unembedding, class Teacher, class F, class DHidden, class DUnembedding>
  requires(host_tensor<Hidden> && host_tensor<Unembedding> && detail::linear_gradient<detail::number_of<Hidden, Unembedding>, DHidden> && detail::linear_gradient<detail::number_of<Hidden, Unembedding>, DUnembedding> &&
           (detail::row_argument<Teacher> || detail::is_linear<Teacher>))
loss_result fused_linear_loss(const Hidden& hidden, const Unembedding& unembedding, const Teacher& teacher, const F& functional, const DHidden& d_hidden, const DUnembedding& d_unembedding,
                              const loss_options& options = {}) {
  using T = detail::number_of<Hidden, Unembedding>;
  const detail::row_source h = detail::input_of(hidden).source, w = detail::input_of(unembedding).source;
  if constexpr (detail::is_linear<Teacher>) {
    const detail::row_source th = detail::input_of(teacher.hidden).source, tw = detail::input_of(teacher.unembedding).source;
    return detail::fused_linear<T, F, 2>(functional, h, w, &th, &tw, {}, d_hidden, d_unembedding, options);
  } else return detail::fused_linear<T, F, 2>(functional, h, w, nullptr, nullptr, detail::input_of(teacher), d_hidden, d_unembedding, options);
}

}  // namespace heddle::distillation::inline HEDDLE_ISA
