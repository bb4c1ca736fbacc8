// Runs golden checkpoints: a model with pools for one sequence, and the tensors beside it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "headrace/attention/attention_backend.h"
#include "headrace/batch/device_batch.h"
#include "headrace/cache/req_to_token_pool.h"
#include "headrace/models/model_registry.h"
#include "support/all_close.h"
#include "support/source_tree.h"

namespace headrace::test {

using testing_support::golden_folder;

// A tensor of tests/golden/<family>/golden.safetensors: floats as float32, integers as int32. <family>_released, which
// is the same network, has those of <family>.
Tensor golden_tensor(const std::string& family, std::string_view name);
// 1e-4 of the largest logit, or of 1.
testing_support::Tolerance float32_tolerance(const Tensor& logits);

// Holds at most 128 tokens.
class GoldenRunner {
 public:
  GoldenRunner(const std::filesystem::path& directory, const OpSet& ops, DType dtype,
               Determinism determinism = Determinism::kFast,
               const std::optional<std::filesystem::path>& adapter = std::nullopt,
               DeviceRuntime& runtime = cpu_runtime(), std::optional<DType> kv_dtype = std::nullopt);

  struct Part {
    int32_t begin = 0, end = 0;  // positions; those before it were run and stored
    KeySpan::Kind kind = KeySpan::Kind::kCausal;
    int32_t block_size = 1;
    enum class Store : uint8_t { kYes, kNo } store = Store::kYes;
    std::optional<TokenMerge> token_merge;
    std::optional<SelfConditioning> self_conditioning;
    int32_t logits_every = 1;  // logits are wanted of every so-manyth row alone
  };
  // Runs ids[part.begin, part.end) and writes the same rows of `logits` [text, vocab], as far as they are wanted.
  void run(const TensorView& ids, const Part& part, const TensorView& logits);
  const ModelInfo& info() const { return model_->info(); }

 private:
  DeviceRuntime& runtime_;
  std::unique_ptr<Model> model_;
  KVPool kv_;
  std::unique_ptr<GDNPool> gdn_;
  ReqToTokenPool table_;
  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<DeviceBatch> device_batch_;  // null on the CPU
};

}  // namespace headrace::test
