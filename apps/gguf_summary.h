// The contents of a GGUF file in figures.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace headrace::app {

// Tensors of one kind: "embedding", "attention", ...
struct GgufKind {
  std::string name;
  std::vector<std::string> formats;  // "Q4_K", in the order of their tensors; each once
  int64_t tensors = 0, parameters = 0, bytes = 0;

  double bits() const;  // per parameter
};

struct GgufSummary {
  std::string path, architecture, tokenizer;  // tokenizer: "gpt2, qwen2"; empty texts: the file does not say
  std::optional<int64_t> context_length;
  bool has_chat_template = false;
  int64_t num_files = 0, file_bytes = 0;
  std::vector<GgufKind> kinds;              // without those that have no tensors
  std::vector<std::string> unread_formats;  // that this program does not read

  GgufKind all() const;  // of all kinds together
};

// Errors as open_gguf.
GgufSummary gguf_summary(const std::filesystem::path& path);

}  // namespace headrace::app
