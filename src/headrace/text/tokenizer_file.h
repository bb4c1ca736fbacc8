// Contents of a tokenizer.json, checked and without JSON. Stateless.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/text/added_tokens.h"
#include "headrace/text/bpe.h"
#include "headrace/text/normalizer.h"
#include "headrace/text/vocabulary.h"

namespace headrace {

struct TokenizerFile {
  std::vector<Vocabulary::Entry> vocab;  // without the added tokens
  Bpe::Merges merges;
  WholeWords whole_words = WholeWords::kMerge;
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  Alphabet alphabet = Alphabet::kBytes;
  std::optional<NormalizerStep> decoded;        // of kCharacters: what each token's text is replaced by
  std::vector<std::string> patterns;            // each splits the pieces of the one before
  bool add_prefix_space = false;                // then: a space before a piece that does not start with one
  bool byte_level_regex = false;                // then: GPT-2's pattern
  std::vector<int32_t> prefix_ids, suffix_ids;  // of the post-processor
};

// Reads the Hugging Face format, for byte-level BPE and for BPE over characters with tokens for bytes to fall back on
// (Gemma). Throws Error: kModelFile (no JSON, a field that is missing or has
// the wrong type, a contradiction), kUnsupported (a component, or a value of one, that is not built), each naming the
// place.
TokenizerFile parse_tokenizer_file(std::string_view text);

// Reads the tokenizer of a model's directory, or of a GGUF file, as Tokenizer::from_directory does. Errors as there.
TokenizerFile read_tokenizer_files(const std::filesystem::path& directory);

}  // namespace headrace
