// libFuzzer target: a model file either loads or is refused with a file_error; nothing else.
//     clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Iexamples -Itests tests/fuzz/gguf_fuzz.cpp -lpcre2-8 -o
//     gguf_fuzz
//     ./gguf_fuzz -malloc_limit_mb=64 -max_len=16384 tests/fuzz/corpus/gguf
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
