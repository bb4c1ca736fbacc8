// Records what each step does to a request's tokens, for traces and live display.
#pragma once
#include <optional>
#include <vector>

#include "headrace/engine/engine.h"

namespace headrace {

struct StepReport {
  struct Token {
    int32_t position = 0, id = 0;
    float confidence = 0;  // probability when chosen
  };
  struct Block {
    int32_t begin = 0, end = 0;
    DecodingBlock::State state = DecodingBlock::State::kActive;
    int32_t num_masked = 0;
  };
  int32_t step = 0;  // step of the request, from 1
  int32_t context_len = 0, first_position = 0, num_rows = 0;
  TokenRange stored;
  std::vector<Block> blocks;   // in flight when the step began
  std::vector<Token> decided;  // decided or changed in this step
  // Positions not yet returned, in order; absent: undecided. For a canvas, the likeliest tokens so far.
  std::vector<std::optional<Token>> pending;
};

// Observes one request. Not thread-safe.
class StepRecorder {
 public:
  void observe(StepMoment moment, const Sequence& sequence, const StepPlan& plan);
  // Returns the report of the last committed step.
  const StepReport& report() const { return report_; }

 private:
  void begin(const Sequence& sequence, const StepPlan& plan);

  StepReport report_;
  int32_t first_open_ = 0;                                // position of before_[0]
  std::vector<std::optional<StepReport::Token>> before_;  // decided tokens from there on when the step began
};

}  // namespace headrace
