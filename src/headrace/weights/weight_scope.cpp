#include "headrace/weights/weight_scope.h"

#include <cstring>
#include <vector>

#include "headrace/weights/text_layout.h"

namespace headrace {
TensorView WeightScope::checked(std::string_view name, const TensorView& weight) const {
  const DType dtype = weight.dtype();
  HR_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, ErrorCode::kUnsupported,
             origin_of(name), ": tensor '", full_name(name), "' is ", name_of(dtype),
             ", expected float32, bfloat16 or float16");
  return weight;
}

TextWeights find_text_weights(Checkpoint& checkpoint) {
  std::vector<TextLayout> found;
  for (const TextLayout& layout : kTextLayouts)
    if (checkpoint.has(str(layout.body, "embed_tokens.weight"))) found.push_back(layout);
  if (checkpoint.is_random()) found.push_back(kTextLayouts[0]);
  HR_REQUIRE(!found.empty(), ErrorCode::kModelFile, checkpoint.origin(),
             ": embed_tokens.weight is missing; looked under '", kTextLayouts[0].body, "', '", kTextLayouts[1].body,
             "', '", kTextLayouts[2].body, "'");
  HR_REQUIRE(found.size() == 1, ErrorCode::kModelFile, checkpoint.origin(), ": embed_tokens.weight is stored under '",
             found[0].body, "' and under '", found[1].body, "'");
  return {WeightScope(checkpoint, std::string(found[0].body)), WeightScope(checkpoint, std::string(found[0].head))};
}

void check_tied_head(const TextWeights& weights, const Shape& shape) {
  const WeightScope lm_head = weights.head.scope("lm_head"), embed_tokens = weights.body.scope("embed_tokens");
  for (const WeightScope& scope : {lm_head, embed_tokens}) {
    HR_REQUIRE(!scope.is_adapted("weight"), ErrorCode::kUnsupported, scope.origin(), ": the adapter changes '",
               scope.full_name("weight"),
               "', which tie_word_embeddings ties to another: adapters of tied weights are not supported");
  }
  if (!lm_head.has("weight")) return;
  const TensorView head = lm_head.host_tensor("weight", shape), embedding = embed_tokens.host_tensor("weight", shape);
  const bool same = head.dtype() == embedding.dtype() &&
                    std::memcmp(head.data(), embedding.data(), static_cast<size_t>(head.bytes())) == 0;
  HR_REQUIRE(same, ErrorCode::kModelFile, lm_head.origin_of("weight"), ": tensor '", lm_head.full_name("weight"),
             "' differs from '", embed_tokens.full_name("weight"),
             "', to which tie_word_embeddings ties it; state false to use it");
}

}  // namespace headrace
