// Speed of the engine, asked for line by line on standard input by benchmarks/peers/engines.py. Requests and answers are JSON:
//     {"op":"prefill","tokens":N}                    N tokens into an empty context, logits of the last
//     {"op":"decode","context":C,"tokens":N}         N tokens one after another behind C others
//     {"op":"rows","context":C,"rows":R,"repeats":N} N times R tokens in one call behind C others, logits of all
//     -> {"seconds":S}
// With --first-token it evaluates a prompt of 20 tokens and answers {}: the reader has the clock.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "llama/engine.hpp"

namespace {

using namespace llama;

std::vector<token> some_tokens(std::size_t count, std::size_t vocab_size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<token> out(count);
  for (token& id : out) id = static_cast<token>(random() % vocab_size);
  return out;
}

class stand {
 public:
  explicit stand(engine& e) : model_(e.model()), vocab_size_(e.tokens().size()) {}

  double prefill(std::size_t count) {
    model_.cache().truncate(0);
    const auto tokens = some_tokens(count, vocab_size_, 2);
    const double seconds = timed([&] {
      model_.prefill(std::span(tokens).first(count - 1));
      model_.append(std::span(tokens).last(1));
    });
    model_.cache().truncate(0);
    return seconds;
  }
  double decode(std::size_t context, std::size_t count) {
    fill(context);
    double seconds = 0;
    for (const token& id : some_tokens(count, vocab_size_, 3)) seconds += timed([&] { model_.append(std::span(&id, 1)); });
    model_.cache().truncate(static_cast<std::int64_t>(context));
    return seconds;
  }
  double rows(std::size_t context, std::size_t rows, unsigned repeats) {
    fill(context);
    double seconds = 0;
    for (unsigned i = 0; i < repeats; ++i) {
      const auto tokens = some_tokens(rows, vocab_size_, 4 + i);
      seconds += timed([&] { model_.append(tokens); });
      model_.cache().truncate(static_cast<std::int64_t>(context));
    }
    return seconds;
  }

 private:
  template <class Work>
  static double timed(Work&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  void fill(std::size_t context) {
    const auto length = static_cast<std::size_t>(model_.cache().length());
    if (length > context) model_.cache().truncate(static_cast<std::int64_t>(context));
    const auto tokens = some_tokens(context, vocab_size_, 1);
    model_.prefill(std::span(tokens).subspan(std::min(length, context)));
  }

  model& model_;
  std::size_t vocab_size_;
};

void answer(const nlohmann::json& reply) { std::cout << reply.dump() << std::endl; }

}  // namespace

int main(int argc, char** argv) try {
  engine_options given;
  given.context = 4096;
  bool first_token = false;
  CLI::App app{"Measures the example engine on request."};
  app.add_option("--model", given.model)->required();
  app.add_option("--cache", given.cache)->check(CLI::IsMember(cache_codecs()));
  const std::map<std::string, linear::precision> precisions{{"f32", linear::precision::f32},
                                                            {"int8", linear::precision::int8},
                                                            {"int16", linear::precision::int16},
                                                            {"int24", linear::precision::int24}};
  app.add_option("--activations", given.activations)->transform(CLI::CheckedTransformer(precisions));
  app.add_option("--threads", given.threads);
  app.add_flag("--first-token", first_token);
  CLI11_PARSE(app, argc, argv);

  engine engine(given);
  if (first_token) {
    engine.model().append(some_tokens(20, engine.tokens().size(), 5));
    answer(nlohmann::json::object());
    return 0;
  }
  stand measure(engine);
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::json::parse(line);
    const std::string op = request["op"];
    if (op == "prefill") answer({{"seconds", measure.prefill(request["tokens"])}});
    else if (op == "decode") answer({{"seconds", measure.decode(request["context"], request["tokens"])}});
    else answer({{"seconds", measure.rows(request["context"], request["rows"], request["repeats"])}});
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "measure: %s\n", error.what());
  return 1;
}
