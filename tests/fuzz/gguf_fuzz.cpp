// libFuzzer target: a model file either loads or is refused with a file_error; nothing else. CMakeLists.txt beside it says how to build and
// run it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/load.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    llama::testing::load(std::as_bytes(std::span(data, size)));
  } catch (const llama::file_error&) {}
  return 0;
}
