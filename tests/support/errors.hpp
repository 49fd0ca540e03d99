// The text of the heddle::error that a call throws.
#pragma once
#include <heddle/core/error.hpp>

#include <string>

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const heddle::error& e) {
    return e.what();
  }
  return "no error";
}
