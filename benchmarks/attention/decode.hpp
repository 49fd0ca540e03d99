// A call of attend() over sequences that do not stay in the caches: what the decode benchmarks share.
#pragma once
#include <heddle/attention/attend.hpp>
#include <heddle/cache/page_pool.hpp>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace heddle_bench {

using namespace heddle;

struct heads {
  int query, kv, dim;
};

/// Sequences of the same length, enough of them that their keys do not stay in the caches from one pass to the next.
template <class Codec>
class caches {
 public:
  caches(heads h, int length, std::size_t bytes)
      : pool_(make(h, length, bytes)), k_(std::size_t(1024) * std::size_t(h.kv * h.dim)), v_(k_.size()) {
    std::minstd_rand rng(3);
    for (auto* x : {&k_, &v_})
      for (float& f : *x) f = static_cast<float>(rng() / 64 % 4001) / 2000.f - 1.f;
    for (std::int64_t i = 0; i < copies_; ++i) {
      const sequence_id id = pool_->new_sequence();
      pool_->reserve(id, length);
      for (int first = 0; first < length; first += 1024) {
        const std::int64_t n = std::min(1024, length - first);
        pool_->write(id, 0, tensor_view{k_.data(), extents{n, h.kv, h.dim}}, tensor_view{v_.data(), extents{n, h.kv, h.dim}}, {.first_row = first});
      }
      pool_->commit(id, length);
      ids_.push_back(id);
    }
  }
  auto next() { return (*pool_)[ids_[turn_++ % ids_.size()]].layer(0); }

 private:
  std::unique_ptr<page_pool<Codec>> make(heads h, int length, std::size_t bytes) {
    const std::size_t one = static_cast<std::size_t>(length) * static_cast<std::size_t>(h.kv) * (Codec::key_row_bytes(h.dim) + Codec::value_row_bytes(h.dim));
    copies_ = static_cast<std::int64_t>((bytes + one - 1) / one);
    return std::make_unique<page_pool<Codec>>(page_pool_options{.num_layers = 1, .num_pages = (length + 63) / 64 * copies_, .page_size = 64, .num_kv_heads = h.kv, .head_dim = h.dim});
  }
  std::int64_t copies_ = 1;
  std::unique_ptr<page_pool<Codec>> pool_;
  std::vector<float> k_, v_;
  std::vector<sequence_id> ids_;
  std::size_t turn_ = 0;
};

struct rows_of_queries {
  std::vector<float> q, out, lse;
  std::int64_t rows;
  heads h;
  rows_of_queries(std::int64_t n, heads shape) : q(static_cast<std::size_t>(n * shape.query * shape.dim)), out(q.size()), lse(static_cast<std::size_t>(n * shape.query)), rows(n), h(shape) {
    std::minstd_rand rng(5);
    for (float& f : q) f = static_cast<float>(rng() / 64 % 4001) / 2000.f - 1.f;
  }
  template <class Keys>
  void attend(const Keys& keys, executor_ref executor, std::vector<std::byte>& workspace) {
    const extents<3> shape{rows, h.query, h.dim};
    const tensor_view<const float, 3> queries(q.data(), shape);
    if (workspace.empty()) workspace.resize(attend_workspace_size(queries, keys | causal(), {.executor = executor}));
    heddle::attend(queries, keys | causal(), tensor_view(out.data(), shape), tensor_view(lse.data(), extents<2>{rows, h.query}), {.executor = executor, .workspace = workspace});
  }
};

/// decode/<codec>/h<query heads>x<kv heads>d<head_dim>/kv<tokens>/rows<n>/t<threads>
inline std::string decode_name(const char* codec, heads h, int length, int rows, std::size_t threads) {
  return std::string("decode/") + codec + "/h" + std::to_string(h.query) + "x" + std::to_string(h.kv) + "d" + std::to_string(h.dim) + "/kv" + std::to_string(length) + "/rows" + std::to_string(rows) + "/t" + std::to_string(threads);
}

}  // namespace heddle_bench
