// GGUF files of models for tests: keys of an architecture, and tensors.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/gguf_writer.h"
#include "support/safetensors_writer.h"

namespace headrace::test {

// A model's file whose tensors are float32 or Q8_0.
class GgufModel {
  static constexpr uint32_t kTypeU32 = 4, kTypeText = 8, kTypeArray = 9, kStoredF32 = 0, kStoredQ8_0 = 8;

 public:
  explicit GgufModel(const std::string& architecture) : architecture_(architecture) {
    file_.keys.push_back(gguf_key("general.architecture", kTypeText, gguf_text(architecture)));
  }
  void key(const std::string& name, uint32_t value) {
    file_.keys.push_back(gguf_key(architecture_ + "." + name, kTypeU32, le(value)));
  }
  void list(const std::string& name, const std::vector<uint32_t>& values) {
    std::string bytes = le(kTypeU32) + le(uint64_t{values.size()});
    for (const uint32_t value : values) bytes += le(value);
    file_.keys.push_back(gguf_key(architecture_ + "." + name, kTypeArray, bytes));
  }
  // `shape` as PyTorch has it: the slowest dimension first.
  void floats(const std::string& name, const std::vector<uint64_t>& shape, const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes += le(value);
    add(name, shape, kStoredF32, bytes);
  }
  // Element i has the value `first` + i.
  void counted(const std::string& name, const std::vector<uint64_t>& shape, float first = 0) {
    size_t count = 1;
    for (const uint64_t dim : shape) count *= dim;
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
    floats(name, shape, values);
  }
  // The codes of block i are i, i + 1, ...; its scale is 1.
  void blocks(const std::string& name, uint64_t rows, uint64_t per_row = 1) {
    constexpr uint16_t kOne = 0x3c00;
    std::string bytes;
    for (uint64_t block = 0; block < rows * per_row; ++block) {
      bytes += le(kOne);
      for (uint64_t column = 0; column < 32; ++column) bytes += static_cast<char>(block + column);
    }
    add(name, {rows, 32 * per_row}, kStoredQ8_0, bytes);
  }
  std::filesystem::path write(const TempDir& dir) const {
    write_file(dir / "model.gguf", file_.bytes());
    return dir / "model.gguf";
  }

 private:
  void add(const std::string& name, std::vector<uint64_t> shape, uint32_t type, const std::string& bytes) {
    const uint64_t offset = (file_.data.size() + 31) / 32 * 32;
    file_.data.resize(offset, '\0');
    file_.data += bytes;
    file_.tensors.push_back(gguf_tensor(name, {shape.rbegin(), shape.rend()}, type, offset));
  }

  std::string architecture_;
  GgufBytes file_;
};

}  // namespace headrace::test
