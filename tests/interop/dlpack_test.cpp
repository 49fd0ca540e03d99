#include <gtest/gtest.h>

#if __has_include(<dlpack/dlpack.h>)
#include <heddle/interop/dlpack.hpp>
#include <heddle/position/rope.hpp>

#include <string>
#include <vector>

using namespace heddle;

namespace {

struct exported {   // as a framework hands it over
  std::vector<float> memory = std::vector<float>(100);
  std::int64_t shape[3] = {2, 3, 4}, strides[3] = {12, 4, 1};
  DLManagedTensor managed{};
  exported() {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
    DLTensor& t = managed.dl_tensor;
    t.data = memory.data(), t.device = {kDLCPU, 0}, t.ndim = 3, t.dtype = {kDLFloat, 32, 1}, t.shape = shape, t.strides = strides, t.byte_offset = 0;
  }
  DLTensor& tensor() { return managed.dl_tensor; }
};

template <class Element = float, std::size_t Rank = 3, class Space = host>
std::string refusal(const exported& e) {
  try {
    from_dlpack<Element, Rank, Space>(e.managed, "q");
  } catch (const error& wrong) {
    return wrong.what();
  }
  return "accepted";
}

template <class Element>
concept importable = requires(DLTensor t) { from_dlpack<Element, 1>(t); };
static_assert(importable<float> && importable<const double> && importable<float16> && importable<bfloat16> && importable<std::int32_t> && importable<const std::uint8_t> && importable<float8_e4m3>);
static_assert(!importable<void*> && !importable<extents<1>> && !importable<std::nullptr_t>);

}  // namespace

TEST(dlpack, foreign_memory_is_rotated_in_place) {
  exported q, expected;
  const std::vector<std::int32_t> positions{3, 9};
  const rope<half_split> r{{.head_dim = 4}};
  const auto view = from_dlpack<float, 3>(q.managed);
  EXPECT_EQ(view.data(), q.memory.data());
  r.rotate(view, positions);
  r.rotate(tensor_view{expected.memory.data(), extents{2, 3, 4}}, positions);
  EXPECT_EQ(q.memory, expected.memory);
}

TEST(dlpack, strides_and_offsets) {
  exported e;
  e.tensor().strides = nullptr;   // contiguous
  EXPECT_EQ((from_dlpack<float, 3>(e.managed).strides()), (extents{12, 4, 1}));
  std::int64_t turned[] = {1, 2, 6};
  e.tensor().strides = turned;
  e.tensor().byte_offset = 40;
  const auto view = from_dlpack<const float, 3>(e.managed);
  EXPECT_EQ(view.data(), e.memory.data() + 10);
  EXPECT_EQ(view(1, 2, 3), 10 + 1 + 4 + 18);
}

TEST(dlpack, memory_spaces) {
  exported e;
  e.tensor().device.device_type = kDLCUDAHost;
  EXPECT_EQ(refusal(e), "accepted");
  e.tensor().device.device_type = kDLCUDA;
  EXPECT_EQ(refusal(e), "from_dlpack: argument 'q' lies on a device of type 2; expected host memory");
  EXPECT_EQ((refusal<float, 3, device>(e)), "accepted");
  e.tensor().device.device_type = kDLCPU;
  EXPECT_EQ((refusal<float, 3, device>(e)), "from_dlpack: argument 'q' lies on a device of type 1; expected CUDA memory");
  e.tensor().device.device_type = static_cast<DLDeviceType>(13);   // managed memory
  EXPECT_EQ(refusal(e), "accepted");
  EXPECT_EQ((refusal<float, 3, device>(e)), "accepted");
}

TEST(dlpack, errors_say_what_is_wrong) {
  const auto with = [](auto change) {
    exported e;
    change(e.tensor());
    return refusal(e);
  };
  EXPECT_EQ((refusal<float, 2>(exported{})), "from_dlpack: argument 'q' has 3 axes; expected 2");
  EXPECT_EQ((refusal<float16>(exported{})), "from_dlpack: argument 'q' has elements of type float32 (DLPack code 2); expected float16");
  EXPECT_EQ((refusal<std::int32_t>(exported{})), "from_dlpack: argument 'q' has elements of type float32 (DLPack code 2); expected int32");
  EXPECT_EQ(with([](DLTensor& t) { t.dtype = {kDLBfloat, 16, 1}; }), "from_dlpack: argument 'q' has elements of type bfloat16 (DLPack code 4); expected float32");
  EXPECT_EQ(with([](DLTensor& t) { t.dtype.lanes = 4; }), "from_dlpack: argument 'q' has 4 lanes; expected 1");
  EXPECT_EQ(with([](DLTensor& t) { t.shape = nullptr; }), "from_dlpack: argument 'q' has no shape");
  EXPECT_EQ(with([](DLTensor& t) { t.data = nullptr; }), "from_dlpack: argument 'q' has no data");
  EXPECT_EQ(with([](DLTensor& t) { t.byte_offset = 2; }), "from_dlpack: argument 'q' is not aligned to its elements of 4 bytes");
  EXPECT_EQ(with([](DLTensor& t) { t.shape[1] = -3; }), "from_dlpack: argument 'q': extent 1 is -3; expected 0 or more");
  EXPECT_EQ(with([](DLTensor& t) { t.shape[0] = t.shape[1] = std::int64_t{1} << 40; }), "from_dlpack: argument 'q' has more elements than 64 bits count");
  EXPECT_EQ(with([](DLTensor& t) { t.shape[0] = 0, t.data = nullptr; }), "accepted");   // no element needs no memory
}
#else
TEST(dlpack, needs_its_header) { GTEST_SKIP() << "dlpack/dlpack.h not found"; }
#endif
