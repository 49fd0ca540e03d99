// Files that are not what they should be: each is refused with a message that says what is wrong, none is believed.
#include "llama/gguf.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/load.hpp"
#include "llama/architecture.hpp"
#include "llama/gguf_builder.hpp"
#include "llama/tokenizer.hpp"

namespace {

using namespace llama;
using namespace llama::testing;

std::string refusal(const std::function<void()>& use) {
  try {
    use();
  } catch (const file_error& refused) { return refused.what(); }
  return "(accepted)";
}
std::string refusal_of(const std::string& bytes) {
  return refusal([&] { gguf(as_bytes(bytes), "f.gguf"); });
}
// Loading as the program does it, up to the weights.
std::string refusal_to_load(const gguf_builder& file) {
  const std::string bytes = file.bytes();
  return refusal([&] { load(as_bytes(bytes)); });
}
std::string words(std::initializer_list<std::uint64_t> numbers) {
  std::string out;
  for (const std::uint64_t n : numbers) out.append(reinterpret_cast<const char*>(&n), 8);
  return out;
}

#define EXPECT_REFUSED(text, ...) EXPECT_NE((__VA_ARGS__).find(text), std::string::npos) << (__VA_ARGS__)

TEST(Gguf, ReadsWhatWasWritten) {
  gguf_builder builder;
  builder.string("s", "text").number("u", std::uint32_t{7}).number("f", 2.5f).number("b", true);
  builder.numbers<std::int32_t>("n", {3, -1, 4}).strings("names", {"", "a", "longer than a few bytes"});
  builder.raw("big", 10, words({5})).raw("negative", 5, std::string_view("\xff\xff\xff\xff", 4));
  builder.tensor("norm", {32}).tensor("matrix", {64, 3}, format::q4_1);
  const std::string bytes = builder.bytes();
  const gguf file(as_bytes(bytes), "f.gguf");
  EXPECT_EQ(file.get<std::string_view>("s"), "text");
  EXPECT_EQ(file.get<std::uint32_t>("u"), 7u);
  EXPECT_EQ(file.get<std::uint32_t>("big"), 5u);
  EXPECT_EQ(file.get<float>("f"), 2.5f);
  EXPECT_TRUE(file.get<bool>("b"));
  EXPECT_EQ(file.find<float>("absent"), std::nullopt);
  EXPECT_EQ(file.get_array<std::int32_t>("n"), (std::vector<std::int32_t>{3, -1, 4}));
  EXPECT_EQ(file.get_array<std::string_view>("names"), (std::vector<std::string_view>{"", "a", "longer than a few bytes"}));
  ASSERT_NE(file.find_tensor("matrix"), nullptr);
  EXPECT_EQ(file.find_tensor("matrix")->dims, (std::array<std::uint64_t, 4>{64, 3, 1, 1}));
  EXPECT_EQ(file.find_tensor("matrix")->data.size(), 6u * 20u);
  EXPECT_EQ(file.find_tensor("matrix")->data.data() - file.find_tensor("norm")->data.data(), 128);
  EXPECT_EQ(file.find_tensor("nothing"), nullptr);

  EXPECT_REFUSED("f.gguf: the key 'absent' is missing", refusal([&] { file.get<float>("absent"); }));
  EXPECT_REFUSED("'u' has type uint32; expected a string", refusal([&] { file.get<std::string_view>("u"); }));
  EXPECT_REFUSED("'s' has type string; expected an integer", refusal([&] { file.get<std::uint32_t>("s"); }));
  EXPECT_REFUSED("'negative' holds -1; expected a count", refusal([&] { file.get<std::uint32_t>("negative"); }));
  EXPECT_REFUSED("'n' has type array of int32; expected an array of string", refusal([&] { file.get_array<std::string_view>("n"); }));
}

TEST(Gguf, RefusesForeignAndNewerFiles) {
  EXPECT_REFUSED("ends inside the magic number", refusal_of(""));
  gguf_builder builder;
  builder.magic = "GGML";
  EXPECT_REFUSED("is not a GGUF file (begins with 'GGML')", refusal_of(builder.bytes()));
  builder.magic = "GGUF";
  builder.version = 4;
  EXPECT_REFUSED("has GGUF version 4; only version 3", refusal_of(builder.bytes()));
  builder.version = 0x03000000;
  EXPECT_REFUSED("big-endian", refusal_of(builder.bytes()));
  EXPECT_REFUSED("cannot be opened", refusal([] { mapped_file("/nonexistent.gguf"); }));
  EXPECT_REFUSED("is not a regular file", refusal([] { mapped_file("/"); }));
}

TEST(Gguf, CountsAreHeldAgainstTheSizeOfTheFile) {
  constexpr std::uint64_t huge = std::uint64_t{1} << 60;
  gguf_builder builder;
  builder.metadata_count = huge;
  EXPECT_REFUSED("claims 1152921504606846976 metadata entries", refusal_of(builder.bytes()));
  builder.metadata_count = 0;
  builder.tensor_count = huge;
  EXPECT_REFUSED("claims 1152921504606846976 tensors", refusal_of(builder.bytes()));
  for (const std::uint32_t element : {0u, 4u, 8u, 10u}) {
    const std::string array = std::string("\0\0\0\0", 4).replace(0, 1, 1, static_cast<char>(element)) + words({huge, 0, 0});
    EXPECT_REFUSED("claims 1152921504606846976 elements in 'a'", refusal_of(gguf_builder().raw("a", 9, array).bytes()));
  }
  EXPECT_REFUSED("ends inside a metadata string", refusal_of(gguf_builder().raw("a", 8, words({huge})).bytes()));
  EXPECT_REFUSED("ends inside a metadata key", refusal_of(gguf_builder().bytes().replace(16, 1, 1, '\1') + words({~0ull, 0, 0})));
}

TEST(Gguf, RefusesUnknownTypesAndDuplicates) {
  EXPECT_REFUSED("'a' has the unknown type 13", refusal_of(gguf_builder().raw("a", 13, words({0, 0})).bytes()));
  EXPECT_REFUSED("'a' holds an array of arrays", refusal_of(gguf_builder().raw("a", 9, std::string("\x09\0\0\0", 4) + words({0})).bytes()));
  EXPECT_REFUSED("'a' holds a boolean", refusal_of(gguf_builder().raw("a", 7, "\2").bytes()));
  EXPECT_REFUSED("'a' appears twice", refusal_of(gguf_builder().number("a", 1u).string("a", "").bytes()));
  EXPECT_REFUSED("'t' appears twice", refusal_of(gguf_builder().tensor("t", {32}).tensor("t", {32}).bytes()));
  EXPECT_REFUSED("'t' has the unknown type 4", refusal_of(gguf_builder().tensor_at("t", {32}, 4, 0).bytes()));
  EXPECT_REFUSED("'bell\\x07' appears twice", refusal_of(gguf_builder().number("bell\a", 1u).number("bell\a", 1u).bytes()));
}

TEST(Gguf, TensorsLieInsideTheFile) {
  const auto with_tensor = [](std::vector<std::uint64_t> dims, std::uint64_t offset, std::uint32_t type = 0) {
    return refusal_of(gguf_builder().tensor("first", {32}).tensor_at("t", dims, type, offset).bytes());
  };
  constexpr std::uint64_t half = std::uint64_t{1} << 32;
  EXPECT_EQ(with_tensor({32}, 0), "(accepted)");
  EXPECT_REFUSED("'t' has a dimension of 0", with_tensor({32, 0}, 0));  // ggml-org/ggml#1517
  EXPECT_REFUSED("'t' has 0 dimensions", with_tensor({}, 0));
  EXPECT_REFUSED("'t' has 5 dimensions", with_tensor({1, 1, 1, 1, 1}, 0));
  EXPECT_REFUSED("'t' has more than 2^63 elements", with_tensor({half, half}, 0));
  EXPECT_REFUSED("'t' has more than 2^63 elements", with_tensor({half, half, half, half}, 0));
  EXPECT_REFUSED("'t' reaches past the end", with_tensor({half, half / 4}, 0));  // 2^62 elements of 4 bytes
  EXPECT_REFUSED("'t' reaches past the end", with_tensor({33}, 0));
  EXPECT_REFUSED("'t' reaches past the end", with_tensor({32}, 32));
  EXPECT_REFUSED("'t' reaches past the end", with_tensor({32}, ~std::uint64_t{31}));
  EXPECT_REFUSED("'t' lies at offset 4, not a multiple", with_tensor({1}, 4));
  EXPECT_REFUSED("'t' has rows of 31 elements", with_tensor({31, 32}, 0, format::q8_0.id));
  for (const std::uint32_t alignment : {0u, 4u, 48u})
    EXPECT_REFUSED("has alignment", refusal_of(gguf_builder().number("general.alignment", alignment).tensor("t", {32}).bytes()));
  EXPECT_REFUSED("reaches past the end", refusal_of(gguf_builder().number("general.alignment", 1u << 31).tensor("t", {32}).bytes()));
}

TEST(Gguf, EveryTruncationOfAModelIsRefused) {
  const std::string whole = tiny_model().bytes();
  EXPECT_EQ(refusal([&] { load(as_bytes(whole)); }), "(accepted)");
  const gguf file(as_bytes(whole), "f.gguf");
  const auto& last = file.tensors().back().data;
  const auto needed = static_cast<std::size_t>(last.data() + last.size() - as_bytes(whole).data());
  for (std::size_t size = 0; size < needed; ++size) {
    const std::vector<char> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));  // on the heap, for the sanitizer
    ASSERT_NE(refusal([&] { load(std::as_bytes(std::span(part))); }), "(accepted)") << "cut to " << size << " bytes";
  }
}

TEST(Gguf, AModelNeedsItsKeysAndShapes) {
  EXPECT_EQ(refusal_to_load(tiny_model()), "(accepted)");
  EXPECT_REFUSED("'general.architecture' is missing", refusal_to_load(gguf_builder()));
  EXPECT_REFUSED("architecture 'mamba'", refusal_to_load(gguf_builder().string("general.architecture", "mamba")));
  EXPECT_REFUSED("'llama.block_count' is missing", refusal_to_load(gguf_builder().string("general.architecture", "llama")));
  EXPECT_REFUSED("of which this program would use 11", refusal_to_load(tiny_model().tensor("blk.0.attn_q.bias", {32})));
  EXPECT_REFUSED("scales its rotary angles by the rule 'yarn'", refusal_to_load(tiny_model().string("llama.rope.scaling.type", "yarn")));
  EXPECT_REFUSED("'llama.attention.value_length' holds 8", refusal_to_load(tiny_model().number("llama.attention.value_length", 8u)));
  EXPECT_REFUSED("'output.weight' has dimensions [32, 258]; expected [32, 259]",
                 refusal_to_load(tiny_model().tensor("output.weight", {32, 258}, format::q8_0)));
  EXPECT_REFUSED("'output.weight' is stored as I16", refusal_to_load(tiny_model().tensor("output.weight", {32, 259}, {25, "I16", 1, 2})));
}

// Whole damaged files, hand-made and found by the fuzzer.
TEST(Gguf, TheCorpusIsRefusedOrLoaded) {
  const auto folder = std::filesystem::path(__FILE__).parent_path().parent_path() / "fuzz" / "corpus" / "gguf";
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    const std::string message = refusal([&] { load(std::as_bytes(std::span(bytes))); });
    EXPECT_LT(message.size(), 1000u) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 20u);
}

}  // namespace
