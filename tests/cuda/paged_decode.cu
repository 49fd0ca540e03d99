#include <heddle/attention/paged_decode.cuh>
// The kernels that a CUDA compiler must accept, without spills, for every architecture the tests name.
using namespace heddle;
template void heddle::detail::paged_decode::launch<float16, float, 128>(detail::paged_decode::arguments<float16>, std::byte*, std::int64_t, int, float*, std::int64_t, std::int64_t, float*, std::int64_t, std::int64_t, cuda::stream);
template void heddle::detail::paged_decode::launch<bfloat16, bfloat16, 64>(detail::paged_decode::arguments<bfloat16>, std::byte*, std::int64_t, int, bfloat16*, std::int64_t, std::int64_t, float*, std::int64_t, std::int64_t, cuda::stream);
template void heddle::detail::paged_decode::launch<float16, float16, 64>(detail::paged_decode::arguments<float16>, std::byte*, std::int64_t, int, float16*, std::int64_t, std::int64_t, float*, std::int64_t, std::int64_t, cuda::stream);
template void heddle::detail::paged_decode::launch<bfloat16, float, 128>(detail::paged_decode::arguments<bfloat16>, std::byte*, std::int64_t, int, float*, std::int64_t, std::int64_t, float*, std::int64_t, std::int64_t, cuda::stream);
