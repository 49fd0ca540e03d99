#include <heddle/core/workspace.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

using namespace heddle;

namespace {

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % scratch_alignment == 0; }

}  // namespace

TEST(workspace, a_layout_measures_and_places_alike) {
  const auto lay_out = [](scratch_layout& pieces) {
    void* const first = pieces.take<char>(1);
    void* const second = pieces.take<double>(9);
    void* const third = pieces.take<float>(0);
    void* const fourth = pieces.take<float>(16);
    return std::vector{first, second, third, fourth};
  };
  scratch_layout measure;
  EXPECT_EQ(lay_out(measure), std::vector<void*>(4, nullptr));
  EXPECT_EQ(measure.bytes(), 64u + 128u + 0u + 64u);

  scratch memory("test", {}, measure.bytes());
  scratch_layout place{memory.data()};
  const auto pieces = lay_out(place);
  EXPECT_EQ(place.bytes(), measure.bytes());
  for (const void* p : pieces) EXPECT_TRUE(aligned(p));
  EXPECT_EQ(static_cast<std::byte*>(pieces[1]) - static_cast<std::byte*>(pieces[0]), 64);
  EXPECT_EQ(static_cast<std::byte*>(pieces[3]) - memory.data(), 192);
}

TEST(workspace, uses_the_callers_memory_wherever_it_starts) {
  std::vector<std::byte> buffer(1000);
  for (std::size_t start = 0; start < 70; ++start) {
    const std::span given = std::span(buffer).subspan(start, 256 + scratch_alignment);
    const scratch memory("test", given, 256);
    EXPECT_TRUE(aligned(memory.data()));
    EXPECT_GE(memory.data(), given.data());
    EXPECT_LE(memory.data() + 256, given.data() + given.size());
  }
}

TEST(workspace, allocates_when_none_is_given) {
  const scratch memory("test", {}, 100);
  EXPECT_TRUE(aligned(memory.data()));
  memory.data()[99] = std::byte{1};
  EXPECT_EQ(scratch("test", {}, 0).data(), nullptr);
}

TEST(workspace, too_little_is_an_error_with_both_sizes) {
  std::vector<std::byte> buffer(100);
  try {
    const scratch memory("attend", buffer, 4096);
    FAIL();
  } catch (const error& e) {
    EXPECT_STREQ(e.what(), "attend: argument 'workspace' holds 100 bytes; expected at least 4160");
  }
}
