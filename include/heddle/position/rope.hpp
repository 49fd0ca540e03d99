// Rotary position embedding.
//
//   theta_f = base^(-2 f / d_r), f = 0 .. d_r / 2 - 1 (after any scaling, see scaling.hpp); R(p) turns pair f by the angle p theta_f:
//   (a, b) -> (a cos - b sin, b cos + a sin).   R(p) R(p') = R(p + p'), R(p)^-1 = R(-p).
//
// half_split     pair f is channels (f, f + d_r / 2): weights as Hugging Face stores them
// interleaved    pair f is channels (2 f, 2 f + 1): weights as the original Llama and GGUF files of the llama architecture store them
//
// Channels d_r and above are not rotated. rotate() multiplies the rotated channels by the magnitude of the scaling (YaRN, longrope);
// relocate() does not, because cached keys carry it already.
//
// Shapes     x [rows, heads, head_dim] or [rows, head_dim], any strides, float, float16 or bfloat16, rotated in place; positions [rows], int32,
//            negative ones too. A row's table is shared by its heads.
// Errors     odd or too large d_r; another head_dim; a number of positions other than rows; a zero stride on an axis longer than 1.
// Arithmetic angles, sine and cosine in double by core/math.hpp, then rounded to float; two products and a sum per channel in float. NaN stays in
//            its pair.
// Determinism a row's bits depend on its values and its position only: not on other rows, heads, strides, threads, pairing or C library.
//            A relocation by 0 leaves every bit as it is. Fused and unfused targets differ in the last bit (see core/simd.hpp).
// Cost       reads and writes every rotated channel once, 3 flops per channel; sines and cosines once per row (about 40 flops a pair).
//            A rope_table keeps them for many tensors with the same positions: the layers of one step.
// Threads    a rope is immutable: any number of threads may use it.
// Source     RoFormer, arXiv 2104.09864.
//
//     heddle::rope<heddle::half_split> r{{.head_dim = 128, .base = 5e5, .scaling = heddle::llama3_scaling{}}};
//     r.rotate(q, positions);
//     r.relocate(k, old_positions, new_positions);              // R(new - old): close the gaps of evicted tokens
//     heddle::rope_table table{r, positions};                   // once per step
//     for (auto& layer : layers) table.rotate(layer.q), table.rotate(layer.k);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/position/detail/turn.hpp>
#include <heddle/position/scaling.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline HEDDLE_ISA {

struct rope_options {
  std::int64_t head_dim;
  std::int64_t rotary_dim = 0;        ///< d_r; 0: head_dim
  double base = 10000;
  rope_scaling scaling{};
  std::int64_t sequence_length = 0;   ///< L of length-dependent scalings; a new length is a new rope
};

struct rotate_options {
  executor_ref executor{};
};

template <class T>
concept rotatable_tensor = host_tensor<T> && writable_tensor<T> && (tensor_of<T, 2> || tensor_of<T, 3>) &&
                           (std::same_as<element_type<T>, float> || std::same_as<element_type<T>, float16> || std::same_as<element_type<T>, bfloat16>);

template <class Pairing>
  requires std::same_as<Pairing, half_split> || std::same_as<Pairing, interleaved>
class rope {
 public:
  explicit rope(const rope_options& o) : head_dim_(o.head_dim), pairs_((o.rotary_dim ? o.rotary_dim : o.head_dim) / 2) {
    const std::int64_t width = o.rotary_dim ? o.rotary_dim : o.head_dim;
    require(o.head_dim > 0, "rope: argument 'head_dim' is ", o.head_dim, "; expected 1 or more");
    require(width > 0 && width % 2 == 0, "rope: argument 'rotary_dim' is ", width, "; expected an even number, 2 or more");
    require(width <= o.head_dim, "rope: argument 'rotary_dim' is ", width, "; expected at most head_dim (", o.head_dim, ")");
    require(o.base >= 1 && o.base < math::infinity, "rope: argument 'base' is ", o.base, "; expected a finite number, 1 or more");
    require(o.sequence_length >= 0, "rope: argument 'sequence_length' is ", o.sequence_length, "; expected 0 or more");
    frequencies_.resize(static_cast<std::size_t>(detail::round_to_lanes(pairs_)));
    rope_frequencies f{.values = {frequencies_.data(), static_cast<std::size_t>(pairs_)}, .base = o.base, .sequence_length = o.sequence_length};
    set_base(f, o.base);
    o.scaling.apply(f);
    for (const double theta : f.values) require(theta >= 0 && theta <= 65536, "rope: a scaled frequency is ", theta, "; expected 0 to 65536 radians per position");
    magnitude_ = f.magnitude;
  }

  std::int64_t head_dim() const { return head_dim_; }
  std::int64_t rotary_dim() const { return 2 * pairs_; }
  /// theta_f of every pair, radians per position.
  std::span<const double> frequencies() const { return {frequencies_.data(), static_cast<std::size_t>(pairs_)}; }
  /// What rotate() multiplies the rotated channels by, besides the rotation.
  double magnitude() const { return magnitude_; }

  /// x <- magnitude R(position) x for every row.
  template <rotatable_tensor T>
  void rotate(T&& x, std::span<const std::int32_t> positions, const rotate_options& options = {}) const {
    turn_rows(detail::checked_rows("rope::rotate", view_of(x), head_dim_, positions.size(), "positions"), options,
              [&](std::size_t row) { return by(positions[row], magnitude_); });
  }

  /// x <- R(-position) x / magnitude: undoes rotate() up to rounding.
  template <rotatable_tensor T>
  void rotate_back(T&& x, std::span<const std::int32_t> positions, const rotate_options& options = {}) const {
    turn_rows(detail::checked_rows("rope::rotate_back", view_of(x), head_dim_, positions.size(), "positions"), options,
              [&](std::size_t row) { return by(-std::int64_t{positions[row]}, 1 / magnitude_); });
  }

  /// Keys rotated at `from` become keys rotated at `to`: x <- R(to - from) x. Rows that stay are not touched.
  template <rotatable_tensor T>
  void relocate(T&& x, std::span<const std::int32_t> from, std::span<const std::int32_t> to, const rotate_options& options = {}) const {
    relocate(x, *this, from, to, options);
  }

  /// The same for keys that an `old` rope (of another sequence length, say) rotated at `from`:
  /// x <- (magnitude / old magnitude) R(to) R_old(from)^-1 x, as one rotation.
  template <rotatable_tensor T>
  void relocate(T&& x, const rope& old, std::span<const std::int32_t> from, std::span<const std::int32_t> to, const rotate_options& options = {}) const {
    require(old.head_dim_ == head_dim_ && old.pairs_ == pairs_, "rope::relocate: argument 'old' has head_dim ", old.head_dim_, " and rotary_dim ", 2 * old.pairs_,
            "; expected ", head_dim_, " and ", 2 * pairs_);
    const auto view = detail::checked_rows("rope::relocate", view_of(x), head_dim_, from.size(), "from");
    detail::checked_rows("rope::relocate", view_of(x), head_dim_, to.size(), "to");
    const double ratio = magnitude_ / old.magnitude_;
    if (same_frequencies(old)) return turn_rows(view, options, [&](std::size_t row) { return by(std::int64_t{to[row]} - from[row], ratio, to[row] == from[row] && ratio == 1); });
    turn_rows(view, options, [&](std::size_t row) {
      return detail::turn_by{frequencies_.data(), static_cast<double>(to[row]), old.frequencies_.data(), static_cast<double>(from[row]), ratio};
    });
  }

 private:
  template <class>
  friend class rope_table;

  bool same_frequencies(const rope& other) const {
    for (std::size_t f = 0; f < frequencies_.size(); ++f)
      if (frequencies_[f] != other.frequencies_[f]) return false;
    return true;
  }

  detail::turn_by by(std::int64_t position, double magnitude, bool stays = false) const {
    return {frequencies_.data(), static_cast<double>(position), frequencies_.data(), 0, magnitude, stays};
  }

  template <class T, class TurnOf>
  void turn_rows(const tensor_view<T, 3>& x, const rotate_options& options, TurnOf turn_of) const {
    detail::share_rows(options.executor, x.extent(0), x.extent(1) * rotary_dim(), [&](std::int64_t begin, std::int64_t end) {
      detail::turn_block<Pairing> table;
      for (std::int64_t row = begin; row < end; ++row) {
        const detail::turn_by turn = turn_of(static_cast<std::size_t>(row));
        if (turn.stays) continue;
        for (std::int64_t first = 0; first < pairs_; first += detail::block_pairs) {
          const std::int64_t count = std::min(detail::block_pairs, pairs_ - first);
          detail::fill_turns<Pairing>(turn, first, detail::round_to_lanes(count), table.cosines, table.sines);
          for (std::int64_t head = 0; head < x.extent(1); ++head)
            detail::turn_head<Pairing>(x.at(row, head), x.stride(2), pairs_, first, count, table.cosines, table.sines);
        }
      }
    });
  }

  std::int64_t head_dim_, pairs_;
  double magnitude_ = 1;
  aligned_vector<double> frequencies_;   // padded with zeros to whole vectors
};

/// Sines and cosines of the rows of one step. rotate() gives the bits of rope::rotate.
template <class Pairing>
class rope_table {
 public:
  rope_table(const rope<Pairing>& r, std::span<const std::int32_t> positions) { assign(r, positions); }

  /// Allocates only when the table grows.
  void assign(const rope<Pairing>& r, std::span<const std::int32_t> positions) {
    head_dim_ = r.head_dim_, pairs_ = r.pairs_, rows_ = positions.size();
    row_size_ = detail::round_to_lanes(pairs_) * detail::pairing_loops<Pairing>::table_width;
    values_.resize(2 * rows_ * static_cast<std::size_t>(row_size_));
    for (std::size_t row = 0; row < rows_; ++row) detail::fill_turns<Pairing>(r.by(positions[row], r.magnitude_), 0, detail::round_to_lanes(pairs_), cosines(row), cosines(row) + row_size_);
  }

  std::size_t rows() const { return rows_; }

  template <rotatable_tensor T>
  void rotate(T&& x, const rotate_options& options = {}) const {
    const auto view = detail::checked_rows("rope_table::rotate", view_of(x), head_dim_, rows_, "table");
    detail::share_rows(options.executor, view.extent(0), view.extent(1) * 2 * pairs_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const float* table = cosines(static_cast<std::size_t>(row));
        for (std::int64_t head = 0; head < view.extent(1); ++head)
          for (std::int64_t first = 0; first < pairs_; first += detail::block_pairs) {
            const std::int64_t at = first * detail::pairing_loops<Pairing>::table_width;
            detail::turn_head<Pairing>(view.at(row, head), view.stride(2), pairs_, first, std::min(detail::block_pairs, pairs_ - first), table + at, table + row_size_ + at);
          }
      }
    });
  }

 private:
  float* cosines(std::size_t row) { return values_.data() + 2 * row * static_cast<std::size_t>(row_size_); }
  const float* cosines(std::size_t row) const { return values_.data() + 2 * row * static_cast<std::size_t>(row_size_); }

  std::int64_t head_dim_ = 0, pairs_ = 0, row_size_ = 0;
  std::size_t rows_ = 0;
  aligned_vector<float> values_;   // per row: cosines, then sines
};

}  // namespace heddle::inline HEDDLE_ISA
