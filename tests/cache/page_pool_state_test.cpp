// Random sequences of operations against the simplest model there is: a list of tokens per sequence.
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include "pool_model.hpp"

#include <map>
#include <random>
#include <set>

using namespace pool_test;
using heddle::page_tables;

namespace {

template <class Pool>
class machine {
 public:
  machine(const heddle::page_pool_options& options, unsigned seed)
      : memory_(Pool::storage_bytes(options)), pool_(with_storage(options)), engine_(seed) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      if (testing::Test::HasFatalFailure()) return;
      check();
      if (testing::Test::HasFatalFailure()) return;
    }
    while (!sequences_.empty()) free_sequence(0);
    EXPECT_EQ(pool_.free_pages(), pool_.num_pages());
  }
  int refused() const { return refused_; }

 private:
  struct sequence {
    sequence_id id;
    std::vector<token> tokens;
    std::int64_t next_position = 0;
  };

  heddle::page_pool_options with_storage(heddle::page_pool_options o) {
    o.storage = memory_.span();
    return o;
  }
  int random(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }
  std::vector<std::int32_t> subset(std::size_t n) {
    std::vector<std::int32_t> chosen;
    const int density = 1 + random(4);
    for (std::size_t i = 0; i < n; ++i)
      if (random(5) < density) chosen.push_back(static_cast<std::int32_t>(i));
    return chosen;
  }

  void step() {
    if (sequences_.empty() || (sequences_.size() < 5 && random(8) == 0)) {
      sequences_.push_back({pool_.new_sequence(), {}, 0});
      return;
    }
    const auto which = static_cast<std::size_t>(random(static_cast<int>(sequences_.size())));
    switch (random(9)) {
      case 0: return fork(which);
      case 1: return truncate(which);
      case 2: return random(3) ? void() : free_sequence(which);
      case 3: return evict(which);
      default: return decode(which);
    }
  }

  // reserve, write, and one of the ways to end a step
  void decode(std::size_t which) {
    sequence& s = sequences_[which];
    const int rows = random(4) ? random(6) : random(3 * pool_.page_size() + 2);
    std::vector<std::int32_t> positions;
    if (random(2))
      for (int i = 0; i < rows; ++i) positions.push_back(random(1000));
    const std::int64_t needed = pool_.pages_needed(s.id, rows);
    if (needed > pool_.free_pages()) return refuse([&] { pool_.reserve(s.id, rows, positions); });
    const std::int64_t free_before = pool_.free_pages();
    pool_.reserve(s.id, rows, positions);
    ASSERT_EQ(pool_.free_pages(), free_before - needed);
    const std::vector<int> tags = range(next_tag_, rows);
    next_tag_ += rows;
    std::vector<token> fresh;
    for (int i = 0; i < rows; ++i)
      fresh.push_back({tags[static_cast<std::size_t>(i)],
                       positions.empty() ? static_cast<std::int32_t>(s.next_position + i) : positions[static_cast<std::size_t>(i)]});
    const int end = random(4);
    if (end == 3) {  // rolled back, whatever was written
      if (random(2)) write_all(pool_, s.id, tags);
      pool_.rollback(s.id);
      return;
    }
    write_all(pool_, s.id, tags);
    std::vector<std::int32_t> path = subset(fresh.size());
    if (end == 0) {
      path.resize(fresh.size());
      for (std::size_t i = 0; i < path.size(); ++i) path[i] = static_cast<std::int32_t>(i);
      pool_.commit(s.id);
    } else if (end == 1) {
      path.clear();
      for (int i = 0, kept = random(rows + 1); i < kept; ++i) path.push_back(i);
      pool_.commit(s.id, static_cast<std::int64_t>(path.size()));
    } else {
      pool_.compact(s.id, path);
    }
    for (const std::int32_t i : path) s.tokens.push_back(fresh[static_cast<std::size_t>(i)]);
    if (!path.empty()) s.next_position = s.tokens.back().position + 1;
  }
  void fork(std::size_t which) {
    if (sequences_.size() >= 6) return;
    sequence child = sequences_[which];
    if (random(2)) {
      child.id = pool_.fork(child.id);
    } else {
      const auto length = static_cast<std::size_t>(random(static_cast<int>(child.tokens.size()) + 1));
      child.id = pool_.fork(child.id, static_cast<std::int64_t>(length));
      cut(child, length);
    }
    sequences_.push_back(child);
  }
  void truncate(std::size_t which) {
    sequence& s = sequences_[which];
    const auto length = static_cast<std::size_t>(random(static_cast<int>(s.tokens.size()) + 1));
    pool_.truncate(s.id, static_cast<std::int64_t>(length));
    cut(s, length);
  }
  static void cut(sequence& s, std::size_t length) {
    if (length == s.tokens.size()) return;
    s.tokens.resize(length);
    s.next_position = length ? s.tokens.back().position + 1 : 0;
  }
  void free_sequence(std::size_t which) {
    pool_.free(sequences_[which].id);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  void evict(std::size_t which) {
    sequence& s = sequences_[which];
    const std::vector<std::int32_t> indices = subset(s.tokens.size());
    const bool kept = random(2);
    const auto call = [&] { kept ? pool_.gather(s.id, indices) : pool_.drop(s.id, indices); };
    const auto before = memory_.copy();
    const std::string message = message_of(call);
    if (message != "no error") {
      ASSERT_NE(message.find("pages needed"), std::string::npos) << message;
      ASSERT_EQ(memory_.copy(), before);
      ++refused_;
      return;
    }
    std::vector<token> left;
    for (std::size_t i = 0; i < s.tokens.size(); ++i)
      if (std::binary_search(indices.begin(), indices.end(), static_cast<std::int32_t>(i)) == kept) left.push_back(s.tokens[i]);
    s.tokens = left;
  }
  template <class F>
  void refuse(const F& f) {
    const auto before = memory_.copy();
    const std::int64_t free_before = pool_.free_pages();
    ASSERT_NE(message_of(f).find("nothing was changed"), std::string::npos);
    ASSERT_EQ(memory_.copy(), before);
    ASSERT_EQ(pool_.free_pages(), free_before);
    ++refused_;
  }

  void check() {
    std::map<const std::byte*, std::int64_t> pages;  // by address of their first block: the most tokens that a sequence holds there
    for (const sequence& s : sequences_) {
      ASSERT_EQ(pool_.next_position(s.id), s.next_position);
      ASSERT_NO_FATAL_FAILURE(expect_tokens(pool_, s.id, s.tokens));
      if constexpr (std::is_same_v<typename Pool::layout, heddle::lane_layout>) {
        const auto source = pool_[s.id].layer(0);
        const auto length = static_cast<std::int64_t>(s.tokens.size());
        for (std::int64_t first = 0; first < length; first += 64) {
          heddle::tile t;
          source.find(0, 0, first, t, nullptr);
          for (std::int64_t r = 0; r < 4 && first + 16 * r < length; ++r)
            if ((first + 16 * r) % pool_.page_size() == 0) {
              auto& most = pages[t.key[r]];
              most = std::max(most, std::min<std::int64_t>(pool_.page_size(), length - first - 16 * r));
            }
        }
      }
    }
    if constexpr (std::is_same_v<typename Pool::layout, heddle::lane_layout>) {
      if (pool_.usage().capacity_bytes / static_cast<std::size_t>(pool_.num_pages()) == heads() * block_bytes()) {  // shared tables
        const heddle::pool_usage usage = pool_.usage();
        std::int64_t live = 0;
        for (const auto& [address, tokens] : pages) live += tokens;
        ASSERT_EQ(usage.pages_in_use, static_cast<std::int64_t>(pages.size()));
        ASSERT_EQ(usage.live_bytes, static_cast<std::size_t>(live) * heads() *
                                        (Pool::codec::key_row_bytes(pool_.head_dim()) + Pool::codec::value_row_bytes(pool_.head_dim_v())));
        ASSERT_EQ(usage.resident_bytes, pages.size() * heads() * block_bytes());
      }
    }
  }
  std::size_t heads() const { return static_cast<std::size_t>(pool_.num_layers() * pool_.num_kv_heads()); }
  std::size_t block_bytes() const {
    return static_cast<std::size_t>(pool_.page_size() / 16) *
           (Pool::codec::key_run_bytes(pool_.head_dim()) + Pool::codec::value_run_bytes(pool_.head_dim_v()));
  }

  memory memory_;
  Pool pool_;
  std::mt19937 engine_;
  std::vector<sequence> sequences_;
  int next_tag_ = 0, refused_ = 0;
};

struct geometry {
  int page_size, head_dim, head_dim_v;
  std::int64_t num_pages;
  page_tables tables = page_tables::shared;
};

template <class Pool>
void run(std::initializer_list<geometry> geometries) {
  int refused = 0;
  unsigned seed = 1;
  for (const geometry& g : geometries) {
    SCOPED_TRACE("page_size " + std::to_string(g.page_size) + " head_dim " + std::to_string(g.head_dim));
    machine<Pool> m({.num_layers = 2,
                     .num_pages = g.num_pages,
                     .page_size = g.page_size,
                     .num_kv_heads = 2,
                     .head_dim = g.head_dim,
                     .head_dim_v = g.head_dim_v,
                     .tables = g.tables},
                    seed++);
    m.run(250);
    refused += m.refused();
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(refused, 0) << "running out of pages was never met";
}

TEST(page_pool_state, records_of_f32) {
  run<heddle::page_pool<heddle::codec::f32, heddle::row_layout>>(
      {{1, 7, 1, 40}, {3, 1, 7, 20}, {3, 7, 7, 60, page_tables::per_head}, {16, 64, 64, 9}, {64, 80, 16, 5}});
}
TEST(page_pool_state, lanes_of_f16) {
  run<heddle::page_pool<heddle::codec::f16>>(
      {{16, 1, 1, 12}, {32, 7, 80, 9}, {64, 64, 64, 7}, {256, 128, 7, 4}, {48, 7, 128, 8}, {16, 7, 7, 40, page_tables::per_head}});
}

}  // namespace
