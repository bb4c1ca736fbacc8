// The header of a safetensors file, validated in full. Format: huggingface.co/docs/safetensors.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/weights/safetensors_dtype.h"

namespace headrace {

// One tensor as the header declares it. Offsets count bytes from the start of the data.
struct SafetensorsEntry {
  std::string name;  // any text: data, never a path; printable() before it is shown
  const SafetensorsDType* dtype = nullptr;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // end - begin = the bytes of `shape`; nothing overlaps, nothing is left out
};

inline constexpr uint64_t kSafetensorsPrefixBytes = 8;
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxSafetensorsTensors = 1'000'000;
inline constexpr size_t kMaxSafetensorsNameBytes = 4096;
inline constexpr size_t kMaxSafetensorsRank = 8;

// The header's length from a file's first eight bytes (little-endian). Error kModelFile naming `file` when it is 0,
// above 100 MB or does not fit into `file_bytes`. Nothing of the header has to be in memory for this.
uint64_t safetensors_header_bytes(std::string_view file, const unsigned char (&prefix)[kSafetensorsPrefixBytes],
                                  uint64_t file_bytes);

// The tensors of the header text `json`, ordered by where they begin in `data_bytes` bytes of data. Every rule of the
// format holds for the result; the first rule that is broken is Error kModelFile: one line with file, tensor and rule.
// Stricter than the format's own reader: no blank before '{', no key twice, no more than 8 dimensions.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view file, std::string_view json,
                                                       uint64_t data_bytes);

}  // namespace headrace
