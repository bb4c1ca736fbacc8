// Warm-up requests: they run with real shapes and leave no state behind.
#pragma once
#include <deque>
#include <vector>

#include "headrace/batch/forward_batch.h"
#include "headrace/cache/req_to_token_pool.h"

namespace headrace {

// A prompt of any length runs in chunks, each without a prefix, then as single tokens, as in decoding. No K and V are
// stored, no recurrent state is kept, no pool slot is taken. Not thread-safe.
class WarmUpQueue {
 public:
  bool empty() const { return requests_.empty(); }
  int64_t first() const { return requests_.front().id; }  // request whose step is next
  void add(int64_t id, std::vector<int32_t> prompt, int32_t max_tokens);
  void remove(int64_t id);  // an unknown id is ignored

  // Returns the next step of the oldest request, at most `max_rows` tokens of it, and drops the request after its last
  // one. Valid until the next call.
  enum class States : uint8_t { kNone, kRecurrent };  // recurrent states of the model
  const ForwardBatch& next(int32_t max_rows, States states, const ReqToTokenPool& table, AttentionBackend* backend);

 private:
  struct Request {
    int64_t id = 0;
    std::vector<int32_t> prompt;
    int32_t num_run = 0, outputs_left = 0;
  };
  std::deque<Request> requests_;
  std::vector<int32_t> ids_, positions_;
  std::vector<int64_t> write_slots_;
  ForwardBatch batch_;
};

}  // namespace headrace
