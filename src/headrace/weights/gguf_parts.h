// The tensors of a model in one or several GGUF files.
#pragma once
#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/gguf/gguf_file.h"

namespace headrace {

// All parts of a file, the first one first. Refers to them.
class GgufParts {
 public:
  explicit GgufParts(const std::vector<GgufFile>& files) : files_(files) {}

  const GgufHeader& header() const { return files_.front().header(); }
  bool has(std::string_view tensor) const { return file_of(tensor) != nullptr; }
  const GgufTensor& tensor(std::string_view name) const {
    const GgufFile* const file = file_of(name);
    HR_REQUIRE(file != nullptr, ErrorCode::kModelFile, header().file(), ": has no tensor '", name, "'");
    return *file->header().find_tensor(name);
  }
  std::vector<float> floats(std::string_view name) const {
    const GgufTensor& found = tensor(name);
    HR_REQUIRE(found.type->dtype == DType::kF32 && found.dims.size() == 1, ErrorCode::kModelFile, header().file(),
               ": tensor '", name, "': expected a row of F32");
    std::vector<float> values(found.dims.front());
    std::memcpy(values.data(), file_of(name)->data(found).data(), found.bytes);
    return values;
  }
  bool is_quantised() const {
    return std::ranges::any_of(files_, [](const GgufFile& file) {
      return std::ranges::any_of(file.header().tensors(),
                                 [](const GgufTensor& tensor) { return tensor.type->block_elements > 1; });
    });
  }

 private:
  const GgufFile* file_of(std::string_view tensor) const {
    const auto found = std::ranges::find_if(
        files_, [tensor](const GgufFile& file) { return file.header().find_tensor(tensor) != nullptr; });
    return found == files_.end() ? nullptr : &*found;
  }

  const std::vector<GgufFile>& files_;
};

}  // namespace headrace
