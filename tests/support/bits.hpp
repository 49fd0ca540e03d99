#pragma once
// A report of results as bits: one line "name hash" per result. Whatever must give the same bits (another instruction set, another
// architecture, another compiler, other flags) prints the same report.
//
// tests/<room>/<stem>_bits.cpp holds one function that computes something from fixed inputs and reports it:
//
//     #include "support/bits.hpp"
//     #include <heddle/attention/attend.hpp>
//
//     HEDDLE_BITS(attention_attend, report) {
//         heddle_bits::inputs in{7};
//         const heddle_bits::vector<float> q = in.uniform(4 * 128);
//         ...
//         report.add("attend/f16/rows4", out);
//     }
//
// tests/isa compiles every such file for several instruction sets and compares the reports. The functions take the serial executor,
// use no other test support, and finish within milliseconds: they also run under an emulator.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

// The unit (one set of compiler flags) that this translation unit belongs to; units with different names link into one program.
#ifndef HEDDLE_BITS_UNIT
#define HEDDLE_BITS_UNIT native
#endif

namespace heddle_bits {
inline namespace HEDDLE_BITS_UNIT {

// Vectors whose code belongs to the unit too (std::vector<float> would be one function for all units).
template <class T>
struct allocator : std::allocator<T> {
  allocator() = default;
  template <class U>
  allocator(const allocator<U>&) {}
};
template <class T>
using vector = std::vector<T, allocator<T>>;

// FNV-1a over the bytes of the values, in order.
class hash {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void add(std::span<const T> values) {
    for (const std::byte b : std::as_bytes(values)) state_ = (state_ ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

// Fixed pseudo-random inputs (splitmix64), the same on every machine.
class inputs {
 public:
  explicit inputs(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // One of 2^24 equally spaced values in [-1, 1).
  float value() { return static_cast<float>(static_cast<std::int64_t>(next() >> 40) - (1 << 23)) * 0x1p-23f; }

  vector<float> uniform(std::size_t count) {
    vector<float> values(count);
    for (float& x : values) x = value();
    return values;
  }

 private:
  std::uint64_t state_;
};

class report {
 public:
  template <class Range>
  void add(const char* name, const Range& values) {
    hash h;
    h.add(std::span<const std::remove_cvref_t<decltype(*std::data(values))>>(std::data(values), std::size(values)));
    std::printf("%s %016llx\n", name, static_cast<unsigned long long>(h.value()));
  }
};

}  // namespace HEDDLE_BITS_UNIT
}  // namespace heddle_bits

#define HEDDLE_BITS(name, report_name) \
  namespace heddle_bits {              \
  inline namespace HEDDLE_BITS_UNIT {  \
  void name(report&);                  \
  }                                    \
  }                                    \
  void heddle_bits::HEDDLE_BITS_UNIT::name(report& report_name)
