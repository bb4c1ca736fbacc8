// The element types that a safetensors file can declare.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "headrace/core/dtype.h"

namespace headrace {

struct SafetensorsDType {
  std::string_view name;       // as in the file: "BF16"; case matters
  uint64_t bits = 0;           // of one element
  std::optional<DType> dtype;  // nullopt: the format knows it, headrace computes nothing with it
};

// The row of `name`; null when the format has no such type. The table lives as long as the program.
const SafetensorsDType* find_safetensors_dtype(std::string_view name);

}  // namespace headrace
