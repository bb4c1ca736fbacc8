#include "toy_diffusion_model.h"

#include "headrace/core/error.h"

namespace headrace::testing_support {

ToyDiffusionModel::ToyDiffusionModel(const ToyScript& script) : script_(script) {
  info_ = {.architecture = "toy diffusion",
           .vocab_size = kVocab,
           .context_length = 256,
           .num_layers = 1,
           .eos_ids = {kEos},
           .kv_groups = {{{1, 4, 4}, {0}}},
           .full_attn_layer_ids = {0},
           .dtype = DType::kF32};
  info_.eos_ids.insert(info_.eos_ids.end(), script.more_eos.begin(), script.more_eos.end());
  info_.diffusion =
      DiffusionInfo{.mask_token_id = kMask,
                    .block_size = script.block_size,
                    .sub_block_size = script.sub_block_size > 0 ? script.sub_block_size : script.block_size,
                    .attention = script.attention,
                    .logits_of = script.logits_of,
                    .threshold = 0.9f};
}

void ToyDiffusionModel::write_logits(const Tensor& logits, int64_t at, const ForwardBatch& batch, const KeySpan& span,
                                     int32_t row) const {
  const auto ids = batch.input_ids.as<const int32_t, 1>("ids");
  const int32_t shift = script_.logits_of == DiffusionInfo::LogitsOf::kBefore ? 1 : 0;
  const int32_t decides = span.phys0 + row - span.q_off + shift,
                block_begin = decides / script_.block_size * script_.block_size;
  int32_t masks_before = 0;
  for (int32_t p = std::max(block_begin, span.phys0); p < decides; ++p) {
    masks_before += ids(span.q_off + p - span.phys0) == kMask ? 1 : 0;
  }
  const int32_t token = decides == script_.eos_at ? kEos : token_at(decides);
  // Later masks prefer the same token, less than any threshold and less the further they are.
  const double sure = masks_before < script_.sure_masks ? 20.0 : 4.0 - 0.1 * masks_before;
  if (script_.fickle) {
    const int32_t now = ids(row);
    set_element(logits, at * kVocab + (now == token ? (token + 1) % 90 : token), script_.fickle_logit);
  } else {
    set_element(logits, at * kVocab + token, sure);
  }
  set_element(logits, at * kVocab + kMask, 30.0);  // a model may want the mask; it must never get it
}

Tensor ToyDiffusionModel::forward(const ForwardBatch& batch) const {
  batch.attn.validate(kPageSize);
  Tensor logits = Tensor::zeros(DType::kF32, {static_cast<int64_t>(batch.logits_rows.size()), kVocab});
  int64_t at = 0;
  for (const KeySpan& span : batch.attn.spans) {
    for (; at < logits.dim(0); ++at) {
      const int32_t row = batch.logits_rows[static_cast<size_t>(at)];
      if (row >= span.q_off + span.q_len) break;
      write_logits(logits, at, batch, span, row);
    }
  }
  HR_REQUIRE(at == logits.dim(0), ErrorCode::kInternal, "toy model: ", logits.dim(0) - at,
             " logits rows belong to no span");
  rows.push_back(batch.num_tokens());
  logits_rows.push_back(logits.dim(0));
  return logits;
}

std::vector<int32_t> ToyDiffusionModel::tokens(int32_t begin, int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t p = begin; p < begin + count; ++p) ids.push_back(token_at(p));
  return ids;
}

ByPosition::ByPosition() {
  info_ = {.architecture = "by position",
           .vocab_size = ToyDiffusionModel::kVocab,
           .context_length = 1024,
           .num_layers = 1,
           .kv_groups = {{{1, 4, 4}, {0}}},
           .full_attn_layer_ids = {0},
           .dtype = DType::kF32};
}

Tensor ByPosition::forward(const ForwardBatch& batch) const {
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  Tensor logits = Tensor::zeros(DType::kF32, {rows, info_.vocab_size});
  const auto positions = batch.positions.as<const int32_t, 1>("positions");
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t next = positions(batch.logits_rows[static_cast<size_t>(r)]) + 1;
    set_element(logits, r * info_.vocab_size + ToyDiffusionModel::token_at(next), 20);
  }
  return logits;
}

std::vector<int32_t> prompt_of(int32_t length) {
  std::vector<int32_t> prompt;
  for (int32_t p = 0; p < length; ++p) prompt.push_back(1 + p % 60);
  return prompt;
}

}  // namespace headrace::testing_support
