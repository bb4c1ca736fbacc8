// CPU kernel of token_confidence.
#pragma once
#include "headrace/ops/cpu/isa.h"
#include "headrace/ops/token_confidence.h"

namespace headrace::cpu {

struct TokenConfidenceParams {
  const float* logits = nullptr;
  long rows = 0, row_stride = 0;
  long vocab = 0, width = 0;  // ids from vocab on only count in the sums
  long excluded = -1;         // -1: none
  int* best = nullptr;
  float* stats = nullptr;
  long best_stride = 1, stats_stride = 4;
  int threads = 1;
};

TokenConfidenceParams params_of(const TokenConfidenceArgs& args, const OpContext& context);  // args must be checked

HR_DECLARE_PER_ISA(void token_confidence(const TokenConfidenceParams& params))

}  // namespace headrace::cpu
