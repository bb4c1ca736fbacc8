// Denoise step in one CTA for the whole batch. A thread advances a request, whose state is in shared memory; a scan
// places its rows; all threads write them. A step writes a few thousand words, so more CTAs would only cost launch
// time.
//
// The kernel starts while the head GEMM or the readers of its logits still run, and rehearses: it runs all of its code
// once without writing anything. Its instructions and inputs are then cached when the step has ended.
#include "headrace/ops/cuda/diffusion/denoise_step.h"

#include <algorithm>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

// More threads would find no free registers beside a GEMM sequence or CTAs that read logits.
constexpr int kThreads = 128, kWarps = kThreads / 32;

struct Params {
  const int32_t* best;
  const float* stats;  // [rows, 4]
  const int32_t* drawn;
  const float* logits;
  TokenDraw* draws;
  DenoiseState* states;
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
  volatile DenoiseReport* report;
  int32_t* results;
  int results_rows;
};

// Exclusive scan; rows in the upper half, logits rows in the lower half. `total` is the sum over the CTA.
__device__ unsigned long long scan(unsigned long long mine, unsigned long long& total) {
  __shared__ unsigned long long of_warp[kWarps];
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
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  return before + upto - mine;
}

// Rows of a request in the step.
struct Spot {
  int row0, first_position, stored, first_token, page_row;
  int row_of_block;  // the row that decides the open block's first token
  int first_logit, last_logit;

  __device__ Spot(const DenoiseState& s, int row0, int logits, int block_size)
      : row0(row0),
        first_position(s.first_position()),
        stored(s.num_stored(block_size)),
        first_token(s.first_token(block_size)),
        page_row(s.page_row),
        row_of_block(row0 + s.row_of(0)),
        first_logit(s.first_logit),
        last_logit(s.first_logit + logits - 1) {}
};

// A group of requests processed together, one per thread.
struct Turn {
  int first, count;
  DenoiseState* states;
  Spot* spots;
};

// Loads states before pdl_wait(): no other kernel writes them between two denoise steps.
__device__ void load_states(const Params& p, const Turn& turn) {
  const int words = turn.count * static_cast<int>(sizeof(DenoiseState) / sizeof(int));
  const int* from = reinterpret_cast<const int*>(p.states + turn.first);
  __syncthreads();  // the previous states have been read
#pragma unroll 4
  for (int i = threadIdx.x; i < words; i += kThreads) reinterpret_cast<int*>(turn.states)[i] = from[i];
  __syncthreads();
}

__device__ void store_states(const Params& p, const Turn& turn) {
  const int words = turn.count * static_cast<int>(sizeof(DenoiseState) / sizeof(int));
  int* to = reinterpret_cast<int*>(p.states + turn.first);
#pragma unroll 4
  for (int i = threadIdx.x; i < words; i += kThreads) to[i] = reinterpret_cast<const int*>(turn.states)[i];
}

// Writes rows [begin, end), all rows of the turn. Here and below, a rehearsal (`real` false) writes nothing.
__device__ void write_rows(const Params& p, bool real, const Turn& turn, int begin, int end) {
#pragma unroll 1
  for (int i = begin + threadIdx.x; i < end; i += kThreads) {
    int r = 0;  // the last request that begins at or before the row
#pragma unroll 1
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (r + step < turn.count && turn.spots[r + step].row0 <= i) r += step;
    }
    const Spot& s = turn.spots[r];
    const int at = i - s.row0, position = s.first_position + at;
    const int token = p.tokens[(turn.first + r) * p.tokens_stride + s.first_token + at];
    int64_t slot = kDoNotStore;
    if (at < s.stored) {
      const int page = p.page_table[s.page_row * p.table_stride + position / p.page_size];
      slot = int64_t{page} * p.page_size + position % p.page_size;
    }
    if (!real) continue;
    p.ids[i] = token;
    p.positions[i] = position;
    p.write_slots[i] = slot;
  }
}

// Writes which rows have logits and how they are drawn: one thread per token of the open blocks.
__device__ void write_logits_rows(const Params& p, bool real, const Turn& turn) {
#pragma unroll 1
  for (int i = threadIdx.x; i < turn.count * p.block_size; i += kThreads) {
    const int r = i / p.block_size, at = i % p.block_size;
    const DenoiseState& state = turn.states[r];
    const Spot& s = turn.spots[r];
    const bool clean = state.has_parts() && state.pass == DenoiseState::Pass::kClean;  // the row behind the block
    if (clean ? at != 0 : !state.is_masked(at)) continue;
    int logit = s.first_logit + (at < 32 ? 0 : __popc(state.masked[0]));
    logit = clean ? s.first_logit : logit + __popc(state.masked[at / 32] & ((1u << at % 32) - 1));
    if (logit > s.last_logit) continue;
    const int token = clean ? p.block_size : at;
    const TokenDraw draw = state.draw_of(token);
    if (real) p.logits_rows[logit] = s.row_of_block + token, p.draws[logit] = draw;
  }
}

// Smallest size that holds the step. Sizes for blocks are used if no request runs a canvas and one is large enough.
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
  for (int r = p.requests + threadIdx.x; r < p.spans; r += kThreads) {
    KeySpan span{.q_off = rows, .q_len = 0};
    if (r == p.spans - 1) span.q_len = end - rows, span.kind = KeySpan::Kind::kNone;
    if (real) p.to_spans[r] = span;
  }
#pragma unroll 1
  for (int i = rows + threadIdx.x; i < end; i += kThreads) {
    if (!real) continue;
    p.ids[i] = p.positions[i] = 0;
    p.write_slots[i] = kDoNotStore;
  }
#pragma unroll 1
  for (int i = logits + threadIdx.x; i < p.logits_capacity; i += kThreads) {
    if (real) p.logits_rows[i] = 0;
    if (real && i < p.results_rows) p.draws[i] = {};
  }
}

// Copies the results of `count` rows to p.results. Each thread issues several loads before its first store.
__device__ void give_results(const Params& p, int step, int count) {
  constexpr int kWords = 4;
  constexpr int kOf = kResultWords;
  int32_t* to = p.results + static_cast<int64_t>(step % 2) * p.results_rows * kOf;
  int i = threadIdx.x;
  do {
    int words[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int at = i + k * kThreads, row = at / kOf, field = at % kOf;
      const auto* from = field == 0   ? p.best + row
                         : field == 5 ? p.drawn + row
                         : field == 6 ? reinterpret_cast<const int32_t*>(p.logits) + row
                                      : reinterpret_cast<const int32_t*>(p.stats) + row * 4 + field - 1;
      if (at < count * kOf) words[k] = *from;
    }
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if (i + k * kThreads < count * kOf) to[i + k * kThreads] = words[k];
    }
    i += kWords * kThreads;
  } while (i < count * kOf);
}

// Totals of the step being laid out.
struct Totals {
  int rows = 0, logits = 0, running = 0;
  bool any_canvas = false;
  Size size;
};

// One thread reports to the host. The host may launch the next step while this step's rows are still being written,
// because its kernels run after this one. All data that the host reads is written before the last CTA barrier. A
// rehearsal writes to the scratch words `nobodys`.
__device__ void report(const Params& p, bool real, int step, const Totals& of, int32_t* nobodys) {
  auto* to = real ? p.report : reinterpret_cast<volatile DenoiseReport*>(nobodys);
  int32_t *counter = real ? p.counter : nobodys, *num_rows = real ? p.num_rows : nobodys;
  counter[0] = step, counter[1] = of.logits;
  *num_rows = of.rows;
  to->rows = of.rows, to->logits_rows = of.logits, to->running = of.running;
  to->size = of.size.rows, to->canvases = of.size.of_canvases;
  __threadfence_system();
  to->step = step;
}

// Inputs and outputs of DenoiseState::advance() for a request.
struct Decided {
  BlockCandidates candidates;
  int32_t* tokens;
};

// In a rehearsal these are scratch words, because the model's outputs do not exist yet; only one thread uses them.
__device__ Decided decided_of(const Params& p, bool real, int r, const DenoiseState& s, int32_t* nobodys) {
  const auto* numbers = reinterpret_cast<const float*>(nobodys);
  if (!real) return {{nobodys, numbers, numbers}, nobodys};
  const int first = s.first_logit;
  return {{p.drawn + first, p.logits + first, p.stats + 4 * first}, p.tokens + r * p.tokens_stride};
}

__device__ void take_turn(const Params& p, bool real, int step, const Turn& turn, int32_t* nobodys, Totals& of) {
  const int r = threadIdx.x;
  int rows = 0, logits = 0;
  if (r < turn.count) {
    DenoiseState& s = turn.states[r];
    const Decided decided = decided_of(p, real, turn.first + r, s, nobodys);
    s.advance(decided.candidates, p.block_size, p.mask_token_id, decided.tokens);
    rows = s.num_rows(p.block_size), logits = rows > 0 ? s.num_samples(p.block_size) : 0;
  }
  unsigned long long total = 0;
  const unsigned long long before =
      scan(static_cast<unsigned long long>(rows) << 32 | static_cast<unsigned>(logits), total);
  const int begin = of.rows;
  if (r < turn.count) {
    DenoiseState& s = turn.states[r];
    s.first_logit = rows > 0 ? of.logits + static_cast<int>(before & 0xffffffffu) : 0;
    turn.spots[r] = Spot(s, begin + static_cast<int>(before >> 32), logits, p.block_size);
    if (real) p.to_spans[turn.first + r] = s.span(turn.spots[r].row0, p.block_size);
  }
  of.rows += static_cast<int>(total >> 32), of.logits += static_cast<int>(total & 0xffffffffu);
  of.any_canvas |= __syncthreads_or(r < turn.count && turn.states[r].runs_canvas()) != 0;
  of.running += __syncthreads_count(rows > 0);  // also makes states, spots and tokens visible to all threads
  of.size = size_of(p, of.rows, of.any_canvas);
  if (r == kThreads - 1 && (!real || turn.first + turn.count == p.requests)) report(p, real, step, of, nobodys);
  if (real) store_states(p, turn);
  write_rows(p, real, turn, begin, of.rows);
  write_logits_rows(p, real, turn);
}

// Returns the request for a rehearsal: the first running one; none if it has a canvas, for which `nobodys` is too
// small.
__device__ Turn example_of(const Turn& turn) {
  int r = 0;
#pragma unroll 1
  while (r < turn.count - 1 && turn.states[r].running == 0) ++r;
  const int count = turn.states[r].has_canvas() ? 0 : 1;
  __syncthreads();  // all have looked before one of them changes its state
  return {.first = r, .count = count, .states = turn.states + r, .spots = turn.spots};
}

// Shared memory: states, then spots, of as many requests as take a turn.
__global__ void __launch_bounds__(kThreads, 1) step_blocks(const __grid_constant__ Params p) {
  extern __shared__ DenoiseState states[];
  __shared__ int32_t nobodys[4 * DenoiseState::kMaxBlock];
  const int at_once = min(p.requests, kThreads), step = p.counter[0] + 1, results = p.counter[1];
#pragma unroll 1
  for (int i = threadIdx.x; i < 4 * DenoiseState::kMaxBlock; i += kThreads) nobodys[i] = 0;
  Turn turn{.first = 0, .count = at_once, .states = states, .spots = reinterpret_cast<Spot*>(states + at_once)};
  Totals of;
  bool real = false;
#pragma unroll 1
  while (true) {
    load_states(p, turn);
    const bool first = turn.first == 0, last = turn.first + turn.count == p.requests;
    if (first && real) pdl_wait();
    if (first) give_results(p, step, real ? results : 0);
    take_turn(p, real, step, real ? turn : example_of(turn), nobodys, of);
    if (last || !real) pad(p, real, of.rows, of.logits, of.size.rows);
    if (last && real) return;
    if (!real) {
      real = true, of = {};
      continue;
    }
    turn.first += turn.count;
    turn.count = min(at_once, p.requests - turn.first);
  }
}

}  // namespace

void denoise_step(const DenoiseStepArgs& a, const OpContext& context) {
  check(a);
  const Stream& stream = stream_of(context);
  const Params p{.best = static_cast<const int32_t*>(a.best.data()),
                 .stats = static_cast<const float*>(a.stats.data()),
                 .drawn = static_cast<const int32_t*>(a.ids.data()),
                 .logits = static_cast<const float*>(a.logits.data()),
                 .draws = static_cast<TokenDraw*>(a.draws.data()),
                 .states = static_cast<DenoiseState*>(a.states.data()),
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
                 .report = static_cast<volatile DenoiseReport*>(a.report.data()),
                 .results = static_cast<int32_t*>(a.results.data()),
                 .results_rows = static_cast<int>(a.results.dim(1))};
  const size_t shared_bytes =
      static_cast<size_t>(std::min(kThreads, p.requests)) * (sizeof(DenoiseState) + sizeof(Spot));
  launch_pdl(stream, step_blocks, dim3(1), dim3(kThreads), shared_bytes, p, "denoise_step");
}

}  // namespace headrace::cuda
