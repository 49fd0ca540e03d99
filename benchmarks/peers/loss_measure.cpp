// Times a loss on request, for torch_losses.py: a JSON line {"loss":"reverse_kl"|"forward_kl"|"jsd","element":"f32"|"bf16","rows":N,"vocabulary":V,"repeats":T}
// on standard input, {"seconds":S} per call, value and gradient, on standard output.
#include <heddle/core/thread_team.hpp>
#include <heddle/distillation/loss.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "requests.hpp"

namespace {

using namespace heddle::distillation;
using heddle::extents;
using heddle::tensor_view;

template <class E>
std::vector<E> noise(std::int64_t size, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<E> out(static_cast<std::size_t>(size));
  for (E& x : out) x = E(static_cast<float>(random() % 8001) / 1000.f - 4.f);
  return out;
}

template <class E>
double measure(const std::string& name, std::int64_t rows, std::int64_t vocabulary, int repeats, heddle::thread_team& team) {
  const auto z = noise<E>(rows * vocabulary, 1), y = noise<E>(rows * vocabulary, 2);
  std::vector<E> gradient(z.size());
  const extents<2> shape{rows, vocabulary};
  const auto call = [&](const auto& divergence) {
    loss(tensor_view<const E, 2>{z.data(), shape}, tensor_view<const E, 2>{y.data(), shape}, divergence, tensor_view<E, 2>{gradient.data(), shape}, {.executor = team});
  };
  const auto run = [&] {
    if (name == "reverse_kl") call(reverse_kl{});
    else if (name == "forward_kl") call(forward_kl{});
    else call(generalized_jsd{.beta = 0.5});
  };
  return seconds_of(run, repeats);
}

}  // namespace

int main(int argc, char** argv) {
  return answer_requests(argc, argv, [](const nlohmann::json& request, heddle::thread_team& team) {
    const auto call = request["element"] == "f32" ? measure<float> : measure<heddle::bfloat16>;
    return call(request["loss"], request["rows"], request["vocabulary"], request["repeats"], team);
  });
}
