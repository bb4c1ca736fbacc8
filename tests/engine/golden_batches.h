// Sequences of one model, most often a golden one, run together in whatever batches a test asks for, through the
// engine's own builder.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "headrace/engine/batch_builder.h"
#include "headrace/engine/model_runner.h"
#include "headrace/models/model_registry.h"
#include "support/source_tree.h"

namespace headrace::testing_support {

// The causal families that have a golden checkpoint, by folder.
std::vector<std::string> golden_families();

class GoldenBatches {
 public:
  static constexpr int32_t kVocab = 272, kMaxSequences = 4;  // of every causal golden checkpoint

  GoldenBatches(const std::filesystem::path& model, const OpSet& ops, DType dtype, OpContext context = {.threads = 2});
  // Any model, where `runner` says, whose pools are made to fit.
  GoldenBatches(std::unique_ptr<Model> model, const RunnerConfig& runner, int32_t max_sequences);

  // A sequence of `length` tokens that follow from the seed; returns its index.
  size_t add(uint64_t seed, int32_t length);

  struct Share {
    size_t sequence = 0;
    int32_t count = 0;         // of its next tokens; those that are left, when fewer
    int32_t wanted = 1 << 20;  // logits of this many of them, from the last one back
  };
  // One forward pass.
  void step(const std::vector<Share>& shares);

  // float32 [length, vocab]: NaN where no step wanted them.
  const Tensor& logits(size_t sequence) const { return logits_[sequence]; }
  int32_t left(size_t sequence) const { return sequences_[sequence]->num_tokens() - sequences_[sequence]->num_cached; }
  int64_t num_graph_steps() const { return runner_.num_graph_steps(); }

 private:
  int32_t vocab() const { return model_->info().vocab_size; }

  std::unique_ptr<Model> model_;
  ModelRunner runner_;
  int32_t max_sequences_;
  ReqToTokenPool table_;
  BatchBuilder builder_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<Tensor> logits_;
};

}  // namespace headrace::testing_support
