// Trains draft heads for a model on its own texts. examples/distill_drafter.sh builds and runs it; --help lists the options.
//
//   1. the model answers built-in prompts; tokens and final hidden states are kept
//   2. the draft vocabulary: the tokens with the largest expected count in these texts, by the model's laws
//   3. one set of heads per loss, side by side on the same batches (head_trainer.hpp)
//   4. OUT.LOSS.heads; mean accepted tokens on held-out prompts: prompt lookup, heads before training, heads after it
//
// OUT.state holds everything a later call needs to go on. It is written every half minute and when the program is interrupted; a run that was stopped, however
// often and wherever, ends with the same bytes as one that was not.

#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/draft/head_file.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "llama/distillation_prompts.hpp"
#include "llama/drafters.hpp"
#include "llama/engine.hpp"
#include "llama/head_drafter.hpp"
#include "llama/head_trainer.hpp"

namespace {

using namespace llama;

volatile std::sig_atomic_t interrupted = 0;

struct options {
  engine_options engine;
  std::string out = "draft";
  std::vector<std::string> losses{"forward_kl", "tv", "end_to_end"};
  std::size_t texts = 144, tokens = 96, held_out_tokens = 96;
  std::int64_t heads = 3, width = 288, vocabulary = 4096, steps = 400, runs = 16;
  double learning_rate = 1e-3;
  float temperature = 0.7f;
  std::uint64_t seed = 0;
  bool raw = false;

  // What the result depends on; a state of other settings is refused.
  std::string settings() const {
    std::string text = "model " + std::to_string(std::filesystem::file_size(engine.model)) + " bytes, activations " + heddle::linear::name_of(engine.activations) + ", cache " + engine.cache +
                       (raw ? ", raw" : "") + ", seed " + std::to_string(seed) + ", texts " + std::to_string(texts) + " x " + std::to_string(tokens) + " at temperature " + std::to_string(temperature) +
                       ", heads " + std::to_string(heads) + " x " + std::to_string(width) + ", vocabulary " + std::to_string(vocabulary) + ", steps " + std::to_string(steps) + " x " + std::to_string(runs) +
                       " at rate " + std::to_string(learning_rate) + ", losses";
    for (const std::string& loss : losses) text += " " + loss;
    return text;
  }
};

// --- Files -------------------------------------------------------------------------------------------------------------------------

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  const std::string fresh = path + ".new";
  std::ofstream out(fresh, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error(fresh + ": cannot be written");
  std::filesystem::rename(fresh, path);
}

// Arrays one after another, each behind its length. The program reads its own states only, on the machine that wrote them.
class state_writer {
 public:
  template <class T>
  void put(std::span<const T> values) {
    const std::uint64_t bytes = values.size_bytes();
    append(&bytes, sizeof bytes), append(values.data(), values.size_bytes());
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void append(const void* data, std::size_t size) { bytes_.insert(bytes_.end(), static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + size); }
  std::vector<std::byte> bytes_;
};
class state_reader {
 public:
  state_reader(std::span<const std::byte> bytes, const std::string& name) : rest_(bytes), name_(name) {}
  template <class T>
  std::vector<T> get() {
    std::uint64_t size = 0;
    std::memcpy(&size, take(sizeof size).data(), sizeof size);
    const auto bytes = take(size);
    if (bytes.size() % sizeof(T) != 0) fail();
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  void get(std::span<float> into) {
    const auto values = get<float>();
    if (values.size() != into.size()) fail();
    std::copy(values.begin(), values.end(), into.begin());
  }
  [[noreturn]] void fail() const { throw file_error(name_ + ": is damaged; delete it to start over"); }

 private:
  std::span<const std::byte> take(std::uint64_t size) {
    if (size > rest_.size()) fail();
    const auto out = rest_.first(static_cast<std::size_t>(size));
    rest_ = rest_.subspan(static_cast<std::size_t>(size));
    return out;
  }
  std::span<const std::byte> rest_;
  std::string name_;
};

// --- Progress ----------------------------------------------------------------------------------------------------------------------

class progress {
 public:
  explicit progress(std::int64_t done) : first_(done) {}
  void show(const char* what, std::int64_t done, std::int64_t all, const std::string& rest) {
    const double now = seconds();
    if (done < all && now - shown_ < (terminal_ ? 0.2 : 10.)) return;
    shown_ = now;
    const double left = done > first_ ? now / static_cast<double>(done - first_) * static_cast<double>(all - done) : 0;
    std::fprintf(stderr, "%s%s %lld/%lld%s  %d:%02d left%s", terminal_ ? "\r\033[K" : "", what, static_cast<long long>(done), static_cast<long long>(all), rest.c_str(),
                 static_cast<int>(left) / 60, static_cast<int>(left) % 60, terminal_ && done < all ? "" : "\n");
    std::fflush(stderr);
  }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::int64_t first_;
  bool terminal_ = ::isatty(2) != 0;
  double shown_ = -1e9;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

struct stopped {};

// Lends a model another cache.
class in_use {
 public:
  in_use(model& net, kv_cache& cache) : net_(net), before_(net.cache()) { net.use(cache); }
  ~in_use() { net_.use(before_); }
  in_use(const in_use&) = delete;
  in_use& operator=(const in_use&) = delete;

 private:
  model& net_;
  kv_cache& before_;
};

// --- The run -----------------------------------------------------------------------------------------------------------------------

class distillation_run {
 public:
  explicit distillation_run(const options& given) : given_(given), engine_(given.engine), net_(engine_.model()), product_(net_.executor()) {
    expected_.assign(net_.config().vocab_size, 0.);
    resume();
  }

  void run() {
    try {
      generate();
      choose_vocabulary();
      train();
    } catch (const stopped&) {
      save();
      std::fprintf(stderr, "\nStopped; the same command goes on from %s.\n", state_file().c_str());
      throw;
    }
    save();
    write_heads();
    judge();
  }

 private:
  std::string state_file() const { return given_.out + ".state"; }
  std::int64_t hidden_size() const { return static_cast<std::int64_t>(net_.config().hidden_size); }

  void save() {
    state_writer out;
    const std::string settings = given_.settings();
    out.put(std::span<const char>(settings));
    out.put(std::span<const double>(expected_));
    const std::uint64_t counts[] = {texts_.size(), trainers_.empty() ? 0u : 1u, static_cast<std::uint64_t>(step_)};
    out.put(std::span<const std::uint64_t>(counts));
    for (const generated_text& text : texts_) out.put(std::span<const std::int32_t>(text.tokens)), out.put(std::span<const float>(text.states)), out.put(std::span<const float>(text.other_logits));
    if (!trainers_.empty()) {
      out.put(trainers_[0].heads().tokens());
      for (head_trainer& trainer : trainers_)
        for (const std::span<float> part : trainer.state()) out.put(std::span<const float>(part));
    }
    write_file(state_file(), out.bytes());
    saved_ = std::chrono::steady_clock::now();
  }
  void resume() {
    if (!std::filesystem::exists(state_file())) return;
    const mapped_file file(state_file());
    state_reader in(file.bytes(), state_file());
    const auto settings = in.get<char>();
    if (std::string(settings.begin(), settings.end()) != given_.settings())
      throw file_error(state_file() + ": is of another run (" + std::string(settings.begin(), settings.end()) + "); this one has " + given_.settings() + ". Delete it, or choose another --out");
    expected_ = in.get<double>();
    const auto counts = in.get<std::uint64_t>();
    if (expected_.size() != net_.config().vocab_size || counts.size() != 3 || counts[0] > given_.texts) in.fail();
    for (std::uint64_t i = 0; i < counts[0]; ++i) {
      generated_text text{in.get<std::int32_t>(), in.get<float>(), in.get<float>()};
      if (text.states.size() != text.tokens.size() * net_.config().hidden_size) in.fail();
      texts_.push_back(std::move(text));
    }
    if (counts[1] == 0) return;
    start_training(in.get<std::int32_t>());
    for (head_trainer& trainer : trainers_)
      for (const std::span<float> part : trainer.state()) in.get(part);
    step_ = static_cast<std::int64_t>(counts[2]);
  }
  void pause() {
    if (interrupted) throw stopped{};
    if (std::chrono::steady_clock::now() - saved_ > std::chrono::seconds(30)) save();
  }

  std::vector<token> prompt_ids(std::string_view text) const {
    auto ids = engine_.encode(text).ids;
    if (ids.size() < 2) throw std::runtime_error("the model's tokenizer knows nothing of the prompt '" + std::string(text) + "'");
    return ids;
  }

  // Groups of texts, decoded together; a group that is interrupted is begun anew.
  void generate() {
    progress shown(static_cast<std::int64_t>(texts_.size()));
    while (texts_.size() < given_.texts) {
      const std::size_t count = std::min(given_.engine.sequences, given_.texts - texts_.size());
      std::vector<double> expected = expected_;
      auto group = answer(texts_.size(), count, expected);
      expected_ = std::move(expected);
      for (generated_text& text : group) texts_.push_back(std::move(text));
      shown.show("texts", static_cast<std::int64_t>(texts_.size()), static_cast<std::int64_t>(given_.texts), "");
      pause();
    }
  }
  std::vector<generated_text> answer(std::size_t first, std::size_t count, std::vector<double>& expected) {
    std::vector<generated_text> group(count);
    std::vector<std::vector<token>> contexts(count);
    std::vector<bool> done(count, false);
    const auto ends = engine_.tokens().end_tokens();
    for (std::size_t i = 0; i < count; ++i) {
      const int sequence = static_cast<int>(i);
      contexts[i] = prompt_ids(training_prompt(first + i));
      net_.cache().truncate(0, sequence);
      prefill(net_, std::span(contexts[i]).first(contexts[i].size() - 1), sequence, true);
      take(group[i], contexts[i].back(), sequence);
    }
    const chain policy{heddle::sampling::parameters{.temperature = given_.temperature}};
    heddle::sampling::row_workspace memory(static_cast<std::int64_t>(net_.config().vocab_size));
    static constexpr std::int32_t root_parent = -1, root_depth = 0;
    for (std::size_t n = 0; n < given_.tokens; ++n) {
      if (interrupted) throw stopped{};
      std::vector<heddle::token_tree> trees(count);
      for (std::size_t i = 0; i < count; ++i)
        if (!done[i]) trees[i] = {{&contexts[i].back(), 1}, {&root_parent, 1}, {&root_depth, 1}};
      if (std::find(done.begin(), done.end(), false) == done.end()) break;
      const auto logits = net_.score(trees);
      std::int64_t row = 0;
      for (std::size_t i = 0; i < count; ++i) {
        if (done[i]) continue;
        const auto z = logits[row++];
        add_law({z.data(), net_.config().vocab_size}, expected);
        const heddle::random_key key{.seed = given_.seed, .request = static_cast<std::uint32_t>(first + i), .position = static_cast<std::uint32_t>(contexts[i].size())};
        const auto drawn = heddle::sampling::sample_row(z, policy, {contexts[i], {}}, key, memory);
        if (drawn.status != heddle::status::ok) throw std::runtime_error("the model's logits are not numbers");
        net_.keep(static_cast<int>(i), {});
        contexts[i].push_back(drawn.token);
        take(group[i], drawn.token, static_cast<int>(i));
        done[i] = std::find(ends.begin(), ends.end(), drawn.token) != ends.end();
      }
    }
    return group;
  }
  void take(generated_text& text, token id, int sequence) {
    const auto state = net_.last_hidden(sequence);
    text.tokens.push_back(id);
    text.states.insert(text.states.end(), state.begin(), state.end());
  }
  void add_law(std::span<const float> z, std::vector<double>& expected) {
    const auto lse = static_cast<float>(taught_laws::log_sum_exp(z));
    const auto count = static_cast<std::int64_t>(z.size());
    alignas(64) float p[heddle::simd::lanes];
    for (std::int64_t v = 0; v < count; v += heddle::simd::lanes) {
      heddle::simd::store(p, heddle::simd::exp(heddle::simd::load_first(z.data() + v, count - v) - heddle::simd::splat(lse)));
      for (std::int64_t lane = 0; lane < heddle::simd::lanes && v + lane < count; ++lane) expected[static_cast<std::size_t>(v + lane)] += static_cast<double>(p[lane]);
    }
  }

  // The tokens that the model expects most often in its texts, and what it gives the others at each place.
  void choose_vocabulary() {
    if (!trainers_.empty()) return;
    const std::size_t all = net_.config().vocab_size;
    std::vector<std::int32_t> kept;
    if (given_.vocabulary > 0 && static_cast<std::size_t>(given_.vocabulary) < all) {
      kept.resize(all);
      std::iota(kept.begin(), kept.end(), 0);
      const auto more = [&](std::int32_t a, std::int32_t b) { return std::pair(-expected_[static_cast<std::size_t>(a)], a) < std::pair(-expected_[static_cast<std::size_t>(b)], b); };
      std::nth_element(kept.begin(), kept.begin() + given_.vocabulary, kept.end(), more);
      kept.resize(static_cast<std::size_t>(given_.vocabulary));
      std::sort(kept.begin(), kept.end());
      double covered = 0, whole = 0;
      for (const double e : expected_) whole += e;
      for (const std::int32_t v : kept) covered += expected_[static_cast<std::size_t>(v)];
      std::fprintf(stderr, "draft vocabulary: %lld of %zu tokens, %.1f %% of the model's mass\n", static_cast<long long>(given_.vocabulary), all, 100 * covered / whole);
    }
    constexpr std::int64_t rows = 32;
    row_buffer buffer;
    const auto logits = buffer.resize(rows, static_cast<std::int64_t>(all));
    for (generated_text& text : texts_) {
      text.other_logits.clear();
      const auto count = static_cast<std::int64_t>(text.tokens.size());
      for (std::int64_t first = 0; first < count; first += rows) {
        const auto some = logits.slice(0, std::min(rows, count - first));
        if (kept.empty()) {
          text.other_logits.insert(text.other_logits.end(), static_cast<std::size_t>(some.extent(0)), -std::numeric_limits<float>::infinity());
          continue;
        }
        net_.unembed({text.states.data() + first * hidden_size(), extents{some.extent(0), hidden_size()}}, some);
        for (std::int64_t r = 0; r < some.extent(0); ++r) {
          for (const std::int32_t v : kept) some(r, v) = -std::numeric_limits<float>::infinity();
          text.other_logits.push_back(static_cast<float>(taught_laws::log_sum_exp({some.at(r), all})));
        }
      }
      if (interrupted) throw stopped{};
    }
    start_training(kept);
  }
  void start_training(std::span<const std::int32_t> kept) {
    const heddle::draft_heads fresh({hidden_size(), given_.width, given_.heads, static_cast<std::int64_t>(net_.config().vocab_size)}, kept);
    for (const std::string& name : given_.losses)
      for (const head_loss loss : head_losses)
        if (name == name_of(loss)) trainers_.emplace_back(loss, fresh, given_.seed);
    row_buffer buffer;
    const auto rows = buffer.resize(fresh.draft_vocabulary_size(), hidden_size());
    if (kept.empty()) net_.unembedding_rows(0, rows);
    else gather_unembedding(net_, kept, rows);
    frozen_.emplace(rows, net_.executor());
    first_run_.assign(1, 0);
    for (const generated_text& text : texts_) first_run_.push_back(first_run_.back() + std::max<std::int64_t>(0, text.anchors(given_.heads) - training_batch::run_length + 1));
    if (first_run_.back() == 0) throw std::runtime_error("the texts are too short to train on: --tokens should be larger");
  }

  // Runs of anchors drawn at random; a batch is a function of seed and step.
  void draw(std::int64_t step, training_batch& batch) {
    constexpr std::int64_t length = training_batch::run_length;
    const std::int64_t d = hidden_size(), heads = given_.heads, taught = length + heads - 1;
    batch.anchors = given_.runs * length, batch.heads = heads;
    const matrix states = batch.states.resize(batch.anchors, d), embeddings = batch.embeddings.resize(heads * batch.anchors, d), targets = batch.targets.resize(given_.runs * taught, d);
    batch.other_logits.clear(), batch.target_of.clear();
    for (std::int64_t r = 0; r < given_.runs; ++r) {
      const double u = heddle::uniform({.seed = given_.seed, .position = static_cast<std::uint32_t>(step), .purpose = static_cast<heddle::purpose>(static_cast<std::uint32_t>(heddle::purpose::user) + 1), .index = static_cast<std::uint32_t>(r)});
      const auto chosen = static_cast<std::int64_t>(u * static_cast<double>(first_run_.back()));
      const auto place = std::upper_bound(first_run_.begin(), first_run_.end(), chosen) - 1;
      const generated_text& text = texts_[static_cast<std::size_t>(place - first_run_.begin())];
      const std::int64_t first = chosen - *place;
      std::copy_n(text.states.data() + first * d, length * d, states.at(r * length));
      std::copy_n(text.states.data() + (first + 1) * d, taught * d, targets.at(r * taught));
      batch.other_logits.insert(batch.other_logits.end(), text.other_logits.begin() + first + 1, text.other_logits.begin() + first + 1 + taught);
      for (std::int64_t a = 0; a < length; ++a)
        for (std::int64_t head = 0; head < heads; ++head) {
          float* const e = embeddings.at(head * batch.anchors + r * length + a);
          net_.embed({&text.tokens[static_cast<std::size_t>(first + a + head)], 1}, {e, extents{std::int64_t{1}, d}});
          const float scale = heddle::draft_heads::inverse_rms({e, static_cast<std::size_t>(d)});
          for (std::int64_t k = 0; k < d; ++k) e[k] *= scale;
          batch.target_of.push_back(static_cast<std::int32_t>(r * taught + a + head));
        }
    }
  }

  void train() {
    training_batch batch;
    taught_laws laws;
    progress shown(step_);
    std::vector<double> recent(trainers_.size(), 0.);
    for (double weight = 0; step_ < given_.steps; ++step_) {
      pause();
      draw(step_, batch);
      laws.assign(batch, *frozen_, product_);
      weight = 1 + 0.95 * weight;
      std::string losses;
      for (std::size_t i = 0; i < trainers_.size(); ++i) {
        recent[i] += (trainers_[i].evaluate(batch, *frozen_, laws, product_) - recent[i]) / weight;
        trainers_[i].update(step_ + 1, given_.steps, {.learning_rate = given_.learning_rate}, net_.executor());
        char text[64];
        std::snprintf(text, sizeof text, "  %s %.4f", name_of(trainers_[i].loss()), recent[i]);
        losses += text;
      }
      shown.show("steps", step_ + 1, given_.steps, losses);
    }
  }

  void write_heads() {
    for (const head_trainer& trainer : trainers_) {
      heddle::aligned_vector<std::byte> bytes;
      heddle::write_head_file(trainer.heads(), bytes);
      const std::string file = given_.out + "." + name_of(trainer.loss()) + ".heads";
      write_file(file, bytes);
      std::fprintf(stderr, "wrote %s\n", file.c_str());
    }
  }

  // Mean accepted tokens of all held-out prompts together: emitted per pass of the model.
  template <draft_law Law, class Rule, class MakeDrafter>
  double accepted(const Rule& rule, float temperature, const MakeDrafter& make) {
    const auto cache = engine_.new_cache(static_cast<int>(held_out_.size()));
    const in_use borrowed(net_, *cache);
    const chain policy{heddle::sampling::parameters{.temperature = temperature}};
    std::vector<std::unique_ptr<any_drafter<Law>>> drafters;
    std::vector<heddle::batch_request<any_drafter<Law>, Rule, chain>> requests;
    for (std::size_t i = 0; i < held_out_.size(); ++i) {
      prefill(net_, std::span(held_out_[i]).first(held_out_[i].size() - 1), static_cast<int>(i), true);
      drafters.push_back(make(static_cast<int>(i), policy));
      requests.push_back({*drafters.back(), rule, policy,
                          {.prompt = held_out_[i], .max_new_tokens = static_cast<std::int64_t>(given_.held_out_tokens), .draft_length = static_cast<std::int32_t>(given_.heads), .end_tokens = engine_.tokens().end_tokens()}});
    }
    heddle::decode_batch batch{net_, std::span<const heddle::batch_request<any_drafter<Law>, Rule, chain>>(requests)};
    while (!batch.done()) batch.step();
    double emitted = 0, rounds = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) emitted += static_cast<double>(batch.stats(i).emitted), rounds += static_cast<double>(batch.stats(i).rounds);
    return emitted / rounds;
  }
  void judge() {
    for (const std::string& prompt : held_out_prompts()) held_out_.push_back(prompt_ids(prompt));
    std::printf("Mean accepted tokens (emitted per pass of the model) on %zu held-out prompts, %zu tokens each, %lld drafts a pass:\n%-28s %12s %14s\n", held_out_.size(), given_.held_out_tokens,
                static_cast<long long>(given_.heads), "", "greedy", "temperature 1");
    const heddle::verify::token by_law{.seed = given_.seed};
    const auto line = [](const std::string& name, double greedy, double sampled) { std::printf("%-28s %12.3f %14.3f\n", name.c_str(), greedy, sampled), std::fflush(stdout); };
    const auto request_of = [&](int sequence, const chain& policy) { return draft_request{net_, sequence, policy, {.seed = given_.seed, .request = static_cast<std::uint32_t>(sequence)}}; };
    const auto lookup = [&](int sequence, const chain& policy) { return make_drafter<draft_law::deterministic>("lookup", request_of(sequence, policy)); };
    line("prompt lookup", accepted<draft_law::deterministic>(heddle::verify::match{.seed = given_.seed}, 0.f, lookup), accepted<draft_law::deterministic>(by_law, 1.f, lookup));
    const auto heads = [&](const std::string& name, const heddle::draft_heads& set) {
      const auto shared = std::make_shared<const speaking_heads>(net_, set);
      const auto greedy = [&](int sequence, const chain& policy) { return make_drafter<draft_law::deterministic>(shared, request_of(sequence, policy)); };
      const auto sampled = [&](int sequence, const chain& policy) { return make_drafter<draft_law::independent>(shared, request_of(sequence, policy)); };
      line(name, accepted<draft_law::deterministic>(heddle::verify::match{.seed = given_.seed}, 0.f, greedy), accepted<draft_law::independent>(by_law, 1.f, sampled));
    };
    heads("heads before training", heddle::draft_heads(trainers_[0].heads().shape(), trainers_[0].heads().tokens()));
    for (const head_trainer& trainer : trainers_) heads(std::string("heads by ") + name_of(trainer.loss()), trainer.heads());
  }

  options given_;
  engine engine_;
  model& net_;
  products product_;
  std::vector<generated_text> texts_;
  std::vector<double> expected_;  // count of each token under the model's laws
  std::optional<frozen_rows> frozen_;
  std::vector<std::int64_t> first_run_;
  std::vector<head_trainer> trainers_;
  std::int64_t step_ = 0;
  std::vector<std::vector<token>> held_out_;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

}  // namespace

int main(int argc, char** argv) {
  options given;
  given.engine.threads = std::max(1u, std::thread::hardware_concurrency());
  given.engine.sequences = 16;
  given.engine.activations = linear::precision::int8;
  CLI::App app{"Trains draft heads for a model of the Llama architecture (GGUF) on the model's own texts."};
  app.add_option("--model", given.engine.model, "GGUF file")->required()->check(CLI::ExistingFile);
  app.add_option("--out", given.out, "writes OUT.LOSS.heads for generate --draft heads:FILE, and OUT.state to go on from")->capture_default_str();
  app.add_option("--losses", given.losses, "any of forward_kl, tv, end_to_end; a set of heads for each")->delimiter(',')->check(CLI::IsMember({"forward_kl", "tv", "end_to_end"}))->capture_default_str();
  app.add_option("--texts", given.texts, "texts to train on")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--tokens", given.tokens, "tokens of a text at most")->check(CLI::Range(2, 4096))->capture_default_str();
  app.add_option("--temperature", given.temperature, "of the texts")->check(CLI::Range(0.f, 100.f))->capture_default_str();
  app.add_option("--heads", given.heads, "tokens that the heads draft")->check(CLI::Range(1, 16))->capture_default_str();
  app.add_option("--width", given.width, "of a head's inner layer")->check(CLI::Range(1, 1 << 14))->capture_default_str();
  app.add_option("--vocabulary", given.vocabulary, "tokens that the heads can draft; 0: all")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--steps", given.steps, "of training")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--runs", given.runs, "a batch is so many runs of 8 tokens")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--learning-rate", given.learning_rate, "of Adam, at its peak")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--held-out-tokens", given.held_out_tokens, "of each held-out answer that the heads are judged by")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--seed", given.seed, "of texts, first weights and batches")->capture_default_str();
  app.add_option("--threads", given.engine.threads, "threads that compute; the heads do not depend on them")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_flag("--raw", given.raw, "prompts without the chat template");
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  try {
    given.engine.needs_chat_template = !given.raw;
    given.engine.context = std::max(given.tokens, given.held_out_tokens) + 160;
    given.engine.draft_rows = static_cast<std::size_t>(given.heads) + 1;
    distillation_run(given).run();
  } catch (const stopped&) {
    return 130;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distill_drafter: %s\n", error.what());
    return 1;
  }
}
