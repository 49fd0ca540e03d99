// What including each public header costs: the compiler's time for a unit that holds nothing else, as a ratio to <vector> and <algorithm>
// measured around it, and the lines that come out of the preprocessor.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const std::string compiler = HEDDLE_COMPILER " -std=c++20 " HEDDLE_INCLUDE_FLAGS " -x c++ ";

class unit {
 public:
  explicit unit(const std::string& text) : path_(fs::temp_directory_path() / ("heddle_include_cost_" + std::to_string(counter_++) + ".cpp")) {
    std::ofstream(path_) << text;
  }
  ~unit() { fs::remove(path_); }
  unit(const unit&) = delete;
  unit& operator=(const unit&) = delete;

  double compile_seconds() const {
    const auto start = std::chrono::steady_clock::now();
    const int result = std::system((compiler + "-O2 -c " + path_.string() + " -o /dev/null").c_str());
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return result == 0 ? elapsed.count() : -1.;
  }

  double preprocessed_lines() const {
    std::FILE* out = popen((compiler + "-E -P " + path_.string()).c_str(), "r");
    double lines = 0;
    for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) lines += c == '\n';
    pclose(out);
    return lines;
  }

 private:
  static inline int counter_ = 0;
  fs::path path_;
};

void include_cost(benchmark::State& state, const std::string& header) {
  const unit baseline("#include <vector>\n#include <algorithm>\n"), including("#include <" + header + ">\n");
  std::vector<double> seconds, ratios;
  for (auto _ : state) {
    const double before = baseline.compile_seconds(), with_header = including.compile_seconds();
    if (before < 0 || with_header < 0) return state.SkipWithError("does not compile");
    state.SetIterationTime(with_header);
    seconds.push_back(with_header);
    ratios.push_back(with_header / before);
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  state.counters["vs_vector_algorithm"] = median(ratios);
  state.counters["seconds"] = median(seconds);
  state.counters["goal_fraction"] = median(seconds) / 1.5;
  state.counters["lines"] = including.preprocessed_lines();
  state.counters["lines_vs_vector_algorithm"] = including.preprocessed_lines() / baseline.preprocessed_lines();
}

const bool registered = [] {
  const fs::path root = HEDDLE_INCLUDE_DIR;
  std::vector<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string header = entry.path().lexically_relative(root).generic_string();
    if (entry.path().extension() == ".hpp" && header.find("/detail/") == std::string::npos) headers.push_back(header);
  }
  std::sort(headers.begin(), headers.end());
  for (const std::string& header : headers)
    benchmark::RegisterBenchmark(("include_cost/" + header).c_str(), [header](benchmark::State& state) { include_cost(state, header); })
        ->UseManualTime()
        ->Iterations(3)
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
