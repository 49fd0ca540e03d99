// What the model is asked when it writes texts to train draft heads on, and what it is asked when they are judged: other questions about other things.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

inline std::string training_prompt(std::size_t number) {
  static constexpr std::string_view questions[] = {
      "Explain to a child how # works.",
      "Write a short story in which # plays a part.",
      "List ten facts about #.",
      "What are the advantages and disadvantages of #?",
      "Write an email to a colleague about #.",
      "Give me step by step instructions for a beginner who wants to learn about #.",
      "Write a dialogue between two friends who talk about #.",
      "Summarise the history of # in a few paragraphs.",
      "Write a Python program that has to do with #, and explain it.",
      "Answer five frequently asked questions about #.",
  };
  static constexpr std::string_view things[] = {
      "a bicycle", "the weather", "a public library", "coffee", "a garden in spring", "the tides", "a chess game", "photosynthesis", "a train journey", "bread baking",
      "the stock market", "a telescope", "ancient Rome", "a football match", "electric cars", "the human heart", "a lighthouse", "mathematics", "recycling", "music lessons",
      "a hospital", "volcanoes", "learning a language", "the internet", "a wedding",
  };
  std::string out(questions[number % std::size(questions)]);
  out.replace(out.find('#'), 1, things[number * 7 % std::size(things)]);
  return out;
}

inline const std::vector<std::string>& held_out_prompts() {
  static const std::vector<std::string> prompts{
      "How should I store vegetables so that they stay fresh through the winter?",
      "Describe the life of a shepherd in the mountains two hundred years ago.",
      "Compare paper maps with navigation on a phone.",
      "Write a function in C that reverses a string and say what it costs.",
      "My neighbour plays loud drums at night. Help me write a polite letter to him.",
      "Why do leaves change their colour in autumn?",
      "Plan a week of simple dinners for a family of four.",
      "Tell the tale of a clockmaker who lost an hour.",
  };
  return prompts;
}

}  // namespace llama
