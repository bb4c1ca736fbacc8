// The cases of the attention conformance suite.
#pragma once
#include <vector>

#include "conformance/attention_problem.h"

namespace headrace::testing_support {

// Cases with names: each is a defect of an origin, a worked example of the specification, or an edge.
std::vector<AttentionCase> named_attention_cases();

// Cases in which every pair of axis values that can meet does, at least once.
std::vector<AttentionCase> pairwise_attention_cases();

// The named and pairwise cases of FP8 pools, over pools of int8, which a CPU runs. Values are finite.
std::vector<AttentionCase> int8_attention_cases();

// `count` cases drawn from the whole product of the axes.
std::vector<AttentionCase> sampled_attention_cases(uint64_t seed, int count);

}  // namespace headrace::testing_support
