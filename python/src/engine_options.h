// The flags of headrace.LLM as the library takes them.
#pragma once
#include <nanobind/nanobind.h>

#include "headrace/llm/llm_options.h"

namespace headrace::python {

// `flags`: what the caller gave, by the names of python/headrace/_flags.py. `max_num_seqs` stays 0 unless it was given.
// Errors: kInvalidArgument, with the flag's name.
LLMOptions options_of(const nanobind::dict& flags);

}  // namespace headrace::python
