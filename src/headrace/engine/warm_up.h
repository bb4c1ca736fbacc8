// Requests of a warm-up: they run with the real shapes and leave nothing behind.
#pragma once
#include <deque>
#include <vector>

#include "headrace/batch/forward_batch.h"
#include "headrace/cache/req_to_token_pool.h"

namespace headrace {

// A prompt of any length runs in chunks, each as if nothing came before it, then single rows as decoding has them. No
// row is stored, no recurrent state is kept, no slot of any pool is taken. Not thread-safe.
class WarmUpQueue {
 public:
  bool empty() const { return requests_.empty(); }
  int64_t first() const { return requests_.front().id; }  // whose step is next
  void add(int64_t id, std::vector<int32_t> prompt, int32_t max_tokens);
  void remove(int64_t id);  // an unknown id is ignored

  // The next step of the oldest request, at most `max_rows` of it; the request goes when this was its last one.
  // Valid until the next call.
  enum class States : uint8_t { kNone, kRecurrent };  // of the model
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
