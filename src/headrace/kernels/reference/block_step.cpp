#include "headrace/kernels/block_step.h"

#include <algorithm>
#include <cstring>

#include "headrace/batch/attn_metadata.h"
#include "headrace/kernels/reference/reference_ops.h"

namespace headrace::reference {
namespace {

template <class T>
T* data(const TensorView& x) {
  return static_cast<T*>(x.data());
}

// Rows and logits that requests before took.
struct Taken {
  int32_t rows = 0, logits = 0;
};

void lay_out(const BlockStepArgs& a, int64_t request, BlockState& s, Taken& taken) {
  const int32_t rows = s.num_rows(a.block_size), waiting = s.begin - s.num_cached;
  KeySpan& span = data<KeySpan>(a.rows.spans)[request];
  span = {.q_off = taken.rows, .q_len = rows};
  if (rows == 0) return;
  span.ctx_len = span.phys0 = s.num_cached;
  span.kind = KeySpan::Kind::kBlock, span.block_size = a.block_size, span.page_row = s.page_row;
  const auto* tokens = data<const int32_t>(a.tokens) + request * 2 * a.block_size + a.block_size - waiting;
  const auto* pages = data<const int32_t>(a.rows.page_table) + s.page_row * a.rows.page_table.stride(0);
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t at = taken.rows + i, position = s.num_cached + i;
    data<int32_t>(a.rows.ids)[at] = tokens[i];
    data<int32_t>(a.rows.positions)[at] = position;
    data<int64_t>(a.rows.write_slots)[at] =
        i < waiting ? int64_t{pages[position / a.page_size]} * a.page_size + position % a.page_size : kDoNotStore;
  }
  s.first_logit = taken.logits;
  for (int32_t p = 0; p < a.block_size; ++p) {
    if (s.is_masked(p)) data<int32_t>(a.rows.logits_rows)[taken.logits++] = taken.rows + waiting + p;
  }
  taken.rows += rows;
}

void pad(const BlockStepArgs& a, const Taken& taken, int32_t size) {
  auto* spans = data<KeySpan>(a.rows.spans);
  for (int64_t r = a.requests(); r < a.rows.num_spans(); ++r) spans[r] = {.q_off = taken.rows, .q_len = 0};
  spans[a.rows.num_spans() - 1] = {.q_off = taken.rows, .q_len = size - taken.rows, .kind = KeySpan::Kind::kNone};
  for (int32_t i = taken.rows; i < size; ++i) {
    data<int32_t>(a.rows.ids)[i] = data<int32_t>(a.rows.positions)[i] = 0;
    data<int64_t>(a.rows.write_slots)[i] = kDoNotStore;
  }
  std::fill(data<int32_t>(a.rows.logits_rows) + taken.logits,
            data<int32_t>(a.rows.logits_rows) + a.rows.logits_rows.numel(), 0);
}

void give_results(const BlockStepArgs& a, int32_t step, int32_t count) {
  auto* to = data<int32_t>(a.results) + (step % 2) * a.results.dim(1) * 5;
  for (int32_t i = 0; i < count; ++i, to += 5) {
    to[0] = data<const int32_t>(a.best)[i];
    std::memcpy(to + 1, data<const float>(a.stats) + i * a.stats.stride(0), 4 * sizeof(float));
  }
}

}  // namespace

void block_step(const BlockStepArgs& a, const OpContext&) {
  check(a);
  auto* states = data<BlockState>(a.states);
  auto* counter = data<int32_t>(a.counter);
  Taken taken;
  BlockReport report{.step = counter[0] + 1};
  give_results(a, report.step, counter[1]);
  for (int64_t r = 0; r < a.requests(); ++r) {
    BlockState& s = states[r];
    s.advance(data<const int32_t>(a.best) + s.first_logit, data<const float>(a.stats) + int64_t{4} * s.first_logit,
              a.block_size, a.mask_token_id, data<int32_t>(a.tokens) + r * 2 * a.block_size);
    report.running += s.running != 0 ? 1 : 0;
    lay_out(a, r, s, taken);
  }
  report.rows = taken.rows, report.logits_rows = taken.logits;
  const auto* sizes = data<const int32_t>(a.sizes);
  const auto* size = std::lower_bound(sizes, sizes + a.sizes.numel(), taken.rows);
  report.size = taken.rows == 0 || size == sizes + a.sizes.numel() ? 0 : *size;
  *data<int32_t>(a.rows.num_rows) = taken.rows;
  pad(a, taken, std::max(report.size, taken.rows));
  counter[0] = report.step, counter[1] = taken.logits;
  *data<BlockReport>(a.report) = report;
}

}  // namespace headrace::reference
