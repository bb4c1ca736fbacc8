// Writes GGUF files for tests: good ones, and broken ones byte by byte.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::test {

template <class Number>
std::string le(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}
inline std::string gguf_text(std::string_view text) { return le(uint64_t{text.size()}).append(text); }
inline std::string gguf_key(std::string_view key, uint32_t type, std::string_view value) {
  return gguf_text(key).append(le(type)).append(value);
}
// Keys of one type each; integers are 32 bits wide.
inline std::string gguf_key(std::string_view key, int32_t value) { return gguf_key(key, 5, le(value)); }
inline std::string gguf_key(std::string_view key, float value) { return gguf_key(key, 6, le(value)); }
inline std::string gguf_flag(std::string_view key, bool value) {
  return gguf_key(key, 7, value ? "\1" : std::string(1, '\0'));
}
inline std::string gguf_key(std::string_view key, std::string_view text) { return gguf_key(key, 8, gguf_text(text)); }
inline std::string gguf_key(std::string_view key, const std::vector<int32_t>& values) {
  std::string bytes = le(uint32_t{5}) + le(uint64_t{values.size()});
  for (const int32_t value : values) bytes += le(value);
  return gguf_key(key, 9, bytes);
}
inline std::string gguf_key(std::string_view key, const std::vector<std::string>& texts) {
  std::string bytes = le(uint32_t{8}) + le(uint64_t{texts.size()});
  for (const std::string& text : texts) bytes += gguf_text(text);
  return gguf_key(key, 9, bytes);
}
inline std::string gguf_tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                               uint64_t offset) {
  std::string bytes = gguf_text(name) + le(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) bytes += le(dim);
  return bytes + le(type) + le(offset);
}

// The parts of a file; each may be broken.
struct GgufBytes {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> keys = {}, tensors = {};
  std::string data = {};
  uint64_t alignment = 32;  // of the data's begin

  std::string bytes() const { return counted(tensors.size(), keys.size()); }
  std::string counted(uint64_t num_tensors, uint64_t num_keys) const {
    std::string out = magic + le(version) + le(num_tensors) + le(num_keys);
    for (const std::string& key : keys) out += key;
    for (const std::string& tensor : tensors) out += tensor;
    if (!data.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
};

}  // namespace headrace::test
