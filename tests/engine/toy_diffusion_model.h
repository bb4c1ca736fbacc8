// A diffusion model without weights: each row is sure of a token that depends on its position alone, and which rows are
// sure is scripted.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/models/model.h"

namespace headrace::testing_support {

struct ToyScript {
  int32_t block_size = 4;
  int32_t sub_block_size = 0;          // 0: the block has no parts
  int32_t sure_masks = 2;              // leftmost masks of every block that pass any threshold below 0.99
  int32_t eos_at = -1;                 // position whose token is the end token; -1: none
  std::vector<int32_t> more_eos = {};  // end tokens besides
  DiffusionInfo::LogitsOf logits_of = DiffusionInfo::LogitsOf::kSame;
  DiffusionInfo::Attention attention = DiffusionInfo::Attention::kBlockCausal;
  bool fickle = false;        // wants another token than it reads wherever it reads one, never quite surely
  double fickle_logit = 5.5;  // 0 for all others: a probability of 0.72
};

class ToyDiffusionModel final : public Model {
 public:
  static constexpr int32_t kVocab = 97, kMask = 95, kEos = 96, kPageSize = 16;

  explicit ToyDiffusionModel(const ToyScript& script);

  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override;

  static int32_t token_at(int32_t position) { return (position * 7 + 3) % 90; }
  // What it writes at positions [begin, begin + count).
  static std::vector<int32_t> tokens(int32_t begin, int32_t count);

  mutable std::vector<int64_t> rows, logits_rows;  // of each pass

 private:
  void write_logits(const Tensor& logits, int64_t at, const ForwardBatch& batch, const KeySpan& span,
                    int32_t row) const;

  ToyScript script_;
  ModelInfo info_;
};

// A causal model that writes the same tokens.
class ByPosition final : public Model {
 public:
  ByPosition();
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override;

 private:
  ModelInfo info_;
};

// A prompt without masks and end tokens.
std::vector<int32_t> prompt_of(int32_t length);

}  // namespace headrace::testing_support
