#include <heddle/cache/codec/int4.hpp>
#include <heddle/cache/codec/int8.hpp>

#include "attend_pool.hpp"

using codecs = testing::Types<heddle::codec::int8<>, heddle::codec::int4_precise>;
INSTANTIATE_TYPED_TEST_SUITE_P(Integer, attend_pool, codecs);
