#include "headrace/weights/safetensors_dtype.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

constexpr std::array<SafetensorsDType, 22> kTypes = {{
    {"F32", 32, DType::kF32},
    {"BF16", 16, DType::kBF16},
    {"F16", 16, DType::kF16},
    {"F64", 64, DType::kF64},
    {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},
    {"U8", 8, DType::kU8},
    {"BOOL", 8, std::nullopt},
    {"I8", 8, std::nullopt},
    {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},
    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},
    {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
}};

}  // namespace

const SafetensorsDType* find_safetensors_dtype(std::string_view name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& row) { return row.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

}  // namespace headrace
