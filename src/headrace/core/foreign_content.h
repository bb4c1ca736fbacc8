// Recognises, from its first bytes, a file that is not what its reader expects. Every reader of model files uses it.
#pragma once
#include <cstdint>
#include <string_view>

namespace headrace {

enum class ForeignContent : uint8_t {
  kNone,  // none of these
  kEmpty,
  kWebPage,
  kServerError,  // a hub's "Entry not found", or a JSON error object
  kLfsPointer,
  kCompressed,
  kPickle,  // PyTorch's .bin and .pt, as a zip archive or plain
  kGguf,
  kHalfJson,  // a truncated object; detected if `content` is the whole file
};

// Classifies a file. `content`: the whole file, or at least its first 512 bytes.
ForeignContent foreign_content(std::string_view content);

// Throws an Error that names `file` and its content; returns for kNone. kUnsupported for kPickle and kGguf (models in
// other formats), kModelFile for the others (broken downloads).
void refuse_foreign(std::string_view file, ForeignContent kind, std::string_view content);
inline void refuse_foreign_content(std::string_view file, std::string_view content) {
  refuse_foreign(file, foreign_content(content), content);
}

}  // namespace headrace
