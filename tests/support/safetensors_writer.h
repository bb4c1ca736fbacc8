// Writes safetensors files for tests: good ones from tensors, broken ones from header text.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/tensor.h"

namespace headrace::test {

// A directory of its own, removed with everything in it.
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;  // contiguous, on the CPU
};

void write_file(const std::filesystem::path& path, std::string_view bytes);
// The file of a header text and its data: eight bytes of length, header, data.
std::string safetensors_bytes(std::string_view header, std::string_view data);
// A valid file. Its data begin at a multiple of 8 bytes, plus `header_padding` blanks.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       int header_padding = 0);

}  // namespace headrace::test
