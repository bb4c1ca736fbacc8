// `headrace bench engine`: host work of the engine, with a model that does nothing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::app {

struct EngineBenchConfig {
  std::vector<int32_t> running;      // requests at once; empty: the default cases
  std::optional<int32_t> input_len;  // tokens of each prompt; absent: the default cases
  int32_t page_size = 64;
  std::optional<std::string> kernel_set;
};

// Prints one JSON object per line and case, with its goal (null: none is set): the microseconds of a decode step by
// running requests and by the length of their prompts; what it takes more through EngineLoop; then those of an
// admission by cached texts that share 80 % of the prompt. Each but the loop's for a dense and a hybrid model, on the
// CPU's path and on a device's (FakeDevice). Microseconds are CPU time of the engine's only thread, which other
// programs on the machine change little. Error kOutOfMemory if the requests do not fit the memory.
void bench_engine(const EngineBenchConfig& config);

}  // namespace headrace::app
