// Resident memory of the engine, mapped pages counted, in a process of its own: at most 1.6 times the model file once loaded, and never
// more than 2.2 times with a full context of 2,048 tokens in an f16 cache.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "llama/engine.hpp"
#include "llama/golden.hpp"

namespace {

using namespace llama;
using llama::testing::model_path;

// A line of /proc/self/status, in bytes; 0 where there is none.
double status(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (word == key + ":") {
      double kilobytes = 0;
      in >> kilobytes;
      return kilobytes * 1024;
    }
  return 0;
}

TEST(Memory, StaysSmall) {
  LLAMA_NEEDS_MODEL();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has memory of its own";
#endif
  if (status("VmHWM") == 0) GTEST_SKIP() << "/proc/self/status does not tell";
  const auto file = static_cast<double>(std::filesystem::file_size(*model_path()));
  engine engine({.model = *model_path(), .cache = "f16", .threads = 2, .context = 2048});
  EXPECT_LE(status("VmRSS"), 1.6 * file);
  const std::vector<token> tokens(2047, 100);
  engine.model().prefill(tokens);
  engine.model().append(std::span(tokens).first(1));
  EXPECT_EQ(engine.model().cache().length(), 2048);
  EXPECT_LE(status("VmHWM"), 2.2 * file);
  RecordProperty("peak_over_file", std::to_string(status("VmHWM") / file));
}

}  // namespace
