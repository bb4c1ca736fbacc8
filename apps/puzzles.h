// headrace eval puzzles: exact answers against tokens per forward, for each way of decoding.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "commands.h"

namespace headrace::app {

struct PuzzleFlags {
  ModelFlags model;
  std::string file, svg;  // test items, default items_file(); where the curve goes, default nowhere
  int limit = 0;          // items of each task; 0: all
  std::vector<float> thresholds = {0.99f, 0.95f, 0.9f, 0.7f, 0.5f};
  std::vector<std::string> strategies;  // "auto": the model's own; none: compared_strategies()
};

// Result of one task, or of all, with one strategy.
struct PuzzleScore {
  int items = 0, right = 0;
  int64_t tokens = 0, forwards = 0;  // final tokens before the end token
  double seconds = 0;

  void add(const PuzzleScore& other);
  double accuracy() const { return items > 0 ? static_cast<double>(right) / items : 0; }
  double tokens_per_forward() const {
    return forwards > 0 ? static_cast<double>(tokens) / static_cast<double>(forwards) : 0;
  }
  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

struct PuzzleRun {
  std::string strategy;
  std::optional<float> threshold;  // absent: one token per forward
  std::map<std::string, PuzzleScore> tasks;
  PuzzleScore all() const;
};

int eval_puzzles(const PuzzleFlags& flags, Output output);

}  // namespace headrace::app
