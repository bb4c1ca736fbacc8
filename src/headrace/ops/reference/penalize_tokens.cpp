#include "headrace/ops/penalize_tokens.h"

#include "headrace/ops/penalty.h"
#include "headrace/ops/reference/element.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

void note(const PenalizeTokensArgs& a, int32_t text, int32_t id) {
  if (text < 0 || id < 0 || id >= a.vocab) return;
  auto& word = data<uint32_t>(a.seen)[text * a.seen.dim(1) + id / 32];
  word |= 1u << id % 32;
}

}  // namespace

void penalize_tokens(const PenalizeTokensArgs& a, const OpContext&) {
  check(a);
  const int64_t added = a.new_ids ? a.new_ids.numel() : 0, rows = a.logits.dim(0);
  const auto* texts = data<const int32_t>(a.texts);
  for (int64_t i = 0; i < added; ++i) note(a, data<const int32_t>(a.new_texts)[i], data<const int32_t>(a.new_ids)[i]);
  for (int64_t r = 0; r < rows; ++r) {
    const float penalty = data<const float>(a.penalties)[r];
    if (texts[r] < 0) continue;
    float* row = data<float>(a.logits) + r * a.logits.stride(0);
    const auto* seen = data<const uint32_t>(a.seen) + texts[r] * a.seen.dim(1);
    for (int32_t id = 0; id < a.vocab; ++id) {
      if ((seen[id / 32] >> id % 32 & 1) != 0) row[id] = penalized(row[id], penalty);
    }
  }
}

}  // namespace headrace::reference
