// Flags of how tokens are drawn and when the output ends.
#pragma once
#include <CLI/CLI.hpp>

#include "commands.h"

namespace headrace::app {

// CLI11 reads -1 into an unsigned number as its two's complement, and what is beyond 64 bits as 2^64 - 1.
CLI::Validator unsigned_number();

void add_sampling_flags(CLI::App& app, SamplingFlags& flags);

// `defaults` are the model's; what the flags do not say of how tokens are drawn follows them.
SamplingParams params_of(const SamplingFlags& flags, const SamplingParams& defaults);

}  // namespace headrace::app
