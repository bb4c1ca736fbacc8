// Flags of how tokens are drawn and when the output ends.
#pragma once
#include <CLI/CLI.hpp>

#include "commands.h"

namespace headrace::app {

void add_sampling_flags(CLI::App& app, SamplingFlags& flags);
// Flags of the distribution alone: temperature, top-k, top-p, min-p and repetition penalty.
void add_default_sampling_flags(CLI::App& app, SamplingFlags& flags);

// `defaults` are the model's; what the flags do not say of how tokens are drawn follows them.
SamplingParams params_of(const SamplingFlags& flags, const SamplingParams& defaults);

}  // namespace headrace::app
