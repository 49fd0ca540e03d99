// Matrices that share an input, one below the other: W_q, W_k and W_v, or W_gate and W_up. Those of one format are packed into one.
#pragma once

#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/linear/activations.hpp>
#include <heddle/linear/pack.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "architecture.hpp"
#include "weight_arena.hpp"

namespace llama {

namespace linear = heddle::linear;
using heddle::extents;
using heddle::tensor_view;

// Told of each tensor of the file when it has been read for the last time.
using release_pages = std::function<void(std::span<const std::byte>)>;

class projection {
 public:
  // Rows made ready for products. Quantised weights take them rounded to the precision that the caller has chosen, other weights as they
  // are.
  struct inputs {
    explicit inputs(linear::precision precision) : rounded(precision, 1, 1) {}
    linear::activations rounded, exact{linear::precision::f32, 1, 1};
  };

  projection(std::initializer_list<const tensor_info*> tensors, weight_arena& arena, const release_pages& release,
             heddle::executor_ref executor);

  std::int64_t outputs() const { return outputs_; }
  // The first of the matrices, alone if their formats differ.
  const linear::packed_view& front() const { return (quantised_.empty() ? plain_ : quantised_).front().weights; }

  // out[row] <- W x[row]
  void apply(const tensor_view<const float, 2>& x, inputs& scratch, const tensor_view<float, 2>& out, heddle::executor_ref executor) const;

 private:
  struct part {
    linear::packed_view weights;
    std::int64_t first_output;
  };

  std::vector<part> quantised_, plain_;
  std::int64_t outputs_ = 0;
};

}  // namespace llama
