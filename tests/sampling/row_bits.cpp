#include "support/bits.hpp"

#include <heddle/sampling/row.hpp>

HEDDLE_BITS(sampling_row, report) {
  namespace sampling = heddle::sampling;
  constexpr std::size_t n = 3000;
  heddle_bits::inputs in{11};
  heddle_bits::vector<float> z = in.uniform(n);
  for (float& x : z) x *= 12.f;
  const heddle::tensor_view<const float, 1> row{z.data(), heddle::extents{static_cast<std::int64_t>(n)}};
  sampling::row_workspace memory(static_cast<std::int64_t>(n));
  const sampling::parameters policies[] = {{}, {.temperature = 0.7f, .top_p = 0.9f}, {.top_k = 40, .top_p = 0.8f}, {.temperature = 1.3f, .min_p = 0.02f}, {.typical_p = 0.6f}};
  for (const auto& p : policies) {
    const sampling::chain policy{p};
    const auto law = sampling::law_of(row, policy, {}, {}, memory);
    report.add("sampling/law/tokens", law.tokens);
    report.add("sampling/law/masses", law.masses);
    heddle_bits::vector<std::int32_t> drawn;
    for (const auto how : {sampling::draw::gumbel, sampling::draw::inverse_cdf})
      for (std::uint32_t position = 0; position < 8; ++position) drawn.push_back(sampling::sample_row(row, policy, {}, {.seed = 3, .position = position}, memory, how).token);
    report.add("sampling/drawn", drawn);
  }
}
