// Commands that run many requests at a time: their flags and defaults.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "headrace/llm/llm_options.h"

namespace headrace::app {

struct ManyRequestsFlags {
  std::vector<std::string> served_names;  // empty: the model's name
  std::optional<int32_t> max_num_seqs;
};

void add_many_requests_flags(CLI::App& command, ManyRequestsFlags& flags);

// The names that a request's model may have: those of the flags, else MODEL and its last part.
std::vector<std::string> model_names(const ManyRequestsFlags& flags, const ModelFlags& model,
                                     const std::filesystem::path& directory);
// Returns `options` with the number of requests that run at a time.
LLMOptions for_many_requests(const ManyRequestsFlags& flags, const ModelDescription& model, LLMOptions options);

}  // namespace headrace::app
