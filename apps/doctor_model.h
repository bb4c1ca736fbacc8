// headrace doctor MODEL: what a model is, whether it fits on this machine, and how fast it can be.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "commands.h"

namespace headrace::app {

struct MachineLimits {
  std::string device;
  double read_bytes_per_s = 0;
  int64_t free_bytes = 0;
};

// Measures each device. Asked when the model's files turned out right.
using Machines = std::function<std::vector<MachineLimits>()>;

// Reads config.json, the tokenizer and the weights' headers, no weights. Error kModelFile and kUnsupported, one
// sentence: also what a broken download is instead.
std::string describe_model(const std::filesystem::path& directory, const Machines& machines, Output output);

// "7.2 billion", "12.0 million"
std::string count_text(int64_t parameters);

}  // namespace headrace::app
