// Per-row results of sampling on a device, and their asynchronous copy to the host.
#pragma once
#include <memory>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/sample_tokens.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

// Not thread-safe.
class RowsInFlight {
 public:
  // `runtime` is not owned and outlives the object.
  explicit RowsInFlight(DeviceRuntime& runtime) : runtime_(runtime) {}
  RowsInFlight(const RowsInFlight&) = delete;
  RowsInFlight& operator=(const RowsInFlight&) = delete;
  ~RowsInFlight();

  enum class Changed : uint8_t { kNo, kYes };  // kYes: logits are changed before tokens are sampled
  // Prepares the tensors below for `rows` rows; they are valid until the next begin(). Results sent before must have
  // been received. Error kOutOfMemory.
  void begin(int64_t rows, Changed changed);
  // Outputs of token_confidence and sample_tokens on the device (TokenConfidenceArgs, SampleTokensArgs). model_stats:
  // `stats` of changed rows before the change.
  TensorView best, stats, ids, chosen, model_stats, draws;

  // Queues the copy to the host. `tokens`: the step's tokens, either `ids` or `best`.
  void send(const TensorView& tokens);
  TensorView tokens() const { return tokens_; }
  // Waits for this copy, not for work queued behind it, and returns its rows. After send(best), ids and logits are
  // those of the most likely tokens. Error kCuda.
  ChosenRows receive();

 private:
  void make_room(int64_t rows);
  void give_back() noexcept;

  DeviceRuntime& runtime_;  // not owned
  std::unique_ptr<DeviceEvent> arrived_;
  Tensor memory_, draws_;
  TensorView tokens_;
  int64_t capacity_ = 0, rows_ = 0;
  Changed changed_ = Changed::kNo;
  void* host_ = nullptr;  // pinned copy of memory_
};

}  // namespace headrace
