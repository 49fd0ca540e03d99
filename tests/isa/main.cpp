// Prints the report of the unit named by the argument.
#include <cstdio>
#include <cstring>

#define HEDDLE_UNIT(name) void heddle_bits_of_##name();
#include "units.inc"
#undef HEDDLE_UNIT

int main(int argc, char** argv) {
  const char* unit = argc > 1 ? argv[1] : "";
#define HEDDLE_UNIT(name) \
  if (std::strcmp(unit, #name) == 0) return heddle_bits_of_##name(), 0;
#include "units.inc"
  std::fprintf(stderr, "no unit '%s' in this program\n", unit);
  return 2;
}
