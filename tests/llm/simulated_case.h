// What a seed of the simulator draws.
#pragma once
#include <climits>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/fake_model.h"
#include "headrace/engine/engine.h"

namespace headrace::testing_support {

// A request and what happens to it.
struct Arrival {
  std::vector<int32_t> prompt;
  SamplingParams params;
  int32_t n = 1;
  std::string salt;
  bool reports_steps = false;
  size_t queue = 0;               // its consumer's
  int32_t step = 0;               // after which it comes
  std::optional<size_t> goes_on;  // behind the prompt and the answer, as far as it is there, of an earlier one
  // Tokens of the answer behind which it is given up or preempted.
  std::optional<size_t> given_up_at, preempted_at;
  std::optional<int32_t> given_up_after;        // steps since it came
  std::optional<uint64_t> constraint_salt;      // absent: any token may come
  std::optional<int32_t> constraint_throws_at;  // tokens
  bool gives_up_all = false;                    // choices, not one
  // Its strategy throws when it has so many tokens behind the prompt.
  enum class Throws : uint8_t { kNever, kInPlan, kInCommit } throws = Throws::kNever;
  int32_t throws_at = 0;
  bool left_out = false;  // by what makes a failing case smaller
};

constexpr int32_t kAtTheEnd = INT32_MAX;

struct StepFault {
  int32_t step = 0;
  ErrorCode code = ErrorCode::kInternal;
  int32_t passes = 1;  // that fail
  // On a fake device: work that is queued throws, in place of a pass.
  enum class Where : uint8_t { kInPass, kOnDevice } where = Where::kInPass;
};

struct Case {
  FakeText::States states = FakeText::States::kNone;
  std::optional<DiffusionInfo> diffusion;
  EngineConfig config;
  std::vector<Arrival> arrivals;
  std::vector<StepFault> faults;
  std::optional<int32_t> most_rows;  // steps of more run out of memory
  std::vector<int32_t> consumers;    // steps after which each takes its events
};

Case draw_case(uint64_t seed);
std::string summary_of(const Case& c);  // one line
inline int32_t vocab_of(const Case& c) { return c.config.vocab > 0 ? c.config.vocab : FakeText::kVocab; }

}  // namespace headrace::testing_support
