// Aligning two tokenizations of one text: align/cross_tokenizer/n100000/t1 (student tokens)
//
// One pass finds the groups and the rows of the strict ones. roof_fraction: the offsets read once, groups and rows written once. vs_text: time of the usual way,
// which decodes tokens into two growing strings until they are equal, over the time of the pass.
#include <heddle/distillation/token_alignment.hpp>

#include "support/roof.hpp"

#include <random>
#include <string>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;

struct tokenized {
  std::string text;
  std::vector<std::int64_t> student_ends, teacher_ends;
};
/// Tokens of one to eight bytes; most boundaries are common, as between tokenizers of one language.
tokenized make(std::size_t tokens) {
  std::mt19937 random(1);
  tokenized t;
  std::int64_t at = 0;
  while (t.student_ends.size() < tokens) {
    at += 1 + static_cast<std::int64_t>(random() % 8);
    t.student_ends.push_back(at);
    if (random() % 8) t.teacher_ends.push_back(at);
    else if (!t.teacher_ends.empty() && at - 1 > t.teacher_ends.back()) t.teacher_ends.push_back(at - 1);
  }
  if (t.teacher_ends.empty() || t.teacher_ends.back() != at) t.teacher_ends.push_back(at);
  for (std::int64_t b = 0; b < at; ++b) t.text += static_cast<char>('a' + random() % 26);
  return t;
}
std::string token(const tokenized& t, const std::vector<std::int64_t>& ends, std::size_t i) {
  const auto begin = static_cast<std::size_t>(i ? ends[i - 1] : 0);
  return t.text.substr(begin, static_cast<std::size_t>(ends[i]) - begin);
}
std::size_t align_by_text(const tokenized& t) {
  std::size_t groups = 0, i = 0, j = 0;
  while (i < t.student_ends.size() || j < t.teacher_ends.size()) {
    std::string a, b;
    do
      if (a.size() <= b.size()) a += token(t, t.student_ends, i++);
      else b += token(t, t.teacher_ends, j++);
    while (a != b);
    ++groups;
  }
  return groups;
}

void run(benchmark::State& state) {
  const tokenized t = make(100000);
  thread_team one{1};
  heddle_bench::machine ceilings{one};
  const auto pass = [&] {
    const auto groups = align(t.student_ends, t.teacher_ends);
    auto rows = strict_rows(groups, t.student_ends.size());
    benchmark::DoNotOptimize(rows.mask.data());
    return groups.size();
  };
  if (pass() != align_by_text(t)) return state.SkipWithError("the two ways disagree");
  const double bytes = 8. * static_cast<double>(t.student_ends.size() + t.teacher_ends.size()) + static_cast<double>(pass() * sizeof(alignment_group)) + 5. * static_cast<double>(t.student_ends.size());
  heddle_bench::measure(state, ceilings, {.bytes = bytes}, pass);
  state.counters["vs_text"] = heddle_bench::paired_ratio([&] { benchmark::DoNotOptimize(align_by_text(t)); }, pass, 5);
}

const int registered = [] {
  benchmark::RegisterBenchmark("align/cross_tokenizer/n100000/t1", run)->Unit(benchmark::kMillisecond);
  return 0;
}();

}  // namespace
