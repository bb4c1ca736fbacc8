#include "headrace/gguf/gguf_type.h"

#include <algorithm>
#include <array>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using F = BlockFormat;

constexpr std::array kGgufTypes = {
    GgufType{0, "F32", 1, 4, DType::kF32},
    GgufType{1, "F16", 1, 2, DType::kF16},
    GgufType{2, "Q4_0", 32, 18, {}, F::kQ4_0},
    GgufType{3, "Q4_1", 32, 20, {}, F::kQ4_1},
    GgufType{6, "Q5_0", 32, 22, {}, F::kQ5_0},
    GgufType{7, "Q5_1", 32, 24, {}, F::kQ5_1},
    GgufType{8, "Q8_0", 32, 34, {}, F::kQ8_0},
    GgufType{10, "Q2_K", 256, 84},
    GgufType{11, "Q3_K", 256, 110},
    GgufType{12, "Q4_K", 256, 144, {}, F::kQ4_K},
    GgufType{13, "Q5_K", 256, 176, {}, F::kQ5_K},
    GgufType{14, "Q6_K", 256, 210, {}, F::kQ6_K},
    GgufType{16, "IQ2_XXS", 256, 66},
    GgufType{17, "IQ2_XS", 256, 74},
    GgufType{18, "IQ3_XXS", 256, 98},
    GgufType{19, "IQ1_S", 256, 50},
    GgufType{20, "IQ4_NL", 32, 18},
    GgufType{21, "IQ3_S", 256, 110},
    GgufType{22, "IQ2_S", 256, 82},
    GgufType{23, "IQ4_XS", 256, 136},
    GgufType{24, "I8", 1, 1},
    GgufType{25, "I16", 1, 2},
    GgufType{26, "I32", 1, 4},
    GgufType{27, "I64", 1, 8},
    GgufType{28, "F64", 1, 8},
    GgufType{29, "IQ1_M", 256, 56},
    GgufType{30, "BF16", 1, 2, DType::kBF16},
    GgufType{34, "TQ1_0", 256, 54},
    GgufType{35, "TQ2_0", 256, 66},
    GgufType{39, "MXFP4", 32, 17},
    GgufType{40, "NVFP4", 64, 36},
    GgufType{41, "Q1_0", 128, 18},
    GgufType{42, "Q2_0", 64, 18},
};

bool was_removed(uint32_t id) { return id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38); }

}  // namespace

const GgufType* find_gguf_type(uint32_t id, std::string_view& why_not) {
  const auto* const found = std::ranges::find(kGgufTypes, id, &GgufType::id);
  if (found != kGgufTypes.end()) return found;
  why_not = was_removed(id)       ? "was removed from the format: convert the model again"
            : id == 9 || id == 15 ? "is for activations, never for files"
            : id >= 97            ? "is of ik_llama.cpp alone"
                                  : "is unknown";
  return nullptr;
}

const GgufType& gguf_type_of(DType dtype) {
  const auto* const found = std::ranges::find(kGgufTypes, std::optional(dtype), &GgufType::dtype);
  HR_REQUIRE(found != kGgufTypes.end(), ErrorCode::kInvalidArgument, "GGUF files: ", name_of(dtype), " is not built");
  return *found;
}

const GgufType& gguf_type_of(BlockFormat format) {
  return *std::ranges::find(kGgufTypes, std::optional(format), &GgufType::format);
}

}  // namespace headrace
