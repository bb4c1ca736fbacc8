// Facts of a tokenizer that transformers' AutoTokenizer reads from the files beside tokenizer.json. Stateless.
#pragma once
#include <optional>
#include <string>

#include "headrace/text/tokenizer_file.h"

namespace headrace {

// Their texts; absent files are nullopt.
struct TokenizerSideFiles {
  std::optional<std::string> tokenizer_config, special_tokens_map, added_tokens;
};

// Adds their tokens to `file`, as transformers 4.57 and 5.24 do. tokenizer_config.json's added_tokens_decoder states
// tokens, whose flags go over those of tokenizer.json; without it added_tokens.json does, and special_tokens_map.json
// goes over tokenizer_config.json's names. What is named as bos_token, eos_token and so on is a special token, and one
// that no other file has gets the next id. add_bos_token and add_eos_token of Llama's tokenizer classes stand for the
// post-processor. Throws Error as parse_tokenizer_file, naming the file; kModelFile too where a new token is stated
// with another id than transformers gives it, the next one.
void add_side_files(const TokenizerSideFiles& texts, TokenizerFile& file);

}  // namespace headrace
