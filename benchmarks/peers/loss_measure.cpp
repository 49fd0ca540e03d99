// Times a loss on request, for torch_losses.py: a JSON line {"loss":"reverse_kl"|"forward_kl"|"jsd","element":"f32"|"bf16","rows":N,"vocabulary":V,"repeats":T}
// on standard input, {"seconds":S} per call, value and gradient, on standard output.
#include <heddle/core/thread_team.hpp>
#include <heddle/distillation/loss.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

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
  run();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeats;
}

}  // namespace

int main(int argc, char** argv) {
  heddle::thread_team team(argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 1);
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::json::parse(line);
    const auto call = request["element"] == "f32" ? measure<float> : measure<heddle::bfloat16>;
    std::cout << nlohmann::json{{"seconds", call(request["loss"], request["rows"], request["vocabulary"], request["repeats"], team)}}.dump() << std::endl;
  }
}
