// One unit: every public header, and a function that makes the unit's report.
#include "everything.hpp"
#include "support/bits.hpp"

#define HEDDLE_BITS_FUNCTION(name) void name(report&);
namespace heddle_bits::inline HEDDLE_BITS_UNIT {
#include "functions.inc"
}
#undef HEDDLE_BITS_FUNCTION

#define HEDDLE_JOIN_UNIT_TOKENS(a, b) a##b
#define HEDDLE_JOIN_UNIT(a, b) HEDDLE_JOIN_UNIT_TOKENS(a, b)

void HEDDLE_JOIN_UNIT(heddle_bits_of_, HEDDLE_BITS_UNIT)() {
  heddle_bits::report report;
#define HEDDLE_BITS_FUNCTION(name) heddle_bits::name(report);
#include "functions.inc"
}
