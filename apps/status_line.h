// The line under a text: how much was made, and how fast.
#pragma once
#include <string>

#include "headrace/llm/llm.h"

namespace headrace::app {

// The device's start is no part of load_s; the others are counted from the beginning.
struct Timings {
  double device_start_s = 0, load_s = 0, first_token_s = 0, total_s = 0;
};

// "[120 tokens, 516 tokens/s, first after 0.02 s]\n"; of block diffusion also "12 forwards, 10.00 tokens/forward",
// of a device the time until it was ready. What does not fit into `columns` is left out from the end.
struct StatusLine {
  const Completion& completion;  // not owned
  const Timings& timings;        // not owned
  enum class Decoding : unsigned char { kTokenByToken, kBlocks } decoding = Decoding::kTokenByToken;
  enum class Runs : unsigned char { kOnHost, kOnDevice } runs = Runs::kOnHost;
  int columns = 80;
};
std::string status_line(const StatusLine& line);

}  // namespace headrace::app
