// prepare_attend(): what can fail fails there; run() gives the bits of attend(), throws nothing and allocates nothing.
#include "attention/fixture.hpp"
#include "support/allocations.hpp"

#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

using namespace attention_test;

namespace {

// Two sequences in a pool, three rows of each, after a prefix that both share.
struct world {
  values<float> q{6, 4, 16, 1};
  const values<float> prefix_k{700, 2, 16, 2}, prefix_v{700, 2, 8, 3}, k{90, 2, 16, 4}, v{90, 2, 8, 5};
  const std::vector<std::int32_t> q_indptr{0, 3, 6}, prefix_indptr{0, 700, 700}, parents{-1, 0, 0, -1, -1, 1};
  const std::vector<float> sink{.1f, -.2f, .3f, 2.f};
  page_pool<codec::f16> pool{{.num_pages = 16, .num_kv_heads = 2, .head_dim = 16, .head_dim_v = 8}};
  const std::vector<sequence_id> ids{pool.new_sequence(), pool.new_sequence()};

  world() {
    for (const sequence_id id : ids) pool.reserve(id, 90), pool.write(id, 0, k.view(), v.view());
  }
  auto keys() const { return merge(dense(prefix_k.view(), prefix_v.view(), prefix_indptr), pool[ids].layer(0) | tree(parents)) | with_sink(sink); }
  attend_options<host> options(executor_ref executor, std::span<std::byte> workspace = {}) const { return {.q_indptr = q_indptr, .executor = executor, .workspace = workspace}; }
  std::vector<std::byte> workspace(executor_ref executor) const { return std::vector<std::byte>(attend_workspace_size(q.view(), keys(), options(executor)), std::byte{0xff}); }
  result expected() const { return run(q, keys(), 8, options({})); }
};

TEST(PreparedAttend, GivesTheBitsOfAttendAndAllocatesNothing) {
  world w;
  thread_team team{3};
  for (const executor_ref executor : {executor_ref{}, executor_ref{team}}) {
    std::vector<std::byte> workspace = w.workspace(executor);
    result r(6, 4, 8), again(6, 4, 8);
    const auto step = prepare_attend(w.q.view(), w.keys(), r.out.view(), r.lse_view(), w.options(executor, workspace));
    const auto other = prepare_attend(w.q.view(), w.keys(), again.out.view(), again.lse_view(), w.options(executor, workspace));
    static_assert(noexcept(step.run()));
    EXPECT_EQ(allocations_of([&] { step.run(), other.run(); }), 0);   // one workspace, one call after the other
    EXPECT_TRUE(same_bits(r, w.expected()));
    EXPECT_TRUE(same_bits(again, w.expected()));
    w.q.at(4, 2, 3) += 1.f;   // contents may change
    const auto copy = step;
    copy.run();
    EXPECT_TRUE(same_bits(r, w.expected()));
    EXPECT_FALSE(same_bits(r, again));
  }
}

TEST(PreparedAttend, FailsBeforeAnythingIsWritten) {
  world w;
  result r(6, 4, 8);
  std::vector<std::byte> workspace = w.workspace({});
  const auto prepare = [&](const auto& keys, std::span<std::byte> memory) { prepare_attend(w.q.view(), keys, r.out.view(), r.lse_view(), w.options({}, memory)).run(); };
  EXPECT_ERROR(prepare(w.keys(), {}), "'workspace' is empty");
  EXPECT_ERROR(prepare(w.keys(), std::span(workspace).first(workspace.size() / 2)), "'workspace' holds");
  EXPECT_ERROR(prepare(dense(w.k.view(), w.v.view()), workspace), "sequences; expected 2");
  w.pool.commit(w.ids[1]), w.pool.reserve(w.ids[1], 3);
  EXPECT_ERROR(prepare(w.keys(), workspace), "has written");
  for (const float x : r.out.data) EXPECT_EQ(x, -777.f);
  for (const float x : r.lse.data) EXPECT_EQ(x, -777.f);
}

TEST(PreparedAttend, NoRowsAreNoWork) {
  const values<float> q(0, 4, 16, 1), k(5, 2, 16, 2), v(5, 2, 8, 3);
  result r(0, 4, 8);
  const auto keys = dense(k.view(), v.view()) | causal();
  std::vector<std::byte> workspace(attend_workspace_size(q.view(), keys));
  prepare_attend(q.view(), keys, r.out.view(), r.lse_view(), {.workspace = workspace}).run();
}

}  // namespace
