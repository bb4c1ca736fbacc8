// A request on its way through the engine.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "headrace/request/sampling_params.h"

namespace headrace {

enum class FinishReason : uint8_t { kStop, kLength, kAborted };
constexpr std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAborted: return "abort";
  }
  return "unknown";
}

// Owned by the engine, which alone changes it.
struct Sequence {
  int64_t id = 0;
  SamplingParams params;
  std::vector<int32_t> tokens;  // prompt, then output
  int32_t prompt_len = 0;
  int32_t num_cached = 0;  // tokens whose K, V and state are in the pools
  std::optional<FinishReason> finish_reason;

  // Held while the sequence runs.
  int32_t table_row = 0;
  int32_t state_slot = kNoState;
  std::vector<int32_t> pages;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_output() const { return num_tokens() - prompt_len; }
};

}  // namespace headrace
