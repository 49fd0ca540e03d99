// What the measuring programs of this folder share: they answer requests on standard input, one JSON object per line, with {"seconds":S}.
#pragma once
#include <heddle/core/thread_team.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

/// Mean seconds of run(), after one call that does not count.
template <class Run>
double seconds_of(const Run& run, int repeats) {
  run();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeats;
}

/// measure(request, team) for every line; the first argument of the program is the number of threads.
template <class Measure>
int answer_requests(int argc, char** argv, const Measure& measure) {
  heddle::thread_team team(argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 1);
  for (std::string line; std::getline(std::cin, line);)
    std::cout << nlohmann::json{{"seconds", measure(nlohmann::json::parse(line), team)}}.dump() << std::endl;
  return 0;
}
