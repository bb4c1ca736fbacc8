// Flags of how tokens are decided.
#pragma once
#include <CLI/CLI.hpp>

#include "commands.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/llm/llm.h"

namespace headrace::app {

void add_decoding_flags(CLI::App& app, DecodingFlags& flags, SamplingParams& sampling);

// Error kInvalidArgument for a flag that another one makes unread, whatever the model.
void check_decoding(const DecodingFlags& flags, const DecodingParams& params);

// Returns the options of the strategy that the command line names, defaults included: a named option must be read.
std::vector<AskedOption> asked_options(const DecodingFlags& flags);

void set_decoding(LLMOptions& options, const DecodingFlags& flags);

}  // namespace headrace::app
