// The files of a tokenizer that is Python code, where a model has no tokenizer.json (Dream). Stateless.
#pragma once
#include <string_view>

#include "headrace/text/tokenizer_file.h"

namespace headrace {

// The texts of vocab.json, merges.txt and tokenizer_config.json. What the code does is known for the classes of Qwen2
// and Dream: NFC, Qwen2's pattern, byte-level BPE. Throws Error as parse_tokenizer_file, and kUnsupported for another
// tokenizer_class, each naming the file.
TokenizerFile parse_slow_tokenizer_files(std::string_view vocab, std::string_view merges, std::string_view config);

}  // namespace headrace
