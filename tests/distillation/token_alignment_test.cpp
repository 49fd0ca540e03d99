// Groups by their definition, on hand-made and random tokenizations; the two maps of rows.
#include "support/errors.hpp"

#include <heddle/distillation/token_alignment.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace heddle::distillation;
using offsets = std::vector<std::int64_t>;

TEST(TokenAlignment, GroupsCloseWhereBothEnd) {
  // "un" "believ" "able" | "!"  against  "unbeliev" "ab" "le" | "!"
  const offsets student{2, 8, 12, 13}, teacher{8, 10, 12, 13};
  const auto groups = align(student, teacher);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].student_count, 2); EXPECT_EQ(groups[0].teacher_count, 1); EXPECT_EQ(groups[0].end, 8);
  EXPECT_EQ(groups[1].student_first, 2); EXPECT_EQ(groups[1].teacher_first, 1); EXPECT_EQ(groups[1].teacher_count, 2); EXPECT_EQ(groups[1].begin, 8);
  EXPECT_TRUE(groups[2].strict());
  EXPECT_FALSE(groups[0].strict() || groups[1].strict());

  const auto rows = strict_rows(groups, student.size());
  EXPECT_EQ(std::vector<int>(rows.mask.begin(), rows.mask.end()), (std::vector<int>{0, 0, 0, 1}));
  EXPECT_EQ(rows.teacher_row[3], 3);
  const auto events = partial_events(groups, student);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].begin, events[0].end);   // event entry
  EXPECT_EQ(events[1].teacher_row, 0); EXPECT_EQ(events[1].begin, 0); EXPECT_EQ(events[1].end, 2);
  EXPECT_EQ(events[2].teacher_row, 1); EXPECT_EQ(events[2].begin, events[2].end);
}

// Token boundaries drawn at random, with tokens of width zero. A common boundary of both sides is where groups end, and only there.
TEST(TokenAlignment, GroupsPartitionBothSequences) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % 40);
    const auto cut = [&] {
      offsets ends;
      for (std::int64_t b = 1; b <= bytes; ++b)
        if (b == bytes || random() % 3 == 0)
          for (std::uint32_t copies = 1 + (random() % 8 == 0); copies > 0; --copies) ends.push_back(b);
      if (random() % 8 == 0) ends.insert(ends.begin(), 0);
      return ends;
    };
    const offsets student = cut(), teacher = cut();
    std::string text;
    for (std::int64_t b = 0; b < bytes; ++b) text += static_cast<char>('a' + random() % 26);
    const auto token = [&](const offsets& ends, std::int32_t i) {
      const auto k = static_cast<std::size_t>(i);
      const auto from = static_cast<std::size_t>(k ? ends[k - 1] : 0);
      return text.substr(from, static_cast<std::size_t>(ends[k]) - from);
    };
    const auto groups = align(student, teacher);
    std::int32_t i = 0, j = 0;
    std::multiset<std::int64_t> boundaries;
    for (const auto& group : groups) {
      EXPECT_EQ(group.student_first, i); EXPECT_EQ(group.teacher_first, j);
      EXPECT_GE(group.student_count, 1); EXPECT_GE(group.teacher_count, 1);
      std::string a, b;
      for (; i < group.student_first + group.student_count; ++i) a += token(student, i);
      for (; j < group.teacher_first + group.teacher_count; ++j) b += token(teacher, j);
      EXPECT_EQ(a, b);
      EXPECT_EQ(a, text.substr(static_cast<std::size_t>(group.begin), static_cast<std::size_t>(group.end - group.begin)));
      boundaries.insert(group.end);
    }
    for (std::size_t k = static_cast<std::size_t>(i); k < student.size(); ++k) EXPECT_EQ(token(student, static_cast<std::int32_t>(k)), "");   // end markers only
    for (std::size_t k = static_cast<std::size_t>(j); k < teacher.size(); ++k) EXPECT_EQ(token(teacher, static_cast<std::int32_t>(k)), "");
    for (std::int64_t b = 1; b <= bytes; ++b) {
      const bool common = std::binary_search(student.begin(), student.end(), b) && std::binary_search(teacher.begin(), teacher.end(), b);
      EXPECT_EQ(boundaries.count(b) > 0, common);
    }
    for (const auto& group : align(student, student)) EXPECT_TRUE(group.strict());   // one tokenizer
    for (const auto& event : partial_events(align(student, student), student)) EXPECT_EQ(event.begin, event.end);
  }
}

TEST(TokenAlignment, EdgesAndErrors) {
  EXPECT_TRUE(align({}, {}).empty());
  EXPECT_TRUE(align(offsets{0, 0}, offsets{0}).empty());
  EXPECT_EQ(align(offsets{3, 3, 3}, offsets{1, 3}).size(), 1u);   // two end markers dropped
  EXPECT_EQ(partial_events(align(offsets{3, 3}, offsets{3}), offsets{3, 3})[1].teacher_row, -1);
  EXPECT_NE(message_of([] { align(offsets{1, 3}, offsets{4}); }).find("'teacher_ends' covers 4 bytes; expected those of 'student_ends', 3"), std::string::npos);
  EXPECT_NE(message_of([] { align(offsets{1, 3}, {}); }).find("'teacher_ends' covers 0"), std::string::npos);
  EXPECT_NE(message_of([] { align(offsets{2, 1}, offsets{1}); }).find("'student_ends': token 1 ends at 1; expected at least 2"), std::string::npos);
  EXPECT_NE(message_of([] { align(offsets{1}, offsets{-1}); }).find("'teacher_ends'"), std::string::npos);
  EXPECT_NE(message_of([] { strict_rows(align(offsets{1, 2}, offsets{1, 2}), 1); }).find("'student_tokens' is 1"), std::string::npos);
}

}  // namespace
