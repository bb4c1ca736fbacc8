// The cases of attention_gpu_bench.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/batch/key_span.h"
#include "headrace/core/dtype.h"

namespace headrace::bench {

struct AttentionCase {
  std::string name;
  std::vector<int32_t> contexts, new_tokens;  // by request
  int32_t heads = 32, kv_heads = 8, dim = 128, page_size = 64, block_size = 1;
  KeySpan::Kind kind = KeySpan::Kind::kCausal;
  DType pool = DType::kBF16;
  int32_t most_keys = 0;  // in place of what it has, as a graph that serves any context is recorded; 0: as it is

  int64_t pages_of(size_t r) const { return (contexts[r] + new_tokens[r] + page_size - 1) / page_size; }
};

inline constexpr const char* kAsked = "others: ";  // in front of names of cases that run only when they are asked for

std::vector<AttentionCase> attention_gpu_cases();

}  // namespace headrace::bench
