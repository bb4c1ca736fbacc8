// Attention problems drawn at random, with a bias towards the sizes at which kernels are chosen and keys are cut.
#pragma once
#include <string>

#include "conformance/attention_problem.h"

namespace headrace::testing_support {

// `most_products`: of a query's or a weight's element with a key's or a value's, at most; some cases are much smaller.
// The same arguments give the same case on every machine.
AttentionCase random_attention_case(uint64_t seed, double most_products);

// One line for a person who looks for what failing cases have in common.
std::string summary_of(const AttentionCase& c);
// A request of one, by the names of its fields.
std::string summary_of(const RequestCase& r);

}  // namespace headrace::testing_support
