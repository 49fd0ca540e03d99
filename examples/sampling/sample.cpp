// A batch of two requests with their own policies, and one row by hand.
#include <heddle/sampling/sample.hpp>

#include <cstdint>
#include <cstdio>

int main() {
  using namespace heddle;
  const float data[] = {1.f, 2.f, 0.5f, 3.f, 0.f, 1.f, 1.f, 4.f};
  const tensor_view logits{data, extents{2, 4}};  // [rows, vocabulary]

  const sampling::chain<sampling::parameters> chains[] = {sampling::chain{sampling::parameters{.temperature = 0.f}}, sampling::chain{sampling::parameters{.temperature = 0.8f, .top_p = 0.9f}}};
  const random_key keys[] = {{.seed = 7, .request = 0, .position = 12}, {.seed = 7, .request = 1, .position = 30}};
  std::int32_t tokens[2];
  sampling::sample(logits, std::span<const sampling::chain<sampling::parameters>>(chains), tensor_view{tokens, extents{2}}, {.keys = keys});

  sampling::row_workspace memory{4};
  const sampling::chain policy{sampling::repetition_penalty(1.2f), sampling::temperature(0.7f), sampling::min_p(0.05f)};
  const std::int32_t context[] = {3, 1};
  const auto next = sampling::sample_row(logits[1], policy, {context, {}}, {.seed = 7, .position = 2}, memory);
  std::printf("greedy %d, nucleus %d, by hand %d\n", tokens[0], tokens[1], next.token);
  return tokens[0] == 3 && tokens[1] >= 0 && next.status == status::ok ? 0 : 1;
}
