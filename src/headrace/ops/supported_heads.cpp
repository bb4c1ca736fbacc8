#include "headrace/ops/supported_heads.h"

#include "headrace/core/error.h"

namespace headrace {

void require_head_dim(const OpSet& ops, int32_t layer_id, int32_t head_dim) {
  HR_REQUIRE(ops.most_head_dim == 0 || head_dim <= ops.most_head_dim, ErrorCode::kUnsupported, "layer ", layer_id,
             ": attention heads of ", head_dim, " elements; the kernel set '", ops.name, "' has sizes up to ",
             ops.most_head_dim);
}

void require_gdn_key_dim(const OpSet& ops, int32_t layer_id, int32_t head_k_dim) {
  HR_REQUIRE(ops.most_gdn_key_dim == 0 || head_k_dim <= ops.most_gdn_key_dim, ErrorCode::kUnsupported, "layer ",
             layer_id, ": Gated DeltaNet key heads of ", head_k_dim, " elements; the kernel set '", ops.name,
             "' has sizes up to ", ops.most_gdn_key_dim);
}

void require_float(const OpSet& ops, int32_t layer_id, std::string_view what, DType dtype) {
  HR_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, ErrorCode::kUnsupported, "layer ",
             layer_id, ": ", what, " of ", name_of(dtype), "; the kernel set '", ops.name,
             "' has float32, bfloat16 and float16");
}

void require_conv_width(const OpSet& ops, int32_t layer_id, int32_t width) {
  HR_REQUIRE(ops.most_conv_width == 0 || width <= ops.most_conv_width, ErrorCode::kUnsupported, "layer ", layer_id,
             ": a Gated DeltaNet convolution of ", width, " taps; the kernel set '", ops.name, "' has widths up to ",
             ops.most_conv_width);
}

void require_experts(const OpSet& ops, int32_t layer_id, int64_t num_experts) {
  HR_REQUIRE(ops.most_experts == 0 || num_experts <= ops.most_experts, ErrorCode::kUnsupported, "layer ", layer_id,
             ": ", num_experts, " experts; the kernel set '", ops.name, "' chooses among up to ", ops.most_experts);
}

void require_vocab(const OpSet& ops, int64_t vocab) {
  HR_REQUIRE(ops.most_vocab == 0 || vocab <= ops.most_vocab, ErrorCode::kUnsupported, "a vocabulary of ", vocab,
             " ids; the kernel set '", ops.name, "' draws from up to ", ops.most_vocab);
}

}  // namespace headrace
