#include "headrace/engine/warm_up.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace headrace {

void WarmUpQueue::add(int64_t id, std::vector<int32_t> prompt, int32_t max_tokens) {
  HR_REQUIRE(!prompt.empty(), ErrorCode::kInvalidArgument, "request ", id, ": the prompt is empty");
  requests_.push_back({.id = id, .prompt = std::move(prompt), .outputs_left = max_tokens});
}

void WarmUpQueue::remove(int64_t id) {
  std::erase_if(requests_, [id](const Request& request) { return request.id == id; });
}

const ForwardBatch& WarmUpQueue::next(int32_t max_rows, States states, const ReqToTokenPool& table,
                                      AttentionBackend* backend) {
  Request& request = requests_.front();
  const auto length = static_cast<int32_t>(request.prompt.size());
  const bool decodes = request.num_run == length;
  const int32_t rows = decodes ? 1 : std::min(max_rows, length - request.num_run);
  const auto first = request.prompt.begin() + (decodes ? length - 1 : request.num_run);
  ids_.assign(first, first + rows);
  positions_.resize(ids_.size());
  std::iota(positions_.begin(), positions_.end(), 0);  // counted within the chunk, so never past the model's context
  write_slots_.assign(ids_.size(), kDoNotStore);
  batch_ = {.mode = decodes ? ForwardMode::kDecode : ForwardMode::kExtend};
  batch_.attn = {.spans = {{.q_len = rows}},
                 .page_table = table.page_table(),
                 .write_slots = TensorView(write_slots_.data(), DType::kI64, {rows})};
  if (states == States::kRecurrent) batch_.attn.state_slots = {{}};
  batch_.input_ids = TensorView(ids_.data(), DType::kI32, {rows});
  batch_.positions = TensorView(positions_.data(), DType::kI32, {rows});
  batch_.logits_rows = {rows - 1};
  batch_.attn_backend = backend;
  request.num_run += decodes ? 0 : rows;
  request.outputs_left -= request.num_run == length ? 1 : 0;  // a prompt's last chunk yields the first token
  if (request.num_run == length && request.outputs_left <= 0) requests_.pop_front();
  return batch_;
}

}  // namespace headrace
