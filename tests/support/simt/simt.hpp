// Runs the source of CUDA kernels on the CPU: one fiber per CUDA thread, one block at a time.
//
// What is real: __syncthreads and warp collectives (with divergence and deadlock found and named by source line), shuffles and votes that
// may only read lanes of their mask, cp.async that lands at its wait ("late") or at once ("early"), ldmatrix, mma.m16n8k16 with float
// accumulators, dynamic shared memory filled with a poison before every block, threads run in ascending, descending or random order.
// What is not: timing, memory coalescing, bank conflicts, the accumulation order inside a tensor core.
//
// A test defines HEDDLE_SIMT, includes this header first and then the library's .cuh files; it links Boost.Context.
#pragma once
#if defined(__CUDACC__)
#error "simt.hpp is for host compilers"
#endif

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

namespace simt {

struct launch_error : std::runtime_error {
  using runtime_error::runtime_error;
};
enum class order { ascending, descending, random };
enum class copies { late, early };

struct options {
  simt::order order = order::ascending;
  simt::copies copies = copies::late;
  std::uint32_t seed = 1;
  unsigned char poison = 0xFF;   // NaN in every float format
  std::size_t max_shared = 227 * 1024;
};
inline options& current_options() {
  static options o;
  return o;
}

struct pending_copy {
  void* to;
  const void* from;
  unsigned bytes, valid;
};
enum class state { ready, at_barrier, at_collective, done };
struct thread {
  boost::context::fiber fiber, scheduler;
  dim3 index;
  unsigned lane = 0, warp = 0;
  simt::state state = state::ready;
  int line = 0;
  const void* operation = nullptr;
  unsigned mask = 0;
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<pending_copy> copies;
  std::vector<std::size_t> groups;
  std::size_t open = 0;
};
struct block {
  std::vector<thread> threads;
  dim3 index, size, grid;
  std::vector<unsigned char> memory;
  unsigned char* shared = nullptr;
  std::size_t shared_bytes = 0;
  thread* current = nullptr;
  std::string error;
};
inline block*& current_block() {
  static block* b = nullptr;
  return b;
}
inline thread& self() { return *current_block()->current; }

inline void yield() {
  thread& t = self();
  t.scheduler = std::move(t.scheduler).resume();
}
[[noreturn]] inline void fail(const std::string& what, int line) {
  block& b = *current_block();
  if (b.error.empty()) b.error = what + " (line " + std::to_string(line) + ", thread " + std::to_string(self().warp * 32 + self().lane) + ")";
  for (;;) yield();   // the fiber is abandoned
}

inline void barrier(int line) {
  block& b = *current_block();
  thread& me = self();
  me.state = state::at_barrier, me.line = line;
  bool all = true;
  for (thread& t : b.threads) {
    if (t.state == state::at_barrier && t.line != line) fail("threads meet at different barriers, lines " + std::to_string(t.line) + " and", line);
    all = all && (t.state == state::at_barrier || t.state == state::done);
  }
  if (all) {
    for (thread& t : b.threads)
      if (t.state == state::at_barrier) t.state = state::ready;
  }
  while (me.state == state::at_barrier) yield();
}

/// All lanes of `mask` meet; the last one to arrive runs combine(lanes of the warp) for all.
template <class Combine>
void collective(unsigned mask, const void* operation, const void* in, void* out, int line, Combine combine) {
  block& b = *current_block();
  thread& me = self();
  if (!(mask >> me.lane & 1u)) fail("a lane calls a collective whose mask leaves it out", line);
  me.state = state::at_collective, me.operation = operation, me.mask = mask, me.in = in, me.out = out, me.line = line;
  thread* warp = &b.threads[me.warp * 32];
  const unsigned lanes = std::min<unsigned>(32, static_cast<unsigned>(b.threads.size()) - me.warp * 32);
  bool all = true;
  for (unsigned i = 0; i < 32; ++i)
    if (mask >> i & 1u) {
      if (i >= lanes || warp[i].state == state::done) fail("a collective waits for a lane that has left", line);
      if (warp[i].state != state::at_collective) { all = false; continue; }
      if (warp[i].operation != operation || warp[i].mask != mask || warp[i].line != line) fail("lanes of a warp meet at different collectives, lines " + std::to_string(warp[i].line) + " and", line);
    }
  if (all) {
    combine(warp, mask, line);
    for (unsigned i = 0; i < 32; ++i)
      if (mask >> i & 1u) warp[i].state = state::ready;
  }
  while (me.state == state::at_collective) yield();
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, int line) {
  static const char tag = 0;
  struct operand {
    T value;
    unsigned source;
  } in{value, source};
  T out{};
  collective(mask, &tag, &in, &out, line, [](thread* warp, unsigned m, int at) {
    for (unsigned i = 0; i < 32; ++i)
      if (m >> i & 1u) {
        const unsigned from = static_cast<const operand*>(warp[i].in)->source;
        if (!(m >> from & 1u)) fail("a shuffle reads a lane outside its mask", at);
        *static_cast<T*>(warp[i].out) = static_cast<const operand*>(warp[from].in)->value;
      }
  });
  return out;
}
inline unsigned ballot(unsigned mask, bool predicate, int line) {
  static const char tag = 0;
  unsigned out = 0;
  collective(mask, &tag, &predicate, &out, line, [](thread* warp, unsigned m, int) {
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i)
      if ((m >> i & 1u) && *static_cast<const bool*>(warp[i].in)) votes |= 1u << i;
    for (unsigned i = 0; i < 32; ++i)
      if (m >> i & 1u) *static_cast<unsigned*>(warp[i].out) = votes;
  });
  return out;
}

inline bool in_shared(const void* p, std::size_t bytes) {
  const block& b = *current_block();
  const auto* q = static_cast<const unsigned char*>(p);
  return q >= b.shared && q + bytes <= b.shared + b.shared_bytes;
}
inline void land(const pending_copy& c) {
  std::memcpy(c.to, c.from, c.valid);
  std::memset(static_cast<unsigned char*>(c.to) + c.valid, 0, c.bytes - c.valid);
}
inline void copy_async(void* to, const void* from, unsigned bytes, unsigned valid, int line) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes || (valid && reinterpret_cast<std::uintptr_t>(from) % bytes)) fail("cp.async: misaligned address", line);
  if (!in_shared(to, bytes)) fail("cp.async: the destination is not in shared memory", line);
  const pending_copy c{to, from, bytes, valid};
  if (current_options().copies == copies::early) return land(c);
  self().copies.push_back(c), ++self().open;
}
inline void copy_commit() { self().groups.push_back(std::exchange(self().open, 0)); }
inline void copy_wait(std::size_t keep) {
  thread& t = self();
  while (t.groups.size() > keep) {
    const auto n = static_cast<std::ptrdiff_t>(t.groups.front());
    std::for_each(t.copies.begin(), t.copies.begin() + n, land);
    t.copies.erase(t.copies.begin(), t.copies.begin() + n);
    t.groups.erase(t.groups.begin());
  }
}

/// Lane l names row l % 8 of 8x8 matrix l / 8; register j of lane l receives row l / 4, columns 2 (l % 4) and + 1, of matrix j.
template <bool transposed>
void load_matrix_x4(std::uint32_t (&registers)[4], const void* row, int line) {
  static const char tag = 0;
  if (reinterpret_cast<std::uintptr_t>(row) % 16) fail("ldmatrix: a row is not 16-byte aligned", line);
  if (!in_shared(row, 16)) fail("ldmatrix: a row is not in shared memory", line);
  collective(0xFFFFFFFFu, &tag, row, &registers, line, [](thread* warp, unsigned, int) {
    for (unsigned j = 0; j < 4; ++j) {
      std::uint16_t cell[8][8];
      for (unsigned i = 0; i < 8; ++i) std::memcpy(cell[i], warp[j * 8 + i].in, 16);
      for (unsigned l = 0; l < 32; ++l) {
        const unsigned a = l / 4, c = 2 * (l % 4);
        const std::uint32_t low = transposed ? cell[c][a] : cell[a][c], high = transposed ? cell[c + 1][a] : cell[a][c + 1];
        (*static_cast<std::uint32_t(*)[4]>(warp[l].out))[j] = low | high << 16;
      }
    }
  });
}

/// d += a b of one warp; a 16x16 row-major, b 16x8 column-major, 16-bit operands turned to float by `widen`.
template <class Widen>
void multiply_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], Widen widen, int line) {
  static const char tag = 0;
  struct operand {
    const std::uint32_t *a, *b;
  } in{a, b};
  collective(0xFFFFFFFFu, &tag, &in, &d, line, [widen](thread* warp, unsigned, int) {
    float x[16][16], y[16][8];
    for (unsigned l = 0; l < 32; ++l) {
      const auto* o = static_cast<const operand*>(warp[l].in);
      const unsigned g = l / 4, q = 2 * (l % 4);
      for (unsigned r = 0; r < 4; ++r)
        for (unsigned h = 0; h < 2; ++h) x[g + 8 * (r & 1)][q + h + 8 * (r >> 1)] = widen(static_cast<std::uint16_t>(o->a[r] >> 16 * h));
      for (unsigned r = 0; r < 2; ++r)
        for (unsigned h = 0; h < 2; ++h) y[q + h + 8 * r][g] = widen(static_cast<std::uint16_t>(o->b[r] >> 16 * h));
    }
    float sum[16][8] = {};
    for (unsigned i = 0; i < 16; ++i)
      for (unsigned k = 0; k < 16; ++k)
        for (unsigned n = 0; n < 8; ++n) sum[i][n] += x[i][k] * y[k][n];
    for (unsigned l = 0; l < 32; ++l) {
      auto& out = *static_cast<float(*)[4]>(warp[l].out);
      for (unsigned r = 0; r < 4; ++r) out[r] += sum[l / 4 + 8 * (r >> 1)][2 * (l % 4) + (r & 1)];
    }
  });
}

inline void run(block& b, const std::function<void()>& kernel) {
  const unsigned n = b.size.x * b.size.y * b.size.z;
  b.threads.clear();
  b.threads.resize(n);
  static boost::context::pooled_fixedsize_stack stacks(128 * 1024);
  for (unsigned i = 0; i < n; ++i) {
    thread& t = b.threads[i];
    t.index = dim3(i % b.size.x, i / b.size.x % b.size.y, i / b.size.x / b.size.y);
    t.lane = i % 32, t.warp = i / 32;
    t.fiber = boost::context::fiber(std::allocator_arg, stacks, [&t, &kernel](boost::context::fiber&& scheduler) {
      t.scheduler = std::move(scheduler);
      kernel();
      t.state = state::done;
      return std::move(t.scheduler);
    });
  }
  std::vector<unsigned> turn(n);
  for (unsigned i = 0; i < n; ++i) turn[i] = current_options().order == order::descending ? n - 1 - i : i;
  std::uint32_t random = current_options().seed;
  current_block() = &b;
  for (bool progress = true; progress && b.error.empty();) {
    progress = false;
    if (current_options().order == order::random)
      for (unsigned i = n; i > 1; --i) random = random * 1664525u + 1013904223u, std::swap(turn[i - 1], turn[(random >> 8) % i]);
    for (unsigned i : turn) {
      thread& t = b.threads[i];
      if (t.state != state::ready || !b.error.empty()) continue;
      b.current = &t, progress = true;
      t.fiber = std::move(t.fiber).resume();
    }
  }
  current_block() = nullptr;
  if (b.error.empty())
    for (const thread& t : b.threads)
      if (t.state != state::done) {
        b.error = "threads wait for ever at line " + std::to_string(t.line);
        break;
      }
  if (!b.error.empty()) throw launch_error(b.error);
}

template <class... P, class... A>
void launch(dim3 grid, dim3 size, std::size_t shared_bytes, void (*kernel)(P...), A&&... arguments) {
  const std::uint64_t threads = std::uint64_t{size.x} * size.y * size.z;
  if (threads == 0 || threads > 1024) throw launch_error("a block of " + std::to_string(threads) + " threads");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) throw launch_error("grid out of range");
  if (shared_bytes > current_options().max_shared) throw launch_error("too much shared memory: " + std::to_string(shared_bytes));
  std::tuple<std::decay_t<P>...> parameters(std::forward<A>(arguments)...);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block b;
        b.grid = grid, b.size = size, b.index = dim3(x, y, z);
        b.memory.assign(shared_bytes + 256, current_options().poison);
        b.shared = b.memory.data() + (128 - reinterpret_cast<std::uintptr_t>(b.memory.data()) % 128);
        b.shared_bytes = shared_bytes;
        run(b, [&] { std::apply(kernel, parameters); });
      }
}

}  // namespace simt

#define threadIdx (::simt::self().index)
#define blockIdx (::simt::current_block()->index)
#define blockDim (::simt::current_block()->size)
#define gridDim (::simt::current_block()->grid)
inline void __syncthreads(int line = __builtin_LINE()) { simt::barrier(line); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, int line = __builtin_LINE()) { simt::ballot(mask, true, line); }
template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, int line = __builtin_LINE()) {
  const int me = static_cast<int>(simt::self().lane);
  return simt::shuffle(mask, v, static_cast<unsigned>((me & ~(width - 1)) | (source & (width - 1))), line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int x, int = 32, int line = __builtin_LINE()) {
  return simt::shuffle(mask, v, simt::self().lane ^ static_cast<unsigned>(x), line);
}
inline unsigned __ballot_sync(unsigned mask, int p, int line = __builtin_LINE()) { return simt::ballot(mask, p != 0, line); }
inline int __any_sync(unsigned mask, int p, int line = __builtin_LINE()) { return simt::ballot(mask, p != 0, line) != 0; }
