// What a device says of rows of logits, and its way to the host.
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

  enum class Changed : uint8_t { kNo, kYes };  // whether the model's rows are, before they are read
  // Where the device writes `rows` of them; valid until the next begin(). What was sent before has been received.
  // Error kOutOfMemory.
  void begin(int64_t rows, Changed changed);
  // As TokenConfidenceArgs and SampleTokensArgs have them; model_stats: of rows that are changed, before they were.
  TensorView best, stats, ids, chosen, model_stats, draws;

  // `tokens`, ids or best, are what the rows are read as. Queues the way to the host.
  void send(const TensorView& tokens);
  TensorView tokens() const { return tokens_; }
  // Waits for it alone, not for what was queued behind. Without draws, ids and logits are the most likely ones'. Error
  // kCuda.
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
  void* host_ = nullptr;  // as memory_
};

}  // namespace headrace
