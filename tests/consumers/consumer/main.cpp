#include "everything.hpp"

int second();

int main() { return second(); }
