#include <heddle/core/executor.hpp>
#include <heddle/core/thread_team.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace heddle;

namespace {

// A pool as another program has it: a virtual call, an int, no knowledge of heddle.
class pool {
 public:
  virtual ~pool() = default;
  virtual void bulk(std::size_t n, const std::function<void(std::size_t)>& f) {
    ++calls;
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 3; ++t)
      threads.emplace_back([=] {
        for (std::size_t i = t; i < n; i += 3) f(i);
      });
  }
  int concurrency() const { return 3; }
  int calls = 0;
};

struct without_concurrency {
  void bulk(std::size_t, bulk_function) {}
};
struct without_bulk {
  std::size_t concurrency() const { return 1; }
};
struct concurrency_is_text {
  void bulk(std::size_t, bulk_function) {}
  const char* concurrency() const { return ""; }
};
struct bulk_takes_no_function {
  void bulk(std::size_t) {}
  std::size_t concurrency() const { return 1; }
};
struct bulk_takes_function_of_nothing {
  void bulk(std::size_t, void (*)()) {}
  std::size_t concurrency() const { return 1; }
};
class private_bulk {
  void bulk(std::size_t, bulk_function) {}

 public:
  std::size_t concurrency() const { return 1; }
};
struct bulk_is_not_const {
  void bulk(std::size_t, bulk_function) {}
  std::size_t concurrency() const { return 1; }
};

static_assert(executor<serial_executor> && executor<const serial_executor> && executor<executor_ref> && executor<thread_team> && executor<pool> && executor<bulk_is_not_const>);
static_assert(!executor<without_concurrency> && !executor<without_bulk> && !executor<concurrency_is_text> && !executor<bulk_takes_no_function> &&
              !executor<bulk_takes_function_of_nothing> && !executor<private_bulk> && !executor<const bulk_is_not_const> && !executor<const thread_team> && !executor<int>);
// a reference outlives no temporary
static_assert(std::is_constructible_v<executor_ref, thread_team&> && !std::is_constructible_v<executor_ref, thread_team> && !std::is_constructible_v<executor_ref, int&>);
static_assert(std::is_trivially_copyable_v<executor_ref>);

void expect_each_once(executor_ref run) {
  for (const std::size_t n : {0u, 1u, 2u, 5u, 1000u}) {
    std::vector<int> count(n);
    run.bulk(n, [&](std::size_t i) { ++count[i]; });
    EXPECT_EQ(count, std::vector<int>(n, 1));
  }
}

}  // namespace

TEST(executor, every_kind_runs_each_index_once) {
  expect_each_once({});
  EXPECT_EQ(executor_ref{}.concurrency(), 1u);

  serial_executor serial;
  const serial_executor constant;
  expect_each_once(serial);
  expect_each_once(constant);

  thread_team team{2};
  expect_each_once(team);
  EXPECT_EQ(executor_ref{team}.concurrency(), 2u);

  pool callers;
  expect_each_once(callers);
  EXPECT_EQ(executor_ref{callers}.concurrency(), 3u);
  EXPECT_EQ(callers.calls, 3);   // none and one need no pool
}

TEST(executor, serial_order) {
  std::vector<std::size_t> order;
  executor_ref{}.bulk(4, [&](std::size_t i) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3}));
}

TEST(executor, takes_functions_of_any_kind) {
  static int calls = 0;
  executor_ref{}.bulk(3, +[](std::size_t) { ++calls; });
  const auto constant = [](std::size_t) { ++calls; };
  executor_ref{}.bulk(2, constant);
  struct counter {
    int n = 0;
    void operator()(std::size_t) { ++n; }
  } named;
  serial_executor serial;
  executor_ref{serial}.bulk(5, named);   // by reference, not by copy
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(named.n, 5);
}

TEST(executor, exceptions_pass_through) {
  serial_executor serial;
  EXPECT_THROW(executor_ref{serial}.bulk(3, [](std::size_t i) { if (i == 1) throw std::runtime_error("one"); }), std::runtime_error);
  EXPECT_THROW(executor_ref{}.bulk(1, [](std::size_t) { throw std::runtime_error("none"); }), std::runtime_error);
}
