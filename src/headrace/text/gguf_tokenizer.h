// The tokenizer in the header of a GGUF file, read and written. Stateless.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/gguf/gguf_header.h"
#include "headrace/gguf/gguf_writer.h"
#include "headrace/text/tokenizer_file.h"

namespace headrace {

// Reads tokenizer.huggingface.json if the file has it, else tokenizer.ggml.*: byte-level BPE ("gpt2") with the
// pre-tokenizers of Qwen2, Qwen3.5, Llama 3 and SmolLM. Control and user-defined tokens become added tokens that are
// matched in raw text. Ids without a token, spelled "[PAD<id>]", are left out, as in the model's tokenizer.json. Throws
// Error, each naming the file and the key: kUnsupported for another model or pre-tokenizer, kModelFile for a key that
// is missing, of another type, or contradicts another.
TokenizerFile read_gguf_tokenizer(const GgufHeader& header);

// Returns the keys tokenizer.ggml.* from which read_gguf_tokenizer() makes the same tokenizer, for an embedding of
// `num_rows` rows; rows without a token are "[PAD<id>]". The ids of bos and eos are not among them, except for a bos
// that every text begins with. Error kUnsupported, one sentence: no pre-tokenizer of files equals this tokenizer's, or
// files cannot say what it adds to texts and takes around its tokens; kModelFile: more tokens than rows.
std::vector<GgufKey> gguf_tokenizer_keys(const TokenizerFile& file, int64_t num_rows);

}  // namespace headrace
