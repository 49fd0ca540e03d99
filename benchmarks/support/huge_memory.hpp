// Memory on huge pages where the system grants them on request, as an engine holds its weights (examples/llama/weight_arena.hpp).
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <span>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heddle_bench {

class huge_memory {
 public:
  explicit huge_memory(std::size_t bytes) : data_(static_cast<std::byte*>(::operator new(bytes, page))), bytes_(bytes) {
#if defined(__linux__)
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
  }
  std::span<std::byte> bytes() { return {data_.get(), bytes_}; }

 private:
  static constexpr std::align_val_t page{std::size_t{2} << 20};
  struct release {
    void operator()(std::byte* data) const { ::operator delete(data, page); }
  };
  std::unique_ptr<std::byte, release> data_;
  std::size_t bytes_;
};

}  // namespace heddle_bench
