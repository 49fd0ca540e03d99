// Values and gradients of PyTorch in float64 (tests/golden/distillation_losses.py), for every base divergence.
#include "distillation/fixture.hpp"

#include <heddle/distillation/sampled_token.hpp>
#include <heddle/distillation/support.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace {

using namespace distillation_tests;
using namespace heddle::distillation;

TEST(Golden, ValuesAndGradientsArePyTorchs) {
  const auto golden = nlohmann::json::parse(std::ifstream(std::filesystem::path(__FILE__).parent_path().parent_path() / "golden" / "distillation_losses.json"));
  logits<double> z(golden["rows"], golden["vocabulary"]), y = z;
  z.data = golden["student"].get<std::vector<double>>(), y.data = golden["teacher"].get<std::vector<double>>();
  const auto tokens = golden["tokens"].get<std::vector<std::int32_t>>();
  std::set<std::string> seen;
  for (const auto& c : golden["cases"]) {
    const std::string name = c["loss"];
    const loss_options options{.temperature = c["temperature"], .teacher_temperature = c["teacher_temperature"], .reduction = reduction::sum};
    const auto check = [&](const std::string& which, const auto& functional) {
      if (which != name) return;
      seen.insert(name);
      const auto exact = evaluate(functional, options, z, y);
      const auto single = evaluate(functional, options, z.as<float>(), y.as<float>());
      for (std::size_t r = 0; r < exact.result.row_values.size(); ++r) {
        const double value = c["values"][r];
        EXPECT_NEAR(exact.result.row_values[r], value, 1e-12 * (1 + std::abs(value))) << name;
        EXPECT_NEAR(single.result.row_values[r], value, 3e-6 * (1 + std::abs(value))) << name;
      }
      for (std::size_t i = 0; i < exact.gradient.data.size(); ++i) {
        const double g = c["gradient"][i];
        ASSERT_NEAR(exact.gradient.data[i], g, 1e-12 * (1 + std::abs(g))) << name << ' ' << i;
        ASSERT_NEAR(static_cast<double>(single.gradient.data[i]), g, 1e-5 * (1 + std::abs(g))) << name << ' ' << i;
      }
    };
    check("forward_kl", forward_kl{});
    check("reverse_kl", reverse_kl{});
    check("total_variation", total_variation{});
    if (name.starts_with("generalized_jsd/")) check(name, generalized_jsd{.beta = std::stod(name.substr(16))});
    check("top_k_tail/forward_kl", top_k_tail<forward_kl>{.k = 5});
    check("top_k_tail/reverse_kl", top_k_tail<reverse_kl>{.k = 5});
    check("top_k_tail/total_variation", top_k_tail<total_variation>{.k = 5});
    check("top_k_tail/generalized_jsd/0.3", top_k_tail<generalized_jsd>{.k = 5, .divergence = {.beta = 0.3}});
    check("renormalised/reverse_kl", renormalised<reverse_kl>{.k = 6});
    check("renormalised/forward_kl", renormalised<forward_kl>{.k = 6});
    check("k1", sampled_kl{.tokens = tokens, .estimator = estimator::k1});
    check("k2", sampled_kl{.tokens = tokens, .estimator = estimator::k2});
    check("k3", sampled_kl{.tokens = tokens, .estimator = estimator::k3});
    check("policy_gradient", policy_gradient_kl{.tokens = tokens});
  }
  EXPECT_EQ(seen.size(), 18u);
  EXPECT_EQ(golden["cases"].size(), 54u);
}

}  // namespace
