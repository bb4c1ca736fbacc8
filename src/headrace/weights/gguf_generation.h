// End tokens and sampling defaults of a GGUF file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/gguf/gguf_header.h"

namespace headrace {

// Returns a token id of the file ("tokenizer.ggml.bos_token_id"); nullopt if it states none. Error kModelFile for an id
// that no token has.
std::optional<int64_t> gguf_token_id(const GgufHeader& header, std::string_view key);

// Returns a generation_config.json's text: bos_token_id, the sampling defaults that the file recommends, and as
// eos_token_id the tokens that end a text or a turn: those that the file names, and control tokens with a text that is
// known to end one. Errors as gguf_token_id.
std::string gguf_generation_json(const GgufHeader& header);

}  // namespace headrace
