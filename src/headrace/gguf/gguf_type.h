// Element types of tensors in GGUF files.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "headrace/core/block_format.h"
#include "headrace/core/dtype.h"

namespace headrace {

struct GgufType {
  uint32_t id;
  std::string_view name;
  uint32_t block_elements, block_bytes;  // 1 element in a block of plain numbers
  // The form in which this program reads it. A type that has neither is known and not read.
  std::optional<DType> dtype = {};
  std::optional<BlockFormat> format = {};

  bool is_read() const { return dtype || format; }
};

// Returns null for an id that no file may have. `why_not` then says why in a few words.
const GgufType* find_gguf_type(uint32_t id, std::string_view& why_not);

// Return the type of plain numbers or of blocks. Error kInvalidArgument for a dtype that no type is read as.
const GgufType& gguf_type_of(DType dtype);
const GgufType& gguf_type_of(BlockFormat format);

}  // namespace headrace
