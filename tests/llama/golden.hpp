// Files of tests/golden/ and the model they were made from.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace llama::testing {

inline nlohmann::json golden(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(std::filesystem::path(__FILE__).parent_path().parent_path() / "golden" / name));
}

inline std::optional<std::string> model_path() {
  const char* const path = std::getenv("HEDDLE_MODEL");
  if (path == nullptr || !std::filesystem::exists(path)) return std::nullopt;
  return path;
}

}  // namespace llama::testing

#define LLAMA_NEEDS_MODEL()          \
  if (!llama::testing::model_path()) \
  GTEST_SKIP() << "HEDDLE_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf (examples/llama/fetch_model.sh FILE fetches it)"
