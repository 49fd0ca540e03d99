// Rows of draft trees. A row equals sequential decoding of its path, bit for bit, whatever the tree around it (decisions D1).
#include "attention/fixture.hpp"

#include <heddle/cache/page_pool.hpp>

#include <numeric>

using namespace attention_test;

namespace {

constexpr int num_qo_heads = 6, num_kv_heads = 2, dim = 20;

/// Node i of every kind of tree: random branching, some runs of first children, several roots.
std::vector<std::int32_t> random_tree(int nodes, unsigned seed) {
  std::minstd_rand rng(seed);
  rng.discard(3);
  std::vector<std::int32_t> parents;
  for (int i = 0; i < nodes; ++i) parents.push_back(rng() / 8 % 4 ? i - 1 : static_cast<std::int32_t>(rng() / 64 % static_cast<unsigned>(i + 1)) - 1);
  return parents;
}
std::vector<int> path_of(const std::vector<std::int32_t>& parents, int node) {
  std::vector<int> path;
  for (; node >= 0; node = parents[static_cast<std::size_t>(node)]) path.insert(path.begin(), node);
  return path;
}
/// Committed rows, then the rows of the path.
values<float> along(const values<float>& x, int committed, const std::vector<int>& path) {
  values<float> r(committed + static_cast<std::int64_t>(path.size()), x.heads, x.dim);
  std::copy_n(x.data.begin(), committed * x.heads * x.dim, r.data.begin());
  for (std::size_t i = 0; i < path.size(); ++i) std::copy_n(x.data.begin() + (committed + path[i]) * x.heads * x.dim, x.heads * x.dim, r.data.begin() + (committed + static_cast<std::int64_t>(i)) * x.heads * x.dim);
  return r;
}

template <class Pipe>
void expect_rows_equal_decoding(int committed, const std::vector<std::int32_t>& parents, Pipe pipe) {
  const int nodes = static_cast<int>(parents.size());
  const values<float> q(nodes, num_qo_heads, dim, 1), k(committed + nodes, num_kv_heads, dim, 2), v(committed + nodes, num_kv_heads, dim, 3);
  thread_team team{2};
  const result verified = run(q, pipe(dense(k.view(), v.view())) | tree(parents), dim, {.executor = team});
  for (int node = 0; node < nodes; ++node) {
    const std::vector<int> path = path_of(parents, node);
    const values<float> ks = along(k, committed, path), vs = along(v, committed, path);
    EXPECT_TRUE(same_bits(verified.rows(node, 1), run(q.rows(node, 1), pipe(dense(ks.view(), vs.view())) | causal(), dim))) << "committed " << committed << " node " << node << " depth " << path.size() - 1;
  }
}

// before, on and across the boundaries of runs, tiles and chunks; trees from one node to several tiles
TEST(Tree, EveryRowEqualsSequentialDecoding) {
  const auto plain = [](const auto& source) { return source; };
  unsigned seed = 0;
  for (const int committed : {0, 1, 14, 16, 60, 63, 64, 65, 500, 511, 512, 1020})
    for (const int nodes : {1, 2, 5, 24}) expect_rows_equal_decoding(committed, random_tree(nodes, ++seed), plain);
  expect_rows_equal_decoding(450, random_tree(150, 99), plain);
}

TEST(Tree, WindowsAndCapsGoByTheRowsDepth) {
  unsigned seed = 100;
  for (const int w : {1, 3, 20, 70})
    for (const int committed : {10, 60, 505}) expect_rows_equal_decoding(committed, random_tree(20, ++seed), [&](const auto& source) { return source | window(w) | soft_cap(3.f); });
}

TEST(Tree, AChainIsCausal) {
  const values<float> q(20, num_qo_heads, dim, 1), k(130, num_kv_heads, dim, 2), v(130, num_kv_heads, dim, 3);
  std::vector<std::int32_t> chain(20);
  std::iota(chain.begin(), chain.end(), -1);
  EXPECT_TRUE(same_bits(run(q, dense(k.view(), v.view()) | tree(chain), dim), run(q, dense(k.view(), v.view()) | causal(), dim)));
}

TEST(Tree, AgainstTheFormula) {
  const int committed = 90, nodes = 30;
  const std::vector<std::int32_t> parents = random_tree(nodes, 7);
  const values<float> q(nodes, num_qo_heads, dim, 1), k(committed + nodes, num_kv_heads, dim, 2), v(committed + nodes, num_kv_heads, dim, 3);
  expect_near(run(q, dense(k.view(), v.view()) | tree(parents), dim), [&](std::int64_t r, std::int64_t h) {
    const std::vector<int> path = path_of(parents, static_cast<int>(r));
    return reference::attention(committed + nodes, dim, [&](std::int64_t j) {
      const bool seen = j < committed || std::find(path.begin(), path.end(), static_cast<int>(j - committed)) != path.end();
      return seen ? dot(q, r, h, k, j, h / 3) : hidden;
    }, [&](std::int64_t j, std::int64_t c) { return v(j, h / 3, c); });
  }, 2, 1e-5, "tree");
}

TEST(Tree, OthersBranchesNeverReachARow) {
  const int committed = 60, nodes = 12;
  const std::vector<std::int32_t> parents = random_tree(nodes, 21);
  const values<float> q(nodes, num_qo_heads, dim, 1), k0(committed + nodes, num_kv_heads, dim, 2), v0(committed + nodes, num_kv_heads, dim, 3);
  const result clean = run(q, dense(k0.view(), v0.view()) | tree(parents), dim);
  for (int bad = 0; bad < nodes; ++bad) {
    values<float> k = k0, v = v0;
    for (int h = 0; h < num_kv_heads; ++h)
      for (int c = 0; c < dim; ++c) k.at(committed + bad, h, c) = v.at(committed + bad, h, c) = quiet_nan;
    const result r = run(q, dense(k.view(), v.view()) | tree(parents), dim);
    for (int node = 0; node < nodes; ++node) {
      const std::vector<int> path = path_of(parents, node);
      if (std::find(path.begin(), path.end(), bad) == path.end()) EXPECT_TRUE(same_bits(clean.rows(node, 1), r.rows(node, 1)));
      else for (const float x : r.rows(node, 1).out.data) EXPECT_TRUE(std::isnan(x));
    }
  }
}

// Several trees in one call over a paged cache, between a sequence that decodes and one without rows; then the accepted path is committed
// and the next row is the one that a cache without drafts would give.
TEST(Tree, BatchOfTreesInAPool) {
  page_pool<codec::f16> pool{{.num_layers = 1, .num_pages = 60, .page_size = 16, .num_kv_heads = num_kv_heads, .head_dim = dim}};
  const std::vector<int> committed{61, 5, 510, 33}, nodes{23, 1, 17, 0};
  std::vector<sequence_id> ids;
  std::vector<std::int32_t> q_indptr{0}, parents;
  std::vector<values<float>> k, v;
  for (std::size_t s = 0; s < committed.size(); ++s) {
    ids.push_back(pool.new_sequence());
    k.emplace_back(committed[s] + nodes[s], num_kv_heads, dim, 30 + static_cast<unsigned>(s)), v.emplace_back(committed[s] + nodes[s], num_kv_heads, dim, 40 + static_cast<unsigned>(s));
    pool.reserve(ids[s], committed[s]);
    pool.write(ids[s], 0, k[s].rows(0, committed[s]).view(), v[s].rows(0, committed[s]).view());
    pool.commit(ids[s], committed[s]);
    const std::vector<std::int32_t> t = random_tree(nodes[s], 50 + static_cast<unsigned>(s));
    if (nodes[s]) {
      std::vector<std::int32_t> positions;
      for (int i = 0; i < nodes[s]; ++i) positions.push_back(committed[s] + static_cast<std::int32_t>(path_of(t, i).size()) - 1);
      pool.reserve(ids[s], nodes[s], positions);
      pool.write(ids[s], 0, k[s].rows(committed[s], nodes[s]).view(), v[s].rows(committed[s], nodes[s]).view());
    }
    parents.insert(parents.end(), t.begin(), t.end());
    q_indptr.push_back(static_cast<std::int32_t>(parents.size()));
  }
  const values<float> q(static_cast<std::int64_t>(parents.size()), num_qo_heads, dim, 1);
  thread_team team{2};
  const result all = run(q, pool[ids].layer(0) | tree(parents) | window(500), dim, {.q_indptr = q_indptr, .executor = team});
  for (std::size_t s = 0; s < committed.size(); ++s) {
    const std::vector<std::int32_t> own(parents.begin() + q_indptr[s], parents.begin() + q_indptr[s + 1]);
    for (int node = 0; node < nodes[s]; ++node) {
      const std::vector<int> path = path_of(own, node);
      values<float16> ks(committed[s] + static_cast<std::int64_t>(path.size()), num_kv_heads, dim), vs = ks;
      const values<float> kf = along(k[s], committed[s], path), vf = along(v[s], committed[s], path);
      for (std::size_t i = 0; i < kf.data.size(); ++i) ks.data[i] = float16(kf.data[i]), vs.data[i] = float16(vf.data[i]);
      EXPECT_TRUE(same_bits(all.rows(q_indptr[s] + node, 1), run(q.rows(q_indptr[s] + node, 1), dense(ks.view(), vs.view()) | causal() | window(500), dim))) << "sequence " << s << " node " << node;
    }
  }
  const std::vector<std::int32_t> own(parents.begin(), parents.begin() + nodes[0]);
  const std::vector<int> path = path_of(own, nodes[0] - 1);
  const std::vector<std::int32_t> accepted(path.begin(), path.end());
  pool.compact(ids[0], accepted);
  EXPECT_TRUE(same_bits(all.rows(nodes[0] - 1, 1), run(q.rows(nodes[0] - 1, 1), pool[ids[0]].layer(0) | causal() | window(500), dim)));
}

TEST(Tree, BadTreesAreRefused) {
  const values<float> q(3, num_qo_heads, dim, 1), k(10, num_kv_heads, dim, 2), v(10, num_kv_heads, dim, 3);
  const auto call = [&](const std::vector<std::int32_t>& parents) { run(q, dense(k.view(), v.view()) | tree(parents), dim); };
  EXPECT_ERROR(call({-1, 0}), "'parents' has 2 entries; expected one for each of 3 rows");
  EXPECT_ERROR(call({-1, 1, 0}), "node 1 of sequence 0 has parent 1");
  EXPECT_ERROR(call({-1, 2, 0}), "node 1 of sequence 0 has parent 2");
  EXPECT_ERROR(call({-2, 0, 1}), "node 0 of sequence 0 has parent -2");
  const std::vector<std::int32_t> chain{-1, 0, 1};
  const values<float> short_k(2, num_kv_heads, dim, 2), short_v(2, num_kv_heads, dim, 3);
  EXPECT_ERROR(run(q, dense(short_k.view(), short_v.view()) | tree(chain), dim), "has 2 keys; expected at least its 3 rows");
}

}  // namespace
