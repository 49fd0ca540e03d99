// The program from outside: what it prints, and how it refuses. HEDDLE_GENERATE names it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llama/gguf_builder.hpp"
#include "llama/golden.hpp"
#include "llama/reference_model.hpp"

namespace {

using namespace llama::testing;

struct outcome {
  int exit_code;
  std::string out, error;
  nlohmann::json last_line() const {
    const std::string body = out.substr(0, out.find_last_not_of('\n') + 1);
    return nlohmann::json::parse(body.substr(body.find_last_of('\n') + 1));
  }
};

class Generate : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("HEDDLE_GENERATE") == nullptr) GTEST_SKIP() << "HEDDLE_GENERATE does not name the program";
    folder_ = std::filesystem::temp_directory_path() / ("heddle_generate_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }
  outcome run(const std::string& arguments) const {
    const std::string error = (folder_ / "stderr").string();
    FILE* const pipe = ::popen((std::string(std::getenv("HEDDLE_GENERATE")) + " " + arguments + " 2>" + error).c_str(), "r");
    outcome result{0, {}, {}};
    std::array<char, 4096> buffer;
    for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) result.out.append(buffer.data(), n);
    const int state = ::pclose(pipe);
    result.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    std::ifstream in(error);
    result.error.assign(std::istreambuf_iterator<char>(in), {});
    return result;
  }
  std::string small() const { return "--model " + file("small.gguf", random_model(3)) + " --threads 2 "; }

 private:
  std::filesystem::path folder_;
};

#define EXPECT_SAYS(part, text) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Generate, StatisticsAreTheLastLine) {
  const outcome result = run(small() + "--raw --prompt 'abcabcabcabc' --tokens 40 --draft lookup --draft-length 5 --stats json");
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto stats = result.last_line();
  EXPECT_EQ(stats["prompt_tokens"], 8);  // "ab" is one token
  EXPECT_EQ(stats["generated_tokens"], stats["token_ids"].size());
  EXPECT_GE(stats["generated_tokens"], 1);
  EXPECT_LE(stats["generated_tokens"], 40);
  EXPECT_GE(stats["drafted"], stats["accepted"]);
  EXPECT_GE(stats["rounds"], 1);
  EXPECT_GE(stats["mean_accepted_tokens"], 1.0);
  EXPECT_LE(stats["acceptance_by_slot"].size(), 5u);
  for (const char* const key : {"prefill_tokens_per_second", "decode_tokens_per_second", "cache_bytes_live", "cache_bytes_resident"})
    EXPECT_GT(stats[key].get<double>(), 0) << key;
}

TEST_F(Generate, ScoresEveryTokenOfThePrompt) {
  const outcome result = run(small() + "--score --activations f32 --cache f32 --prompt-file " + file("prompt", "abc\n<|im_end|>"));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const llama::gguf model(as_bytes(random_model(3)), "");
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < result.out.size(); at = result.out.find('\n', at) + 1)
    lines.push_back(result.out.substr(at, result.out.find('\n', at) - at));
  ASSERT_EQ(lines.size(), 5u) << result.out;  // ab, c, newline, the mark, and the summary
  EXPECT_TRUE(nlohmann::json::parse(lines[0])["log_prob"].is_null());
  double sum = 0;
  for (std::size_t i = 1; i < 4; ++i) sum += nlohmann::json::parse(lines[i])["log_prob"].get<double>();
  const auto summary = result.last_line();
  EXPECT_EQ(summary["tokens"], 4);
  EXPECT_NEAR(summary["mean_nll"].get<double>(), -sum / 3, 1e-9);
  EXPECT_NEAR(summary["perplexity"].get<double>(), std::exp(-sum / 3), 1e-6);
}

TEST_F(Generate, ChecksItself) {
  const outcome result =
      run(small() + "--raw --check --prompt 'abcabcabcabc' --tokens 60 --temperature 1.2 --seed 4 --cache fp8 --activations int8");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_SAYS("are the same with drafts", result.error);
}

TEST_F(Generate, EveryDrafterAndRuleGivesItsText) {
  const std::string prompt = "--raw --prompt 'abcabcabcabcab' --tokens 30 --seed 2 --temperature 0.8 --activations int8 --stats json ";
  const auto ids = [&](const std::string& more) {
    const outcome result = run(small() + prompt + more);
    EXPECT_EQ(result.exit_code, 0) << more << "\n" << result.error;
    return result.exit_code == 0 ? result.last_line()["token_ids"] : nlohmann::json();
  };
  const auto plain = ids("--draft none");
  for (const char* const draft : {"lookup", "suffix", "auto", "tree:suffix", "self:1", "tree:self:1", "auto --fixed-length"})
    EXPECT_EQ(ids(std::string("--draft ") + draft), plain) << draft;
  for (const char* const rule : {"token", "block", "typical"})
    for (const char* const draft : {"none", "suffix --fixed-length --draft-length 3", "self:1"})
      EXPECT_GE(ids(std::string("--verify ") + rule + " --draft " + draft).size(), 1u) << rule << " " << draft;
  EXPECT_EQ(ids("--verify token --draft none"), plain);
}

TEST_F(Generate, SeveralPromptsAtOnce) {
  const outcome result = run(small() + "--raw --prompt 'abcabcabc' --prompt 'xyxyx' --tokens 25 --temperature 0.9 --seed 3 --draft auto --stats json");
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto stats = result.last_line();
  ASSERT_EQ(stats["prompts"].size(), 2u);
  const outcome alone = run(small() + "--raw --prompt 'xyxyx' --tokens 25 --temperature 0.9 --seed 3 --stats json");
  EXPECT_EQ(stats["prompts"][1]["token_ids"], alone.last_line()["token_ids"]);
  EXPECT_SAYS("--- 2\n", result.out);
  const outcome checked = run(small() + "--raw --check --prompt 'abcabcabc' --prompt 'xyxyx' --tokens 40 --seed 4 --temperature 1 --draft tree:self:1 --cache int8");
  EXPECT_EQ(checked.exit_code, 0) << checked.error;
  EXPECT_SAYS("are the same with drafts", checked.error);
}

TEST_F(Generate, RefusesWithAMessage) {
  const auto refusal = [&](const std::string& arguments) {
    const outcome result = run(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments << "\n" << result.error;
    EXPECT_EQ(result.out, "");
    return result.error;
  };
  EXPECT_SAYS("cannot be opened", refusal("--model /nonexistent.gguf --prompt x"));
  EXPECT_SAYS("ends inside the magic number", refusal("--prompt x --model " + file("empty.gguf", "")));
  EXPECT_SAYS("reaches past the end of the file",
              refusal("--raw --prompt x --model " + file("cut.gguf", random_model(3).substr(0, 60000))));
  EXPECT_SAYS("pass --raw", refusal(small() + "--prompt x"));  // it has no chat template
  EXPECT_SAYS("prompt is empty", refusal(small() + "--raw --prompt ''"));
  EXPECT_SAYS("the prompt has 600 tokens; the context holds 512", refusal(small() + "--raw --prompt " + std::string(600, 'c')));
  EXPECT_SAYS("contexts of 512 tokens; a context of 513", refusal(small() + "--raw --prompt x --context 513"));
  EXPECT_SAYS("there is no drafter 'guess'", refusal(small() + "--raw --prompt x --draft guess"));
  EXPECT_SAYS("'3' layers; expected 1 to 2", refusal(small() + "--raw --prompt x --draft self:3"));
  EXPECT_SAYS("--verify match or greedy", refusal(small() + "--raw --prompt x --check --verify token"));
  EXPECT_SAYS("temperature is", refusal(small() + "--raw --prompt x --verify greedy --temperature 1"));
  EXPECT_SAYS("cannot be read", refusal(small() + "--raw --prompt-file /nonexistent"));
}

TEST_F(Generate, RefusesWrongOptions) {
  for (const char* const arguments :
       {"--prompt x", "--model m", "--model m --prompt x --prompt-file y", "--model m --prompt x --cache int3",
        "--model m --prompt x --temperature -1", "--model m --prompt x --tokens 0", "--model m --prompt x --nonsense"})
    EXPECT_NE(run(arguments).exit_code, 0) << arguments;
  EXPECT_EQ(run("--help").exit_code, 0);
  EXPECT_EQ(run(small() + "--raw --prompt abab --tokens 20 --tokens 3 --stats json").last_line()["generated_tokens"], 3);  // the last one counts
}

}  // namespace
