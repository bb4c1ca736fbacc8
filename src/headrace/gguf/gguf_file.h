// One GGUF file: a validated header and mapped data.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "headrace/core/mapped_file.h"
#include "headrace/gguf/gguf_header.h"

namespace headrace {

// Immutable: threads may share it.
class GgufFile {
 public:
  // Error kModelFile: one line with path, key or tensor, and rule. `guard` may be null; it outlives this object.
  explicit GgufFile(const std::filesystem::path& path, SigbusGuard* guard = nullptr);

  const GgufHeader& header() const { return header_; }
  uint64_t bytes() const { return mapped_.bytes(); }
  // Read-only, and not always aligned to the element.
  std::span<const unsigned char> data(const GgufTensor& tensor) const {
    return {mapped_.data() + tensor.begin, static_cast<size_t>(tensor.bytes)};
  }

 private:
  MappedFile mapped_;
  GgufHeader header_;
};

// Returns true if `path` is a file in this format: by its ending or, without a known one, by its first bytes (Ollama's
// blobs have no ending). A model may be named by the path of such a file.
bool is_gguf_path(const std::filesystem::path& path);

// The file that holds a model's keys: `path`, which is the whole model or its first part. Error kModelFile for another
// part, naming the first one.
GgufFile open_first_gguf(const std::filesystem::path& path, SigbusGuard* guard = nullptr);

// The files of a model in one or several parts, the first one first. `path`: the file, or the first part,
// "NAME-00001-of-00003.gguf"; the others lie beside it. Error kModelFile: a part that is missing, of another model, or
// not the first; a tensor that two parts have.
std::vector<GgufFile> open_gguf(const std::filesystem::path& path, SigbusGuard* guard = nullptr);

}  // namespace headrace
