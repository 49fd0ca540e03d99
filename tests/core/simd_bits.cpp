#include <heddle/core/simd.hpp>
#include "support/bits.hpp"

HEDDLE_BITS(core_simd, report) {
  heddle_bits::inputs in{3};
  heddle_bits::vector<float> exps(16 * 1000), sums, chain(16);
  heddle_bits::vector<heddle::float16> halves(16 * 1000);
  heddle_bits::vector<heddle::bfloat16> bfloats(16 * 1000);
  heddle::simd::f32x16 total = heddle::simd::splat(0.f);
  for (std::size_t i = 0; i < exps.size(); i += 16) {
    const auto values = in.uniform(16);
    const auto x = heddle::simd::load(values.data()), wide = heddle::simd::fma(x, heddle::simd::splat(90.f), heddle::simd::splat(-10.f));
    heddle::simd::store(exps.data() + i, heddle::simd::exp(wide));
    heddle::simd::store(halves.data() + i, heddle::simd::fma(wide, wide, x));
    heddle::simd::store(bfloats.data() + i, heddle::simd::fma(wide, wide, x));
    total = heddle::simd::fma(x, wide, total);
    sums.push_back(heddle::simd::reduce_add(x));
    sums.push_back(heddle::simd::reduce_max(wide));
  }
  heddle::simd::store(chain.data(), total);
  report.add("core/simd/exp", exps);
  report.add("core/simd/float16", halves);
  report.add("core/simd/bfloat16", bfloats);
  report.add("core/simd/reduce", sums);
  report.add("core/simd/fma", chain);
}
