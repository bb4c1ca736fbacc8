#include "headrace/weights/safetensors_file.h"

#include "headrace/base/error.h"

namespace headrace {
namespace {

std::vector<SafetensorsEntry> read_header(const OpenFile& file, uint64_t& data_start) {
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
