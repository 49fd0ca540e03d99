// Scratch memory of a call.
//
// Every call that needs scratch takes `std::span<std::byte> workspace` in its options and has a twin `..._workspace_size` with the bytes it
// needs (a bound that depends on shapes and the executor's concurrency only). An empty span lets a host call allocate; a span that is too
// small is an error that names both sizes.
//
// scratch        the memory of one call: the caller's, or allocated and freed by it
// scratch_layout adds up aligned pieces: run once to measure, once to place
//
//     heddle::scratch memory("attend", options.workspace, bytes);
//     heddle::scratch_layout pieces{memory.data()};
//     float* logits = pieces.take<float>(64);            // 64-byte aligned
#pragma once
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

namespace heddle::inline HEDDLE_ISA {

inline constexpr std::size_t scratch_alignment = 64;

class scratch_layout {
 public:
  scratch_layout() = default;   // measures only
  explicit scratch_layout(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = used_;
    used_ += (count * sizeof(T) + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  std::size_t bytes() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

class scratch {
 public:
  /// `bytes` 64-byte aligned bytes. A caller's span may start anywhere: `workspace_size` twins add `scratch_alignment` for that.
  scratch(const char* function, std::span<std::byte> given, std::size_t bytes) {
    if (given.empty()) {
      if (bytes) data_ = owned_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{scratch_alignment}));
      return;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(given.data());
    const std::size_t skip = (scratch_alignment - address % scratch_alignment) % scratch_alignment;
    require(given.size() >= bytes + skip, function, ": argument 'workspace' holds ", given.size(), " bytes; expected at least ", bytes + scratch_alignment);
    data_ = given.data() + skip;
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    if (owned_) ::operator delete(owned_, std::align_val_t{scratch_alignment});
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::byte* owned_ = nullptr;
};

}  // namespace heddle::inline HEDDLE_ISA
