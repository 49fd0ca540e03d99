#include <heddle/core/error.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <string>

using namespace heddle;

namespace {

template <class... Parts>
std::string text_of(const Parts&... parts) {
  try {
    fail(parts...);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

TEST(error, joins_its_parts) {
  EXPECT_EQ(text_of("attend: argument 'kv_indptr': entry ", 3, " is ", 17u, ", less than entry ", std::size_t{2}, " (", std::int64_t{21}, ")"),
            "attend: argument 'kv_indptr': entry 3 is 17, less than entry 2 (21)");
  EXPECT_EQ(text_of('a', true, false, std::uint8_t{7}, -1), "atruefalse7-1");
  EXPECT_EQ(text_of(std::numeric_limits<std::int64_t>::min(), " ", std::numeric_limits<std::uint64_t>::max(), " ", std::numeric_limits<std::int64_t>::max()),
            "-9223372036854775808 18446744073709551615 9223372036854775807");
}

TEST(error, writes_numbers_recognisably) {
  EXPECT_EQ(text_of(0.8f), "0.8");
  EXPECT_EQ(text_of(-1.25), "-1.25");
  EXPECT_EQ(text_of(0.), "0");
  EXPECT_EQ(text_of(0.9999999), "1");
  EXPECT_EQ(text_of(5e5), "500000");
  EXPECT_EQ(text_of(1e-5), "1e-5");
  EXPECT_EQ(text_of(-2.5e20), "-2.5e20");
  EXPECT_EQ(text_of(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(text_of(std::numeric_limits<float>::infinity(), -std::numeric_limits<double>::infinity()), "infinity-infinity");
  EXPECT_EQ(text_of(std::numeric_limits<double>::max()).substr(0, 4), "1.79");
  EXPECT_EQ(text_of(std::numeric_limits<double>::denorm_min()).substr(0, 2), "4.");
}

TEST(error, cuts_long_texts) {
  const std::string text = text_of(std::string(1000, 'x').c_str(), 12345);
  EXPECT_EQ(text, std::string(error::capacity - 1, 'x'));
}

TEST(error, require_throws_only_when_false) {
  EXPECT_NO_THROW(require(true, "never"));
  EXPECT_THROW(require(false, "always"), error);
  EXPECT_STREQ(error{}.what(), "");
}

TEST(error, every_status_has_a_name) {
  for (const status s : {status::ok, status::nan_logit, status::inf_logit, status::empty_support, status::infinite_divergence, status::proposal_outside_support})
    EXPECT_STRNE(name_of(s), "unknown status");
  EXPECT_STREQ(name_of(static_cast<status>(200)), "unknown status");
}

static_assert(std::is_base_of_v<std::exception, error> && std::is_nothrow_copy_constructible_v<error>);
