// One block of threads for the whole batch: a thread advances a request, a scan finds where its rows go, a warp writes
// them, or all threads those of a canvas. A step's work is a few thousand words, so that a second block would only add
// a launch. Where few requests leave it small, it comes while the head still runs, and rehearses: it goes through all
// of itself once and writes nothing, so that its instructions and what it reads are there when the step has ended.
#include "headrace/kernels/cuda/block_step.h"

#include <algorithm>

#include "headrace/batch/attn_metadata.h"
#include "headrace/kernels/cuda/primitives/launch.cuh"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kMostThreads = kMaxBlockRequests, kMostWarps = kMostThreads / 32, kFewestThreads = 128;
constexpr int kRehearsedThreads = 256;  // beside a chain of products no more find registers
static_assert(kRehearsedThreads <= kMostThreads);

__device__ int num_threads() { return static_cast<int>(blockDim.x); }

struct Params {
  const int32_t* best;
  const float* stats;  // [rows, 4]
  BlockState* states;
  int32_t* tokens;
  int64_t tokens_stride;
  int32_t* counter;
  const int32_t* sizes;
  int block_sizes, num_sizes, requests, spans, logits_capacity, block_size, mask_token_id, page_size;
  KeySpan* to_spans;
  int32_t *ids, *positions, *logits_rows, *num_rows;
  int64_t* write_slots;
  const int32_t* page_table;
  int64_t table_stride;
  volatile BlockReport* report;
  int32_t* results;
  int results_rows;
};

// Rows in the upper half, logits rows in the lower one. Exclusive; `total` is of the whole block.
__device__ unsigned long long scan(unsigned long long mine, unsigned long long& total) {
  __shared__ unsigned long long of_warp[kMostWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned long long upto = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned long long other = __shfl_up_sync(0xffffffffu, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == 31) of_warp[warp] = upto;
  __syncthreads();
  unsigned long long before = 0;
  total = 0;
#pragma unroll 1
  for (int w = 0; w < num_threads() / 32; ++w) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  return before + upto - mine;
}

// Rows of request `r`, which so many threads share. Here and below, a rehearsal is not `real` and writes nothing.
__device__ void write_rows(const Params& p, bool real, int r, const BlockState& s, int row0, int thread, int threads) {
  const int rows = s.num_rows(p.block_size), stored = s.num_stored(p.block_size);
  const int32_t* tokens = p.tokens + r * p.tokens_stride + s.first_token(p.block_size);
  const int32_t* pages = p.page_table + s.page_row * p.table_stride;
#pragma unroll 1
  for (int i = thread; i < rows; i += threads) {
    const int position = s.first_position() + i, token = tokens[i];
    const int64_t slot =
        i < stored ? int64_t{pages[position / p.page_size]} * p.page_size + position % p.page_size : kDoNotStore;
    if (!real) continue;
    p.ids[row0 + i] = token;
    p.positions[row0 + i] = position;
    p.write_slots[row0 + i] = slot;
  }
}

// A warp writes what the next step runs of request `r`, but for the rows of a canvas.
__device__ void lay_out(const Params& p, bool real, int r, const BlockState& s, int row0) {
  const int lane = threadIdx.x % 32;
  const KeySpan span = s.span(row0, p.block_size);
  if (lane == 0 && real) p.to_spans[r] = span;
  if (s.running == 0) return;
  if (!s.runs_canvas()) write_rows(p, real, r, s, row0, lane, 32);
  int logit = s.first_logit;
  const int end = logit + s.num_samples(p.block_size);
#pragma unroll 1
  for (int base = 0; base < p.block_size; base += 32) {
    const int at = base + lane;
    const bool masked = at < p.block_size && s.is_masked(at);
    const unsigned all = __ballot_sync(0xffffffffu, masked);
    const int mine = logit + __popc(all & ((1u << lane) - 1));
    if (masked && mine < end && real) p.logits_rows[mine] = row0 + s.row_of(at);
    logit += __popc(all);
  }
  if (lane == 0 && real && s.has_parts() && s.pass == BlockState::Pass::kClean) {
    p.logits_rows[s.first_logit] = row0 + s.row_of(p.block_size);
  }
}

// The smallest that holds the step, of those for blocks if there is one and nobody runs a canvas.
struct Size {
  int rows = 0, of_canvases = 0;
};
__device__ Size size_of(const Params& p, int rows, bool any_canvas) {
  if (rows == 0) return {};
#pragma unroll 1
  for (int i = any_canvas ? p.block_sizes : 0; i < p.num_sizes; ++i) {
    if (p.sizes[i] >= rows) return {p.sizes[i], i < p.block_sizes ? 0 : 1};
  }
  return {};
}

__device__ void pad(const Params& p, bool real, int rows, int logits, int size) {
  const int end = max(rows, size);
#pragma unroll 1
  for (int r = p.requests + threadIdx.x; r < p.spans; r += num_threads()) {
    KeySpan span{.q_off = rows, .q_len = 0};
    if (r == p.spans - 1) span.q_len = end - rows, span.kind = KeySpan::Kind::kNone;
    if (real) p.to_spans[r] = span;
  }
#pragma unroll 1
  for (int i = rows + threadIdx.x; i < end; i += num_threads()) {
    if (!real) continue;
    p.ids[i] = p.positions[i] = 0;
    p.write_slots[i] = kDoNotStore;
  }
#pragma unroll 1
  for (int i = logits + threadIdx.x; i < p.logits_capacity; i += num_threads()) {
    if (real) p.logits_rows[i] = 0;
  }
}

__device__ void give_results(const Params& p, int step, int count) {
  int32_t* to = p.results + static_cast<int64_t>(step % 2) * p.results_rows * 5;
#pragma unroll 1
  for (int i = threadIdx.x; i < count * 5; i += num_threads()) {
    const int row = i / 5, field = i % 5;
    to[i] = field == 0 ? p.best[row] : __float_as_int(p.stats[row * 4 + field - 1]);
  }
}

// Of the step that was laid out.
struct Totals {
  int rows, logits, running;
  Size size;
};

// One thread tells the host, which may start the next step while this one's rows are still written: its kernels come
// behind this one. Everything that the host reads was written before the block last met.
__device__ void report(const Params& p, int step, const Totals& of) {
  p.counter[0] = step, p.counter[1] = of.logits;
  *p.num_rows = of.rows;
  p.report->rows = of.rows, p.report->logits_rows = of.logits, p.report->running = of.running;
  p.report->size = of.size.rows, p.report->canvases = of.size.of_canvases;
  __threadfence_system();
  p.report->step = step;
}

// What advance() reads and changes of a request: in a rehearsal words of nobody, since what the model says is not
// there.
struct Decided {
  const int32_t* best;
  const float* stats;
  int32_t* tokens;
};

__device__ void run(const Params& p, bool real, int step, const Decided& decided, int* row0_of) {
  const int r = threadIdx.x, warps = num_threads() / 32;
  BlockState s;
  if (r < p.requests) {
    s = p.states[r];
    s.advance(decided.best, decided.stats, p.block_size, p.mask_token_id, decided.tokens);
  }
  const int rows = r < p.requests ? s.num_rows(p.block_size) : 0, logits = rows > 0 ? s.num_samples(p.block_size) : 0;
  unsigned long long total = 0;
  const unsigned long long before =
      scan(static_cast<unsigned long long>(rows) << 32 | static_cast<unsigned>(logits), total);
  row0_of[r] = static_cast<int>(before >> 32);
  if (r < p.requests && real) {
    s.first_logit = rows > 0 ? static_cast<int>(before & 0xffffffffu) : 0;
    p.states[r] = s;
  }
  const bool any_canvas = __syncthreads_or(r < p.requests && s.runs_canvas()) != 0;
  Totals of{.rows = static_cast<int>(total >> 32), .logits = static_cast<int>(total & 0xffffffffu)};
  of.running = __syncthreads_count(rows > 0);  // states and tokens are visible to the block's warps from here on
  of.size = size_of(p, of.rows, any_canvas);
  if (r == num_threads() - 1 && real) report(p, step, of);
#pragma unroll 1
  for (int i = r / 32; i < p.requests; i += warps) lay_out(p, real, i, p.states[i], row0_of[i]);
#pragma unroll 1
  for (int i = 0; any_canvas && i < p.requests; ++i) {
    if (p.states[i].runs_canvas()) write_rows(p, real, i, p.states[i], row0_of[i], r, num_threads());
  }
  pad(p, real, of.rows, of.logits, of.size.rows);
}

// Before the wait it reads what nobody writes between two of these: the states, and where their rows lie.
__global__ void __launch_bounds__(kMostThreads, 1) step_blocks(const __grid_constant__ Params p) {
  extern __shared__ int row0_of[];
  int32_t nobodys[4 * BlockState::kMaxBlock] = {};
  const int r = threadIdx.x, step = p.counter[0] + 1, results = p.counter[1];
  const bool has_canvas = r < p.requests && p.states[r].has_canvas();  // which `nobodys` has no room for
  bool real = num_threads() > kRehearsedThreads || __syncthreads_or(has_canvas) != 0;
#pragma unroll 1
  for (;; real = true) {
    Decided decided{nobodys, reinterpret_cast<const float*>(nobodys), nobodys};
    if (real) {
      wait_for_previous();
      give_results(p, step, results);
      const int first = r < p.requests ? p.states[r].first_logit : 0;
      decided = {p.best + first, p.stats + 4 * first, p.tokens + r * p.tokens_stride};
    }
    run(p, real, step, decided, row0_of);
    if (real) return;
    __syncthreads();  // all have read what a rehearsal wrote into shared memory
  }
}

}  // namespace

void block_step(const BlockStepArgs& a, const OpContext& context) {
  check(a);
  const Stream& stream = stream_of(context);
  const Params p{.best = static_cast<const int32_t*>(a.best.data()),
                 .stats = static_cast<const float*>(a.stats.data()),
                 .states = static_cast<BlockState*>(a.states.data()),
                 .tokens = static_cast<int32_t*>(a.tokens.data()),
                 .tokens_stride = a.tokens.dim(1),
                 .counter = static_cast<int32_t*>(a.counter.data()),
                 .sizes = static_cast<const int32_t*>(a.sizes.data()),
                 .block_sizes = a.block_sizes,
                 .num_sizes = static_cast<int>(a.sizes.numel()),
                 .requests = static_cast<int>(a.requests()),
                 .spans = static_cast<int>(a.rows.num_spans()),
                 .logits_capacity = static_cast<int>(a.rows.logits_rows.numel()),
                 .block_size = a.block_size,
                 .mask_token_id = a.mask_token_id,
                 .page_size = a.page_size,
                 .to_spans = static_cast<KeySpan*>(a.rows.spans.data()),
                 .ids = static_cast<int32_t*>(a.rows.ids.data()),
                 .positions = static_cast<int32_t*>(a.rows.positions.data()),
                 .logits_rows = static_cast<int32_t*>(a.rows.logits_rows.data()),
                 .num_rows = static_cast<int32_t*>(a.rows.num_rows.data()),
                 .write_slots = static_cast<int64_t*>(a.rows.write_slots.data()),
                 .page_table = static_cast<const int32_t*>(a.rows.page_table.data()),
                 .table_stride = a.rows.page_table.stride(0),
                 .report = static_cast<volatile BlockReport*>(a.report.data()),
                 .results = static_cast<int32_t*>(a.results.data()),
                 .results_rows = static_cast<int>(a.results.dim(1))};
  const int threads = std::clamp(32 * p.requests, kFewestThreads, kMostThreads);
  launch_early(stream, step_blocks, dim3(1), dim3(static_cast<unsigned>(threads)),
               static_cast<size_t>(threads) * sizeof(int), p, "block_step");
}

}  // namespace headrace::cuda
