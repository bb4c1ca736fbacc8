// What every backend must hold of a problem: the oracle's numbers, and in strict mode the same bits in any company.
#pragma once
#include <string>

#include "conformance/attention_problem.h"

namespace headrace::testing_support {

struct AttentionChecks {
  std::string backend = "cpu";            // or a set of device_mirror.h
  std::optional<std::string> kernel_set;  // of "cpu"
  double oracle_products = 1.5e7;         // as random_attention_case counts them; larger problems are seen at some rows
};

// Runs `c` in fast and in strict mode. An empty string, or one that says what is wrong: `seed` chooses the values,
// which rows the oracle finds, and which parts of the batch run again by themselves.
std::string wrong_with(const AttentionCase& c, uint64_t seed, const AttentionChecks& checks);

}  // namespace headrace::testing_support
