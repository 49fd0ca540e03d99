#include "everything.hpp"

#include <cstdio>
#include <cstdlib>

void heddle::on_error(const heddle::error& e) {
  std::puts(e.what());
  std::exit(3);
}

int main(int argc, char**) { heddle::require(argc > 1, "main: argument 'width' is ", 3, "; expected more"); }
