// Draft heads on the engine: drafts by definition, texts and caches as without them, files that do not fit; and the program that trains them, stopped anywhere.
#include <gtest/gtest.h>
#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/draft/head_file.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "llama/drafters.hpp"
#include "llama/head_drafter.hpp"
#include "llama/small_engine.hpp"

namespace {

using namespace llama;
using namespace llama::testing;
namespace verify = heddle::verify;
using heddle::sampling::parameters;

struct folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("heddle_heads_" + std::to_string(::getpid()));
  folder() { std::filesystem::create_directories(path); }
  ~folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
};
std::string contents(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

heddle::draft_heads random_heads(const small_engine& e, std::span<const std::int32_t> tokens, std::int64_t count = 3) {
  heddle::draft_heads out({static_cast<std::int64_t>(e.config.hidden_size), 24, count, 259}, tokens);
  std::mt19937 random(6);
  for (float& w : out.weights()) w = 0.2f * (static_cast<float>(random()) / 2147483648.f - 1.f);
  return out;
}
std::string file_of(const heddle::draft_heads& heads) {
  heddle::aligned_vector<std::byte> bytes;
  heddle::write_head_file(heads, bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<std::int32_t> every_third() {
  std::vector<std::int32_t> out;
  for (std::int32_t v = 1; v < 259; v += 3) out.push_back(v);
  return out;
}

TEST(HeadDrafter, DraftsTheMostProbableTokensOfTheHeads) {
  small_engine e("f32", linear::precision::f32);
  const auto heads = random_heads(e, {});
  const auto width = e.config.hidden_size;
  const auto prompt = some_tokens(12);
  prefill(e.net, std::span(prompt).first(11), 0, true);
  std::vector<float> state(e.net.last_hidden().begin(), e.net.last_hidden().end()), embedding(width), logits(259);
  heddle::draft_head_scratch scratch;
  std::vector<token> expected{prompt.back()};
  for (std::int64_t head = 0; head < 3; ++head) {
    e.net.embed({&expected.back(), 1}, {embedding.data(), heddle::extents{1, width}});
    heads.advance(head, embedding, state, scratch);
    e.net.unembed({state.data(), heddle::extents{1, width}}, {logits.data(), heddle::extents{1, 259}});
    expected.push_back(static_cast<token>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  const auto shared = std::make_shared<const speaking_heads>(e.net, heads);
  const auto drafter = make_drafter<draft_law::deterministic>(shared, {e.net, 0, chain{parameters{.temperature = 0}}, {}});
  for (const std::int32_t budget : {3, 9, 2, 0}) {
    const auto tree = drafter->propose(prompt, budget);
    ASSERT_EQ(tree.tokens.size(), static_cast<std::size_t>(std::min(budget, 3)) + 1);
    EXPECT_TRUE(std::equal(tree.tokens.begin(), tree.tokens.end(), expected.begin()));
  }
  e.cache->truncate(0);
  e.net.prefill(std::span(prompt).first(11));  // nobody asked for hidden states
  EXPECT_EQ(drafter->propose(prompt, 3).tokens.size(), 1u);
}

TEST(HeadDrafter, StaysInItsDraftVocabulary) {
  small_engine e("f16", linear::precision::int8);
  const auto kept = every_third();
  const auto shared = std::make_shared<const speaking_heads>(e.net, random_heads(e, kept));
  const auto prompt = some_tokens(12);
  prefill(e.net, std::span(prompt).first(11), 0, true);
  const auto drafter = make_drafter<draft_law::independent>(shared, {e.net, 0, chain{parameters{.temperature = 2}}, {.seed = 5}});
  const auto tree = drafter->propose(prompt, 3);
  ASSERT_EQ(tree.tokens.size(), 4u);
  for (const token id : tree.tokens.subspan(1)) EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), id)) << id;
  EXPECT_EQ(tree.laws.num_rows(), 3);
  for (const token id : tree.laws.tokens) EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), id)) << id;
}

std::vector<std::vector<token>> decode(small_engine& e, const std::string& draft, const std::vector<std::vector<token>>& prompts, const parameters& p, std::int64_t& accepted) {
  const chain policy{p};
  std::vector<std::unique_ptr<any_drafter<draft_law::deterministic>>> drafters;
  std::vector<heddle::batch_request<any_drafter<draft_law::deterministic>, verify::match, chain>> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    e.cache->truncate(0, static_cast<int>(i));
    prefill(e.net, std::span(prompts[i]).first(prompts[i].size() - 1), static_cast<int>(i), reads_hidden(draft));
    drafters.push_back(make_drafter<draft_law::deterministic>(draft, {e.net, static_cast<int>(i), policy, {.seed = 3}}));
    requests.push_back({*drafters.back(), verify::match{.seed = 3}, policy, {.prompt = prompts[i], .max_new_tokens = 40, .draft_length = 6}});
  }
  heddle::decode_batch batch{e.net, std::span<const heddle::batch_request<any_drafter<draft_law::deterministic>, verify::match, chain>>(requests)};
  while (!batch.done()) batch.step();
  std::vector<std::vector<token>> out;
  for (std::size_t i = 0; i < prompts.size(); ++i) out.emplace_back(batch.tokens(i).begin(), batch.tokens(i).end()), accepted += batch.stats(i).accepted;
  return out;
}

TEST(HeadDrafter, TextsAndCachesAreThoseOfPlainDecoding) {
  const folder files;
  const std::vector<std::vector<token>> prompts{some_tokens(30), some_tokens(2, 9)};
  std::int64_t accepted = 0, none = 0;
  for (const char* const codec : {"f32", "int8"}) {
    small_engine plain(codec, linear::precision::int8, 1, 2), drafted(codec, linear::precision::int8, 2, 2);
    const std::string some = files.write("some.heads", file_of(random_heads(plain, every_third())));
    const std::string all = files.write("all.heads", file_of(heddle::draft_heads({static_cast<std::int64_t>(plain.config.hidden_size), 1, 2, 259})));  // repeats what was said
    for (const auto& p : {parameters{.temperature = 0.f}, parameters{.temperature = 0.2f, .top_k = 20}, parameters{.temperature = 1.2f}}) {
      const auto expected = decode(plain, "none", prompts, p, none);
      for (const std::string& name : {"heads:" + some, "tree:heads:" + some, "heads:" + all, "tree:heads:" + all}) {
        EXPECT_EQ(decode(drafted, name, prompts, p, accepted), expected) << name;
        EXPECT_TRUE(drafted.cache->equals(*plain.cache)) << name;
      }
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_EQ(none, 0);
}

TEST(HeadDrafter, FilesThatDoNotFitAreRefused) {
  const folder files;
  small_engine e;
  const auto message = [&](const std::string& file) -> std::string {
    try {
      (void)make_drafter<draft_law::deterministic>("heads:" + file, {e.net, 0, chain{parameters{}}, {}});
    } catch (const std::exception& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message((files.path / "none").string()).find("none: cannot be opened"), std::string::npos);
  EXPECT_NE(message(files.write("model", e.bytes)).find("it is not a draft-head file"), std::string::npos);
  EXPECT_NE(message(files.write("other", file_of(heddle::draft_heads({8, 4, 1, 259})))).find("made for a model of hidden size 8 and 259 tokens; this model has"), std::string::npos);
  std::string cut = file_of(random_heads(e, {}));
  EXPECT_EQ(message(files.write("whole", cut)), "accepted");
  cut.pop_back();
  EXPECT_NE(message(files.write("cut", cut)).find("bytes; expected"), std::string::npos);
}

int run(const std::string& command) {
  const int state = std::system(command.c_str());
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128;
}

// Interrupted after ever longer times, whatever it is doing then, the program ends with the files of an undisturbed run on another number of threads.
TEST(DistillDrafter, StoppedAndResumedGivesTheSameHeads) {
  const char* const program = std::getenv("HEDDLE_DISTILL_DRAFTER");
  if (program == nullptr || *program == '\0') GTEST_SKIP() << "HEDDLE_DISTILL_DRAFTER does not name the program";
  const folder files;
  const std::string options = std::string(program) + " --model " + files.write("small.gguf", random_model(3)) + " --raw --texts 40 --tokens 24 --held-out-tokens 8 --width 16 --vocabulary 100 --steps 60 --runs 2 --out " + files.path.string() + "/";
  ASSERT_EQ(run(options + "whole --threads 2 >/dev/null 2>&1"), 0);
  int stops = 0, code = 124;
  for (double seconds = 0.1; stops < 100; seconds += 0.03) {
    code = run("timeout --signal INT " + std::to_string(seconds) + " " + options + "pieces --threads 1 >/dev/null 2>" + files.path.string() + "/errors");
    if (code != 124) break;
    ++stops;
  }
  ASSERT_EQ(code, 0) << contents(files.path / "errors");
  RecordProperty("stops", stops);
  for (const char* const loss : {"forward_kl", "tv", "end_to_end"}) {
    const std::string whole = contents(files.path / (std::string("whole.") + loss + ".heads"));
    EXPECT_GT(whole.size(), 100u);
    EXPECT_EQ(contents(files.path / (std::string("pieces.") + loss + ".heads")), whole) << loss;
  }
  EXPECT_NE(run(options + "whole --seed 1 --threads 1 >/dev/null 2>" + files.path.string() + "/errors"), 0);
  EXPECT_NE(contents(files.path / "errors").find("is of another run"), std::string::npos);
}

}  // namespace
