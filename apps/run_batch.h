// headrace run-batch: OpenAI's batch files.
#pragma once
#include <cstdint>
#include <string>

#include "commands.h"
#include "many_requests.h"

namespace CLI {
class App;
}

namespace headrace::app {

struct RunBatchFlags {
  ModelFlags model;
  std::string input, output;
  ManyRequestsFlags many;
  uint64_t seed = 0;
  bool overwrite = false;
};

void add_run_batch_flags(CLI::App& command, RunBatchFlags& flags);

// Runs the requests of a file and writes their results to another one. Returns 0, kSomeFailed or kInterrupted.
int run_batch(const RunBatchFlags& flags, Output output);

}  // namespace headrace::app
