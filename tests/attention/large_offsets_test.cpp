// Nothing counts bytes or elements in 32 bits: tensors and pages that lie gigabytes apart give the bits of those that lie together.
#include <heddle/attention/attend.hpp>
#include <heddle/attention/sources.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <vector>

namespace {

using namespace heddle;

// Address space of which only the touched pages take memory.
class address_space {
 public:
  explicit address_space(std::size_t bytes) : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~address_space() { if (*this) munmap(data_, bytes_); }
  address_space(const address_space&) = delete;
  explicit operator bool() const { return data_ != MAP_FAILED; }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

constexpr std::int64_t tokens = 5, heads = 2, dim = 20;
constexpr std::int64_t far = (std::int64_t{1} << 31) / 4 + 1024;  // elements: more than 2^31 bytes

using view = tensor_view<float, 3>;
view packed(std::vector<float>& v, std::int64_t rows) { return {v.data(), extents{rows, heads, dim}}; }
view spread(float* data, std::int64_t rows) { return {data, extents{rows, heads, dim}, {far, dim, 1}}; }
std::vector<float> numbers(std::int64_t rows, float phase) {
  std::vector<float> v(static_cast<std::size_t>(rows * heads * dim));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(phase + 1.7f * static_cast<float>(i));
  return v;
}
void copy(const view& from, const view& to) {
  for (std::int64_t i = 0; i < from.extent(0); ++i)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t c = 0; c < dim; ++c) to(i, h, c) = from(i, h, c);
}

struct fixture {
  std::vector<float> q = numbers(tokens, 0.f), k = numbers(tokens, 1.f), v = numbers(tokens, 2.f), out = numbers(tokens, 3.f), lse = std::vector<float>(tokens * heads);
  template <class Keys>
  void attend_into(const Keys& keys, std::vector<float>& to) {
    attend(packed(q, tokens), keys | causal(), packed(to, tokens), tensor_view{lse.data(), extents{tokens, heads}});
  }
  fixture() { attend_into(dense(packed(k, tokens), packed(v, tokens)), out); }
};

TEST(LargeOffsets, RowsOfTensorsGigabytesApart) {
  fixture f;
  const address_space q(tokens * far * 4), k(tokens * far * 4), v(tokens * far * 4), out(tokens * far * 4);
  if (!q || !k || !v || !out) GTEST_SKIP() << "no address space";
  copy(packed(f.q, tokens), spread(q.floats(), tokens));
  copy(packed(f.k, tokens), spread(k.floats(), tokens));
  copy(packed(f.v, tokens), spread(v.floats(), tokens));
  attend(spread(q.floats(), tokens), dense(spread(k.floats(), tokens), spread(v.floats(), tokens)) | causal(), spread(out.floats(), tokens), tensor_view{f.lse.data(), extents{tokens, heads}});
  std::vector<float> back(f.out.size());
  copy(spread(out.floats(), tokens), packed(back, tokens));
  EXPECT_EQ(back, f.out);
}

TEST(LargeOffsets, PagesGigabytesApart) {
  fixture f;
  page_pool_options options{.num_layers = 64, .num_pages = 10'000, .num_kv_heads = heads, .head_dim = dim};
  const std::size_t bytes = page_pool<codec::f32>::storage_bytes(options);
  ASSERT_GT(bytes, std::size_t{1} << 32);
  const address_space storage(bytes);
  if (!storage) GTEST_SKIP() << "no address space";
  options.storage = storage.bytes();
  page_pool<codec::f32> pool(options);

  const auto append = [&](sequence_id s, std::int64_t row) {
    pool.reserve(s, 1);
    const std::size_t at = static_cast<std::size_t>(row * heads * dim);
    const view key{f.k.data() + at, extents{1, heads, dim}}, value{f.v.data() + at, extents{1, heads, dim}};
    for (int layer = 0; layer < pool.num_layers(); ++layer) pool.write(s, layer, key, value);
    pool.commit(s);
  };
  const sequence_id first = pool.new_sequence(), filler = pool.new_sequence(), last = pool.new_sequence();
  append(first, 0);
  pool.reserve(filler, (options.num_pages - 2) * pool.page_size());  // never written
  append(last, 0);
  for (std::int64_t i = 1; i < tokens; ++i) append(first, i), append(last, i);
  for (const sequence_id s : {first, last})
    for (const int layer : {0, pool.num_layers() - 1}) {
      std::vector<float> out(f.out.size());
      f.attend_into(pool[s].layer(layer), out);
      EXPECT_EQ(out, f.out);
    }
  EXPECT_TRUE(pool.same_rows(first, pool, last));
}

}  // namespace
