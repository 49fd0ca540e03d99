// y[r, o] = sum over k of W[o, k] x[r, k] for packed weights and prepared rows.
//
// Row invariance: lane o of a panel is output o and nothing is ever summed across lanes, so the operations of y[r, o] are one fixed sequence:
//   weights    activations       sequence
//   f32 f16 bf16   f32           chains of fma over 256 inputs, added in order
//   q8_0 q4_0 q4_1 f32           per block of 32: chain of fma over (code - centre) x;   acc = fma(d, block, acc);  q4_1: acc = fma(m + 8 d, sum x, acc)
//   q8_0 q4_0 q4_1 int8..int24   per block: the exact integer product, rounded once;     acc = fma(d scale, block, acc);  q4: acc = fma(m, scale sum q, acc)
// Its bits depend neither on the number of rows nor on the rows beside it, other matrices of the call, threads, or (with fused multiply-add)
// the instruction set: a row of a prefill is the row decoded alone. A NaN or infinity in a row reaches every output of that row (integers: all
// are NaN) and no other row.
//
// multiply(w, x, out)        out: float [rows, outputs], unit stride along outputs, any row stride; overwritten
// multiply(products, x)      several matrices of any formats that share x, one parallel region
// multiply_workspace_size    bytes of workspace: 0 unless more rows of f32 than one tile meet weights that must be widened first
// Errors name the argument: shapes, strides, integer activations with f32, f16 or bf16 weights, a workspace too small.
//
// Cost: bytes: the packed weights once for up to a few hundred rows. Arithmetic per weight and row: f32 one multiply-add; integers one byte
// product per 8 bits of activation. Threads share out panels; no allocation when workspace is given (or its size is 0).
//
//     heddle::linear::multiply(w, x, out, {.executor = team});
#pragma once
#include <heddle/core/share_items.hpp>
#include <heddle/core/workspace.hpp>
#include <heddle/linear/detail/float_tile.hpp>
#include <heddle/linear/pack.hpp>


namespace heddle::linear {

struct multiply_options {
  executor_ref executor{};
  std::span<std::byte> workspace{};
};

/// One of several products with the same activations.
struct product {
  packed_view weights;
  tensor_view<float, 2> out;   ///< [rows, outputs]
};

namespace detail::inline HEDDLE_ISA {

inline constexpr std::int64_t cached_activations = std::int64_t{192} << 10;   // bytes of rows that stay in a core's cache while panels pass
inline constexpr std::int64_t cached_panels = std::int64_t{128} << 10;        // bytes of panels alike, while rows of integers pass
inline constexpr int widened_panels = float_panels<tile_rows>;
inline constexpr std::size_t widened_floats = std::size_t{chain_inputs} * panel_outputs * widened_panels;

struct panel_range {
  std::int64_t first, last;
};

/// A few panels stay in a core's cache while all rows pass, and as many rows as a kernel takes in its innermost cache while those panels do.
template <int digits, bool nibbles>
void multiply_integers(const product& p, const activations& x, panel_range panels) {
  const packed_view& w = p.weights;
  const std::int64_t fitting = cached_panels / static_cast<std::int64_t>(panel_bytes(w.kind, w.inputs)), group = fitting > 0 ? fitting : 1;
  for (std::int64_t begin = panels.first; begin < panels.last; begin += group)
    for (std::int64_t first = 0; first < x.rows(); first += integer_tile_rows) {
      const std::int64_t rows = x.rows_in_tile(first), end = begin + group < panels.last ? begin + group : panels.last;
      std::int64_t r = 0;
      descend<product_rows<nibbles, digits>>([&]<int height>() {
        for (; rows - r >= height; r += height)
          for (std::int64_t panel = begin; panel < end; ++panel)
            integer_tile<nibbles, digits, height>(w.kind, w.panel(panel), w.blocks(), x.template blocks<digits>(first) + r, rows, p.out.at(first + r, panel * panel_outputs), p.out.stride(0),
                                                  w.outputs - panel * panel_outputs);
      });
    }
}

/// A chain of inputs, panels [first, last) that begin at `weights`, all tiles of rows [row, last_row). Meanwhile fetches `ahead`, what comes next.
template <class Element>
void multiply_chain(const product& p, const activations& x, std::int64_t chain_number, panel_range panels, const Element* weights, std::int64_t panel_stride, std::int64_t row, std::int64_t last_row,
                    std::span<const std::byte> ahead = {}) {
  constexpr std::size_t fetched_per_tile = 512;
  const std::int64_t begin = chain_number * chain_inputs, padded = p.weights.blocks() * block_inputs, inputs = padded - begin < chain_inputs ? padded - begin : chain_inputs;
  const auto values_of = [&](std::int64_t first) { return x.values(first) + chain_number * x.rows_in_tile(first) * chain_stride; };
  for (std::int64_t first = row; row < last_row; row += tile_rows) {
    const std::size_t fetched = ahead.size() < fetched_per_tile ? ahead.size() : fetched_per_tile;
    for (std::size_t i = 0; i < fetched; i += 64) __builtin_prefetch(ahead.data() + i, 0, 2);
    ahead = ahead.subspan(fetched);
    const std::int64_t rows = x.rows_in_tile(row);
    const float *values = values_of(row), *next = values_of(row + tile_rows < last_row ? row + tile_rows : first);
    std::int64_t r = 0;
    descend<tile_rows>([&]<int height>() {
      constexpr int together = float_panels<height>;
      for (; rows - r >= height; r += height) {
        std::int64_t panel = panels.first;
        const auto tile = [&]<int count>() {
          for (; panel + count <= panels.last; panel += count)
            number_tile<height, count>(weights + (panel - panels.first) * panel_stride, panel_stride, inputs, values + r * chain_stride, next, chain_number == 0,
                                       p.out.at(row + r, panel * panel_outputs), p.out.stride(0), p.weights.outputs - panel * panel_outputs);
        };
        tile.template operator()<together>();
        if constexpr (together > 1) tile.template operator()<1>();
      }
    });
  }
}

template <class Element>
void multiply_numbers(const product& p, const activations& x, panel_range panels, float* widened) {
  const packed_view& w = p.weights;
  const std::int64_t chains = chains_of(w.inputs), panel_stride = w.blocks() * block_inputs * panel_outputs;
  const auto weights = [&](std::int64_t panel, std::int64_t chain_number) { return reinterpret_cast<const Element*>(w.panel(panel)) + chain_number * chain_inputs * panel_outputs; };
  const auto group_end = [&](std::int64_t first, std::int64_t count) { return first + count < panels.last ? first + count : panels.last; };
  if (x.rows() <= tile_rows) {   // the weights pass once, panel by panel
    constexpr std::int64_t group = float_panels<1>;
    for (std::int64_t first = panels.first; first < panels.last; first += group)
      for (std::int64_t c = 0; c < chains; ++c) multiply_chain(p, x, c, {first, group_end(first, group)}, weights(first, c), panel_stride, 0, x.rows());
    return;
  }
  constexpr std::int64_t pass_rows = cached_activations / (chain_inputs * 4) / tile_rows * tile_rows;
  for (std::int64_t row = 0; row < x.rows(); row += pass_rows) {
    const std::int64_t last_row = row + pass_rows < x.rows() ? row + pass_rows : x.rows();
    for (std::int64_t c = 0; c < chains; ++c)
      for (std::int64_t first = panels.first; first < panels.last; first += widened_panels) {
        const panel_range group{first, group_end(first, widened_panels)};
        const std::int64_t rest = panel_stride - c * chain_inputs * panel_outputs, cells = rest < chain_inputs * panel_outputs ? rest : chain_inputs * panel_outputs;
        std::span<const std::byte> ahead;
        if (group.last < panels.last) ahead = std::as_bytes(std::span(weights(group.last, c), static_cast<std::size_t>(cells)));
        if constexpr (std::same_as<Element, float>) {
          multiply_chain(p, x, c, group, weights(first, c), panel_stride, row, last_row, ahead);
        } else {
          for (std::int64_t panel = group.first; panel < group.last; ++panel)
            for (std::int64_t i = 0; i < cells; i += panel_outputs) simd::store(widened + (panel - first) * chain_inputs * panel_outputs + i, simd::load(weights(panel, c) + i));
          multiply_chain(p, x, c, group, static_cast<const float*>(widened), chain_inputs * panel_outputs, row, last_row, ahead);
        }
      }
  }
}

template <bool nibbles>
void multiply_quantised(const product& p, const activations& x, panel_range panels, float* codes) {
  const packed_view& w = p.weights;
  constexpr std::int64_t chain_blocks = chain_inputs / block_inputs;
  const std::size_t record_bytes = block_bytes(w.kind) * panel_outputs;
  const bool one_tile = x.rows() <= tile_rows;
  const std::int64_t pass_rows = one_tile ? tile_rows : cached_activations / (chain_inputs * 4) / tile_rows * tile_rows;
  const auto chain_of_panel = [&](std::int64_t panel, std::int64_t c, std::int64_t pass) {
    const std::int64_t begin = c * chain_blocks, rest = w.blocks() - begin, blocks = rest < chain_blocks ? rest : chain_blocks;
    const std::byte* records = w.panel(panel) + static_cast<std::size_t>(begin) * record_bytes;
    if (!one_tile)
      for (std::int64_t b = 0; b < blocks; ++b) unpack_record<nibbles>(records + static_cast<std::size_t>(b) * record_bytes, codes + b * block_inputs * panel_outputs);
    for (std::int64_t row = pass; row < x.rows() && row < pass + pass_rows; row += tile_rows) {
      const std::int64_t rows = x.rows_in_tile(row);
      const float* values = x.values(row) + c * rows * chain_stride;
      const float* sums = x.block_sums(row) + begin * rows;
      std::int64_t r = 0;
      descend<tile_rows>([&]<int height>() {
        for (; rows - r >= height; r += height) {
          const auto tile = one_tile ? quantised_tile<nibbles, false, height> : quantised_tile<nibbles, true, height>;
          tile(w.kind, records, codes, blocks, values + r * chain_stride, sums + r, rows, c == 0, p.out.at(row + r, panel * panel_outputs), p.out.stride(0), w.outputs - panel * panel_outputs);
        }
      });
    }
  };
  const std::int64_t chains = chains_of(w.inputs);
  if (one_tile) {
    for (std::int64_t panel = panels.first; panel < panels.last; ++panel)
      for (std::int64_t c = 0; c < chains; ++c) chain_of_panel(panel, c, 0);
    return;
  }
  for (std::int64_t pass = 0; pass < x.rows(); pass += pass_rows)
    for (std::int64_t c = 0; c < chains; ++c)
      for (std::int64_t panel = panels.first; panel < panels.last; ++panel) chain_of_panel(panel, c, pass);
}

template <std::same_as<activations> Activations>
void multiply_panels(const product& p, const Activations& x, panel_range panels, float* scratch) {
  const bool nibbles = p.weights.kind != format::q8_0;
  switch (x.kind()) {
    case precision::int8: return nibbles ? multiply_integers<1, true>(p, x, panels) : multiply_integers<1, false>(p, x, panels);
    case precision::int16: return nibbles ? multiply_integers<2, true>(p, x, panels) : multiply_integers<2, false>(p, x, panels);
    case precision::int24: return nibbles ? multiply_integers<3, true>(p, x, panels) : multiply_integers<3, false>(p, x, panels);
    case precision::f32: break;
  }
  switch (p.weights.kind) {
    case format::f32: return multiply_numbers<float>(p, x, panels, scratch);
    case format::f16: return multiply_numbers<float16>(p, x, panels, scratch);
    case format::bf16: return multiply_numbers<bfloat16>(p, x, panels, scratch);
    case format::q8_0: return multiply_quantised<false>(p, x, panels, scratch);
    case format::q4_0:
    case format::q4_1: return multiply_quantised<true>(p, x, panels, scratch);
  }
}

/// Hands out runs of consecutive panels that shrink towards the end: long streams, and threads that finish together.
class panel_queue {
 public:
  panel_queue(std::int64_t panels, std::size_t workers) : panels_(panels), divisor_(2 * static_cast<std::int64_t>(workers)) {}
  panel_range take() {
    std::int64_t first = next_.load(), count;
    do {
      count = (panels_ - first + divisor_ - 1) / divisor_;
      if (count <= 0) return {panels_, panels_};
    } while (!next_.move(first, first + count));
    return {first, first + count};
  }

 private:
  std::int64_t panels_, divisor_;
  shared_index next_{0};
};

inline void check_product(const product& p, const activations& x) {
  const packed_view& w = p.weights;
  require_matrix("multiply", w.kind, w.outputs, w.inputs);
  require(w.data, "multiply: argument 'weights' holds no data; expected packed weights");
  require(w.inputs == x.inputs(), "multiply: argument 'weights' has ", w.inputs, " inputs; expected ", x.inputs(), " as in 'x'");
  require(is_quantised(w.kind) || x.kind() == precision::f32, "multiply: argument 'x' has precision ", name_of(x.kind()), "; expected f32 for weights of format ", name_of(w.kind));
  require_shape("multiply", "out", p.out, extents<2>{x.rows(), w.outputs});
  require(p.out.stride(1) == 1 || w.outputs == 1, "multiply: argument 'out' has stride ", p.out.stride(1), " along outputs; expected 1");
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

inline std::size_t multiply_workspace_size(precision kind, std::int64_t rows, const multiply_options& options = {}) {
  if (kind != precision::f32 || rows <= detail::tile_rows) return 0;
  return options.executor.concurrency() * detail::widened_floats * sizeof(float) + scratch_alignment;
}

// A template so that a unit which only includes this header does not compile the kernels.
template <std::same_as<activations> Activations>
void multiply(std::span<const product> products, const Activations& x, const multiply_options& options = {}) {
  std::int64_t panels = 0;
  for (const product& p : products) {
    detail::check_product(p, x);
    panels += p.weights.panels();
  }
  if (x.rows() == 0 || panels == 0) return;
  const std::size_t concurrency = options.executor.concurrency(), workers = concurrency < static_cast<std::size_t>(panels) ? concurrency : static_cast<std::size_t>(panels);
  const bool widens = x.kind() == precision::f32 && x.rows() > detail::tile_rows;
  const scratch memory("multiply", options.workspace, widens ? workers * detail::widened_floats * sizeof(float) : 0);
  detail::panel_queue queue(panels, workers);
  options.executor.bulk(workers, [&](std::size_t worker) {
    float* own = widens ? reinterpret_cast<float*>(memory.data()) + worker * detail::widened_floats : nullptr;
    for (detail::panel_range taken = queue.take(); taken.first < taken.last; taken = queue.take()) {
      std::int64_t begin = 0;
      for (const product& p : products) {
        const std::int64_t count = p.weights.panels(), first = taken.first - begin, last = taken.last - begin;
        if (first < count && last > 0) detail::multiply_panels(p, x, {first > 0 ? first : 0, last < count ? last : count}, own);
        begin += count;
      }
    }
  });
}

template <matrix Out>
  requires host_tensor<Out> && writable_tensor<Out> && std::same_as<element_type<Out>, float>
void multiply(const packed_view& weights, const activations& x, const Out& out, const multiply_options& options = {}) {
  const product one{weights, view_of(out)};
  multiply(std::span<const product>(&one, 1), x, options);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::linear
