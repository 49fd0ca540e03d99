// The same bits from every page size, layout, thread count and number of rows, for the other codecs of plain numbers.
#include "attention/filled_pool.hpp"

using namespace attention_test;

namespace {

TEST(Invariance, PoolOfF32) { expect_invariant<codec::f32>(); }
TEST(Invariance, PoolOfBf16) { expect_invariant<codec::bf16>(); }

}  // namespace
