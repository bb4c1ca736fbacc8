#include "headrace/weights/weight_scope.h"

#include <array>
#include <cstring>
#include <vector>

namespace headrace {
namespace {

struct Layout {
  const char *body, *head;
};

constexpr std::array<Layout, 3> kLayouts = {{
    {"model.", ""},
    {"model.language_model.", ""},
    {"language_model.model.", "language_model."},
}};

}  // namespace

TensorView WeightScope::checked(std::string_view name, const TensorView& weight) const {
  const DType dtype = weight.dtype();
  HR_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, ErrorCode::kUnsupported, "tensor '",
             full_name(name), "' is ", name_of(dtype), ", expected float32, bfloat16 or float16");
  return weight;
}

TextWeights find_text_weights(Checkpoint& checkpoint) {
  std::vector<Layout> found;
  for (const Layout& layout : kLayouts)
    if (checkpoint.has(str(layout.body, "embed_tokens.weight"))) found.push_back(layout);
  if (checkpoint.is_random()) found.push_back(kLayouts[0]);
  HR_REQUIRE(!found.empty(), ErrorCode::kModelFile, "checkpoint: embed_tokens.weight is missing; looked under '",
             kLayouts[0].body, "', '", kLayouts[1].body, "', '", kLayouts[2].body, "'");
  HR_REQUIRE(found.size() == 1, ErrorCode::kModelFile, "checkpoint: embed_tokens.weight is stored under '",
             found[0].body, "' and under '", found[1].body, "'");
  return {WeightScope(checkpoint, found[0].body), WeightScope(checkpoint, found[0].head)};
}

void check_tied_head(const TextWeights& weights, const Shape& shape) {
  const WeightScope lm_head = weights.head.scope("lm_head"), embed_tokens = weights.body.scope("embed_tokens");
  if (!lm_head.has("weight")) return;
  const TensorView head = lm_head.host_tensor("weight", shape), embedding = embed_tokens.host_tensor("weight", shape);
  const bool same = head.dtype() == embedding.dtype() &&
                    std::memcmp(head.data(), embedding.data(), static_cast<size_t>(head.bytes())) == 0;
  HR_REQUIRE(same, ErrorCode::kModelFile, "tensor '", lm_head.full_name("weight"), "' differs from '",
             embed_tokens.full_name("weight"), "', to which tie_word_embeddings ties it; state false to use it");
}

}  // namespace headrace
