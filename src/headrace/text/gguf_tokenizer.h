// The tokenizer in the header of a GGUF file. Stateless.
#pragma once
#include "headrace/gguf/gguf_header.h"
#include "headrace/text/tokenizer_file.h"

namespace headrace {

// Reads tokenizer.huggingface.json if the file has it, else tokenizer.ggml.*: byte-level BPE ("gpt2") with the
// pre-tokenizers of Qwen2, Qwen3.5, Llama 3 and SmolLM. Control and user-defined tokens become added tokens that are
// matched in raw text. Ids without a token, spelled "[PAD<id>]", are left out, as in the model's tokenizer.json. Throws
// Error, each naming the file and the key: kUnsupported for another model or pre-tokenizer, kModelFile for a key that
// is missing, of another type, or contradicts another.
TokenizerFile read_gguf_tokenizer(const GgufHeader& header);

}  // namespace headrace
