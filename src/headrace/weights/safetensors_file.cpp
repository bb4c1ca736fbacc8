#include "headrace/weights/safetensors_file.h"

#include <algorithm>
#include <string_view>

#include "headrace/core/error.h"
#include "headrace/core/foreign_content.h"

namespace headrace {
namespace {

// A length below 4 GiB and the brace of the header's JSON behind it.
bool begins_as_safetensors(std::string_view begin) {
  return begin.size() > kSafetensorsPrefixBytes && begin.substr(4, 4) == std::string_view("\0\0\0\0", 4) &&
         begin[kSafetensorsPrefixBytes] == '{';
}

void refuse_what_is_another_file(const OpenFile& file) {
  constexpr uint64_t kEnough = 512;
  std::string begin(std::min(file.bytes(), kEnough), '\0');
  file.read(0, begin.data(), begin.size());
  const ForeignContent kind = begins_as_safetensors(begin) ? ForeignContent::kNone : foreign_content(begin);
  if (kind != ForeignContent::kHalfJson) refuse_foreign(file.name(), kind, begin);  // this is not the whole file
}

std::vector<SafetensorsEntry> read_header(const OpenFile& file, uint64_t& data_start) {
  refuse_what_is_another_file(file);
  HR_REQUIRE(file.bytes() >= kSafetensorsPrefixBytes, ErrorCode::kModelFile, file.name(), ": has ", file.bytes(),
             " bytes, a safetensors file has at least ", kSafetensorsPrefixBytes);
  unsigned char prefix[kSafetensorsPrefixBytes];
  file.read(0, prefix, sizeof prefix);
  const uint64_t length = safetensors_header_bytes(file.name(), prefix, file.bytes());
  std::string json(length, '\0');
  file.read(kSafetensorsPrefixBytes, json.data(), length);
  data_start = kSafetensorsPrefixBytes + length;
  return parse_safetensors_header(file.name(), json, file.bytes() - data_start);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, SigbusGuard* guard)
    : file_(path), entries_(read_header(file_, data_start_)), mapped_(file_, guard) {}

}  // namespace headrace
