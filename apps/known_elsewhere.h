// Words of other programs' command lines: llama.cpp, Ollama, vLLM, SGLang, transformers, and those that serve or
// publish diffusion models (Diffulex, dInfer, LLaDA, Dream, SDAR, Fast-dLLM).
#pragma once
#include <optional>
#include <string_view>

namespace headrace::app {

// Returns advice for an option or a command of other programs that headrace lacks, or nothing. Long options may be
// spelled with underscores.
std::optional<std::string_view> known_elsewhere(std::string_view word);

// The option that means here what `option` means elsewhere: "--max-tokens" of "--gen-length"; or nothing.
std::optional<std::string_view> same_option(std::string_view option);

// A value of the option `option` (its first long name, "--dtype") as it is called here: "bfloat16" of "bf16"; or
// nothing.
std::optional<std::string_view> same_value(std::string_view option, std::string_view value);

// Returns advice for a value that headrace lacks, "float16" of "--dtype", or nothing.
std::optional<std::string_view> value_known_elsewhere(std::string_view option, std::string_view value);

}  // namespace headrace::app
