// Memory for the weights of a model: few large blocks on huge pages, because a decode step reads all of them in order and small pages cost
// it time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include <sys/mman.h>

namespace llama {

class weight_arena {
 public:
  // Uninitialised, aligned to 64 bytes, valid as long as the arena.
  std::span<std::byte> take(std::size_t bytes) {
    const std::size_t size = (bytes + 63) / 64 * 64;
    if (size > left_.size()) add_block(std::max(size, block_size));
    const auto piece = left_.first(bytes);
    left_ = left_.subspan(size);
    return piece;
  }

 private:
  static constexpr std::size_t block_size = std::size_t{32} << 20;
  static constexpr std::align_val_t huge_page{std::size_t{2} << 20};
  struct free_block {
    void operator()(std::byte* block) const { ::operator delete(block, huge_page); }
  };

  void add_block(std::size_t size) {
    blocks_.emplace_back(static_cast<std::byte*>(::operator new(size, huge_page)));
    ::madvise(blocks_.back().get(), size, MADV_HUGEPAGE);
    left_ = {blocks_.back().get(), size};
  }

  std::vector<std::unique_ptr<std::byte, free_block>> blocks_;
  std::span<std::byte> left_;
};

}  // namespace llama
