// Per-row results of sampling on a device, and their asynchronous copy to the host.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/sample_tokens.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

// A row of logits whose log-probabilities are wanted, in the distribution of SampledToken::logprob.
struct LogprobRow {
  int32_t row = 0;
  int32_t token = -1;  // that of this token; -1: none
  int32_t count = 0;   // those of so many of the likeliest
};

struct RowLogprobs {
  float logprob = 0;              // of LogprobRow::token; NaN if a logit of the row is
  std::vector<TokenLogprob> top;  // descending
};

// Not thread-safe.
class RowsInFlight {
 public:
  // `runtime` is not owned and outlives the object.
  explicit RowsInFlight(DeviceRuntime& runtime) : changes(runtime), runtime_(runtime) {}
  RowsInFlight(const RowsInFlight&) = delete;
  RowsInFlight& operator=(const RowsInFlight&) = delete;
  ~RowsInFlight();

  LogitChanges changes;  // of the rows, before tokens are sampled: listed before begin()
  // Prepares the tensors below for `rows` rows; they are valid until the next begin(). Waits for results that were sent
  // and not received. Error kOutOfMemory, kCuda.
  void begin(int64_t rows, std::span<const LogprobRow> logprobs);
  // Outputs of token_confidence and sample_tokens on the device (TokenConfidenceArgs, SampleTokensArgs). model_stats:
  // `stats` before the change, of changes.changed_rows() alone.
  TensorView best, stats, ids, chosen, model_stats, draws;
  // scored: float32, a logit for each LogprobRow with a token. top_ids and top: outputs of top_tokens for those with
  // a count, int32 and float32 [rows, largest count].
  TensorView scored, top_ids, top;
  TensorView model_logits;  // float32 [changes.num_additions()], from LogitsProcessor

  // Queues the copy to the host. `tokens`: the step's tokens, either `ids` or `best`.
  void send(const TensorView& tokens);
  TensorView tokens() const { return tokens_; }
  // Waits for this copy, not for work queued behind it, and returns its rows, which refer to `changes`. After
  // send(best), ids and logits are those of the most likely tokens. Error kCuda.
  ChosenRows receive();
  // Returns the log-probabilities of the LogprobRows, in their order, once `rows` are received.
  std::vector<RowLogprobs> logprobs(const ChosenRows& rows) const;

 private:
  void make_room(int64_t words, int64_t rows);
  const char* on_host(const TensorView& there) const;
  void give_back() noexcept;

  DeviceRuntime& runtime_;  // not owned
  std::unique_ptr<DeviceEvent> arrived_;
  Tensor memory_, draws_;
  TensorView tokens_;
  std::vector<LogprobRow> asked_;
  int64_t capacity_ = 0, rows_ = 0;  // capacity_: words of memory_
  int64_t words_ = 0;                // of this step
  bool is_sent_ = false;             // and not received
  void* host_ = nullptr;             // pinned copy of memory_
};

}  // namespace headrace
