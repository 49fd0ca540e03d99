// What goes wrong, and how it is said.
//
// error     thrown for what a caller got wrong in a call: shapes, parameters, tables, budgets. Its text names the function, the argument,
//           what it is and what was expected. Nothing has been written when it is thrown. Holds its text inline and never allocates.
// status    per row, for what is wrong with *values* (NaN or +inf logits, empty support): the row gets a status and a defined output, the
//           other rows are complete.
// fail      joins its arguments into the text and throws. With HEDDLE_NO_EXCEPTIONS defined it calls
//           `[[noreturn]] void heddle::on_error(const heddle::error&)`, which the program defines.
//
//     heddle::require(width > 0, "attend: argument 'window' is ", width, "; expected 0 (off) or more");
#pragma once
#include <heddle/core/isa.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>

namespace heddle {

class error : public std::exception {
 public:
  static constexpr std::size_t capacity = 512;
  [[gnu::always_inline]] inline error() noexcept { text_[0] = '\0'; }
  [[gnu::always_inline]] inline const char* what() const noexcept override { return text_; }
  [[gnu::always_inline]] inline char* text() noexcept { return text_; }

 private:
  char text_[capacity];
};

/// State of one row of a batched call. Anything but `ok` leaves the row with the output documented by the call.
enum class status : std::uint8_t {
  ok = 0,
  nan_logit,                  ///< a logit is NaN
  inf_logit,                  ///< a logit is +infinity
  empty_support,              ///< every logit is -infinity, or nothing is left after masks
  infinite_divergence,        ///< the value is +infinity
  proposal_outside_support,   ///< a drafted token has draft probability 0
};

/// What a batched call does after it has completed all rows, when some row has a status other than ok.
enum class on_bad_row : std::uint8_t { report, throw_error };

constexpr const char* name_of(status s) {
  switch (s) {
    case status::ok: return "ok";
    case status::nan_logit: return "nan_logit";
    case status::inf_logit: return "inf_logit";
    case status::empty_support: return "empty_support";
    case status::infinite_divergence: return "infinite_divergence";
    case status::proposal_outside_support: return "proposal_outside_support";
  }
  return "unknown status";
}

#if defined(HEDDLE_NO_EXCEPTIONS)
[[noreturn]] void on_error(const error&);
#endif

namespace detail::inline HEDDLE_ISA {

class message_writer {
 public:
  explicit message_writer(error& e) : text_(e.text()) {}
  void operator()(const char* s) {
    for (; *s; ++s) put(*s);
  }
  void operator()(char c) { put(c); }
  void operator()(bool b) { (*this)(b ? "true" : "false"); }
  template <std::integral I>
  void operator()(I value) {
    char digits[24];
    int n = 0;
    bool negative = false;
    if constexpr (std::is_signed_v<I>) negative = value < 0;
    auto rest = static_cast<std::uint64_t>(value);
    if (negative) rest = std::uint64_t{0} - rest;
    do digits[n++] = static_cast<char>('0' + rest % 10);
    while (rest /= 10);
    if (negative) put('-');
    while (n) put(digits[--n]);
  }
  void operator()(double value) {   // six decimals or an exponent: enough to recognise a parameter
    if (value != value) return (*this)("NaN");
    if (value < 0) put('-'), value = -value;
    if (value == __builtin_huge_val()) return (*this)("infinity");
    int exponent = 0;
    if (value != 0 && (value >= 1e9 || value < 1e-4)) {
      while (value >= 10) value /= 10, ++exponent;
      while (value < 1) value *= 10, --exponent;
    }
    auto whole = static_cast<std::uint64_t>(value);
    auto fraction = static_cast<std::uint64_t>((value - static_cast<double>(whole)) * 1e6 + 0.5);
    if (fraction >= 1000000) fraction = 0, ++whole;
    (*this)(whole);
    if (fraction) {
      put('.');
      for (std::uint64_t unit = 100000; fraction; unit /= 10) put(static_cast<char>('0' + fraction / unit)), fraction %= unit;
    }
    if (exponent) put('e'), (*this)(exponent);
  }

 private:
  void put(char c) {
    if (used_ + 1 < error::capacity) text_[used_++] = c, text_[used_] = '\0';
  }
  char* text_;
  std::size_t used_ = 0;
};

[[noreturn, gnu::cold]] inline void raise(const error& e) {
#if defined(HEDDLE_NO_EXCEPTIONS)
  on_error(e);
#else
  throw e;
#endif
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const Parts&... parts) {
  error e;
  detail::message_writer write(e);
  (write(parts), ...);
  detail::raise(e);
}

template <class... Parts>
[[gnu::always_inline]] inline void require(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]] fail(parts...);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
