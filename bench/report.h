// Result of a benchmark case, and its output.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "headrace/ops/op_set.h"

namespace headrace::bench {

struct Result {
  std::string name;
  double median_s = 0, bytes = 0, flops = 0;
  enum class Limit { kRead, kReadWrite, kMatrix } limit = Limit::kRead;
  int64_t tokens = 0;                // decided or read in that time; 0: none are counted
  std::optional<double> limit_rate;  // bytes/s, or flop/s of kMatrix; absent: not measurable here
};

using Report = std::function<void(const Result&)>;

// Op set and context of a kernel's cases.
struct BenchContext {
  const OpSet& ops;
  OpContext op;
};

// One JSON object on one line, with the share of the limit (null without one); of a case that counts neither bytes nor
// flops, the time alone, and its tokens per second.
std::string json_line(const Result& result);

}  // namespace headrace::bench
