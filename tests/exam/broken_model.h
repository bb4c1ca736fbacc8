// A copy of a model whose embedding of one token is NaN.
#pragma once
#include <cstdint>
#include <filesystem>

#include "support/safetensors_writer.h"

namespace headrace::exam {

// The copy has an output matrix of its own in place of tied ones: the logits of texts without the token are right.
class BrokenModel {
 public:
  explicit BrokenModel(const std::filesystem::path& model);
  const std::filesystem::path& directory() const { return directory_.path(); }
  int32_t token() const { return 77; }

 private:
  test::TempDir directory_;
};

}  // namespace headrace::exam
