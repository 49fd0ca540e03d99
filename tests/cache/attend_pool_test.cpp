#include <heddle/cache/codec/element.hpp>

#include "attend_pool.hpp"

using codecs = testing::Types<heddle::codec::f32, heddle::codec::f16, heddle::codec::fp8_e4m3>;
INSTANTIATE_TYPED_TEST_SUITE_P(Element, attend_pool, codecs);
