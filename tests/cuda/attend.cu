// The public calls as a CUDA compiler sees them: chosen by the memory space of the tensors, without spills for every architecture the tests name.
#include <heddle/attention/attend.hpp>
#include <heddle/attention/merge.hpp>

using namespace heddle;

template <class T, class Out>
void decode(tensor_view<const T, 3, device> q, const paged_rows<T, device>& cache, tensor_view<Out, 3, device> out, tensor_view<float, 2, device> lse, const attend_options<device>& options) {
  attend(q, cache | causal(), out, lse, options);
}
template void decode(tensor_view<const float16, 3, device>, const paged_rows<float16, device>&, tensor_view<float, 3, device>, tensor_view<float, 2, device>, const attend_options<device>&);
template void decode(tensor_view<const bfloat16, 3, device>, const paged_rows<bfloat16, device>&, tensor_view<bfloat16, 3, device>, tensor_view<float, 2, device>, const attend_options<device>&);

void join(tensor_view<const float, 3, device> a, tensor_view<const float, 2, device> a_lse, tensor_view<const float, 3, device> b, tensor_view<const float, 2, device> b_lse, tensor_view<float, 3, device> out, tensor_view<float, 2, device> lse, cuda::stream stream) {
  merge(a, a_lse, b, b_lse, out, lse, {.stream = stream});
}
