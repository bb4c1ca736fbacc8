#include "headrace/ops/denoise_step.h"

#include <algorithm>
#include <cstring>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/reference/element.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

// Rows and logits rows of the requests so far.
struct Taken {
  int32_t rows = 0, logits = 0;
};

void lay_out(const DenoiseStepArgs& a, int64_t request, DenoiseState& s, Taken& taken) {
  const int32_t rows = s.num_rows(a.block_size), stored = s.num_stored(a.block_size);
  data<KeySpan>(a.rows.spans)[request] = s.span(taken.rows, a.block_size);
  if (rows == 0) return;
  const auto* tokens = data<const int32_t>(a.tokens) + request * a.tokens.dim(1) + s.first_token(a.block_size);
  const auto* pages = data<const int32_t>(a.rows.page_table) + s.page_row * a.rows.page_table.stride(0);
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t at = taken.rows + i, position = s.first_position() + i;
    data<int32_t>(a.rows.ids)[at] = tokens[i];
    data<int32_t>(a.rows.positions)[at] = position;
    data<int64_t>(a.rows.write_slots)[at] =
        i < stored ? int64_t{pages[position / a.page_size]} * a.page_size + position % a.page_size : kDoNotStore;
  }
  s.first_logit = taken.logits;
  const int32_t end = taken.logits + s.num_samples(a.block_size);
  for (int32_t p = 0; taken.logits < end; ++p) {  // a clean pass decides the position behind the block
    if (p < a.block_size && !s.is_masked(p)) continue;
    data<int32_t>(a.rows.logits_rows)[taken.logits] = taken.rows + s.row_of(p);
    data<TokenDraw>(a.draws)[taken.logits++] = s.draw_of(p);
  }
  taken.rows += rows;
}

// Sets report.size to the smallest size that holds the step. Prefers the sizes for steps without canvases, if no
// request runs a canvas and one of them is large enough.
void choose_size(const DenoiseStepArgs& a, DenoiseReport& report) {
  const auto* sizes = data<const int32_t>(a.sizes);
  const auto *blocks_end = sizes + a.block_sizes, *end = sizes + a.sizes.numel();
  const auto* size = std::lower_bound(sizes, blocks_end, report.rows);
  if (report.canvases != 0 || size == blocks_end) {
    size = std::lower_bound(blocks_end, end, report.rows);
    report.canvases = 1;
  }
  if (report.rows == 0 || size == end) {
    report.size = report.canvases = 0;
    return;
  }
  report.size = *size;
}

void pad(const DenoiseStepArgs& a, const Taken& taken, int32_t size) {
  auto* spans = data<KeySpan>(a.rows.spans);
  for (int64_t r = a.requests(); r < a.rows.num_spans(); ++r) spans[r] = {.q_off = taken.rows, .q_len = 0};
  spans[a.rows.num_spans() - 1] = {.q_off = taken.rows, .q_len = size - taken.rows, .kind = KeySpan::Kind::kNone};
  for (int32_t i = taken.rows; i < size; ++i) {
    data<int32_t>(a.rows.ids)[i] = data<int32_t>(a.rows.positions)[i] = 0;
    data<int64_t>(a.rows.write_slots)[i] = kDoNotStore;
  }
  std::fill(data<int32_t>(a.rows.logits_rows) + taken.logits,
            data<int32_t>(a.rows.logits_rows) + a.rows.logits_rows.numel(), 0);
  std::fill(data<TokenDraw>(a.draws) + taken.logits, data<TokenDraw>(a.draws) + a.draws.dim(0), TokenDraw{});
}

void give_results(const DenoiseStepArgs& a, int32_t step, int32_t count) {
  auto* to = data<int32_t>(a.results) + (step % 2) * a.results.dim(1) * kResultWords;
  for (int32_t i = 0; i < count; ++i, to += kResultWords) {
    to[0] = data<const int32_t>(a.best)[i];
    std::memcpy(to + 1, data<const float>(a.stats) + i * a.stats.stride(0), 4 * sizeof(float));
    to[5] = data<const int32_t>(a.ids)[i];
    std::memcpy(to + 6, data<const float>(a.logits) + i, sizeof(float));
  }
}

}  // namespace

void denoise_step(const DenoiseStepArgs& a, const OpContext&) {
  check(a);
  auto* states = data<DenoiseState>(a.states);
  auto* counter = data<int32_t>(a.counter);
  Taken taken;
  DenoiseReport report{.step = counter[0] + 1};
  give_results(a, report.step, counter[1]);
  for (int64_t r = 0; r < a.requests(); ++r) {
    DenoiseState& s = states[r];
    const int64_t first = s.first_logit;
    const BlockCandidates candidates{data<const int32_t>(a.ids) + first, data<const float>(a.logits) + first,
                                     data<const float>(a.stats) + 4 * first};
    s.advance(candidates, a.block_size, a.mask_token_id, data<int32_t>(a.tokens) + r * a.tokens.dim(1));
    report.running += s.running != 0 ? 1 : 0;
    if (s.runs_canvas()) report.canvases = 1;
    lay_out(a, r, s, taken);
  }
  report.rows = taken.rows, report.logits_rows = taken.logits;
  choose_size(a, report);
  *data<int32_t>(a.rows.num_rows) = taken.rows;
  pad(a, taken, std::max(report.size, taken.rows));
  counter[0] = report.step, counter[1] = taken.logits;
  *data<DenoiseReport>(a.report) = report;
}

}  // namespace headrace::reference
