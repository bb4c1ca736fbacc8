// What a file holds instead of what its reader expects, told by its first bytes. Every reader of a model's files asks.
#pragma once
#include <cstdint>
#include <string_view>

namespace headrace {

enum class ForeignContent : uint8_t {
  kNone,  // none of these
  kEmpty,
  kWebPage,
  kServerError,  // a hub's "Entry not found", or a JSON object of an error
  kLfsPointer,
  kCompressed,
  kPickle,  // PyTorch's .bin and .pt, as a zip archive or plain
  kGguf,
  kHalfJson,  // an object that does not end; found when `content` is the whole file
};

// `content` begins where the file does: the whole of it, or 512 bytes and more.
ForeignContent foreign_content(std::string_view content);

// Throws an Error that names `file` and says what it is; returns for kNone. kUnsupported for kPickle and kGguf, which
// are models of other programs, kModelFile for the others, which are broken downloads.
void refuse_foreign(std::string_view file, ForeignContent kind, std::string_view content);
inline void refuse_foreign_content(std::string_view file, std::string_view content) {
  refuse_foreign(file, foreign_content(content), content);
}

}  // namespace headrace
