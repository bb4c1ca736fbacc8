// Text to token ids and back, as a model's tokenizer.json or GGUF file says: byte-level BPE (Qwen2, Qwen3, Qwen3.5,
// Llama 3, GPT-2, LLaDA, Seed-Coder) and BPE over characters with byte fallback (Gemma). The frontend encodes prompts
// with it, the Detokenizer and the samplers read tokens from it. Ids equal those of the `tokenizers` package. Const
// methods are thread-safe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/text/added_tokens.h"

namespace headrace {

// kYes: encode() adds the post-processor's tokens, such as the <|begin_of_text|> of Llama 3.
enum class AddSpecialTokens : uint8_t { kYes, kNo };

// Special tokens in decoded text: shown or left out.
enum class SpecialText : uint8_t { kKeep, kSkip };

struct EncodeOptions {
  SpecialTokens special_tokens = SpecialTokens::kAsText;
  AddSpecialTokens add_special_tokens = AddSpecialTokens::kYes;
  // Bytes of the text, ascending and apart, in which kParse reads special tokens as text. Not owned.
  std::span<const TextSpan> literal = {};
};

class Tokenizer {
 public:
  // Throws Error: kIo (the file cannot be read), kModelFile (not a tokenizer.json, or one that contradicts itself),
  // kUnsupported (a part that is not built, by name). Messages start with `path`.
  static Tokenizer from_file(const std::string& path);
  // The tokenizer of a model's directory: tokenizer.json, or else vocab.json, merges.txt
  // and tokenizer_config.json, with what the files beside them add (add_side_files); or of a GGUF file
  // (read_gguf_tokenizer). Errors as from_file, naming the file or the directory.
  static Tokenizer from_directory(const std::filesystem::path& directory);
  // Reads the text of a tokenizer.json; error messages begin with "tokenizer.json".
  static Tokenizer from_json(std::string_view json);
  // 256 tokens, the bytes: for models that come without a tokenizer.
  static Tokenizer of_bytes();

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // The ids of `text`. Bytes that are not UTF-8 count as U+FFFD, one for each maximal ill-formed part, as if Python's
  // bytes.decode("utf-8", "replace") had read them. Time is n log n. Throws Error(kInvalidArgument) for 2 GiB or more.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // Returns where `text`, read with kParse, can be cut: the ids of both parts, one behind the other, are those of the
  // whole. It is in front of the last special token of the raw text; 0 if there is none.
  size_t last_cut(std::string_view text, std::span<const TextSpan> literal = {}) const;

  // The text of `ids`, always valid UTF-8: what their bytes spell, with U+FFFD for ill-formed parts (of fallback bytes:
  // is_fallback_byte). An id without a
  // token (the padding rows of a model's output matrix) spells nothing, as in the `tokenizers` package.
  std::string decode(std::span<const int32_t> ids, SpecialText special = SpecialText::kKeep) const;

  // Tokens are named as tokenizer.json spells them: "<|im_end|>", "Ġthe".
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int32_t id) const;

  // Returns the ids that encode() puts before a text, such as <|begin_of_text|>. Owned by this tokenizer.
  std::span<const int32_t> prefix_ids() const;

  int32_t vocab_size() const;  // one past the largest id, added tokens included
  // Returns the bytes that `id` adds to decoded text; empty for an id without a token. Owned by this tokenizer; moving
  // the tokenizer does not invalidate them.
  std::string_view bytes_of(int32_t id) const;
  bool is_special(int32_t id) const;
  // Returns true if `id` is a fallback byte (Gemma's "<0x0A>"). A run of them decodes to text if it is valid UTF-8 as a
  // whole, and to U+FFFD for each byte if not, as in the `tokenizers` package.
  bool is_fallback_byte(int32_t id) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace headrace
