// GEMM y = x W^T. A task is a block of rows times a block of outputs. Within it each weight is read and widened once
// for up to four rows; for one row the kernel is bound by reading W once. A dot product is two vector accumulators over
// K, added as a tree, then the tail: the same order for any number of rows, threads and blocks.
//
// In default mode, small M in bf16 uses bf16 dot products (linear_pairs.h), and larger M panels of outputs
// (linear_panels.h).
#include "headrace/ops/cpu/linear.h"

#include "headrace/ops/cpu/linear_pairs.h"
#include "headrace/ops/cpu/linear_panels.h"
#include "headrace/ops/cpu/parallel_scratch.h"
#include "headrace/ops/cpu/read_ahead.h"
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu::HR_ISA {
namespace {

constexpr long kRowBlock = 64, kOutBlock = 64;
constexpr int kMaxRows = 4, kMaxOuts = 4;
#ifdef __AVX512F__
constexpr int kOutsOfRows = 2;
#else
constexpr int kOutsOfRows = 1;  // two would use as many accumulators as there are registers
#endif
constexpr long kOutsAhead = 4;  // prefetch distance in weight rows: the next tile's if M is 1

template <FloatType kType>
[[gnu::always_inline]] inline void read_ahead_as(const void* from, long i) {
  constexpr long kSize = kType == FloatType::kF32 ? 4 : 2;
  for (long byte = 0; byte < 2 * kLanes * kSize; byte += 64) {
    read_ahead(static_cast<const char*>(from) + i * kSize + byte);
  }
}

// Dot products of kRows rows of x (float32, `in` apart) with kOuts rows of W.
template <FloatType kType, int kRows, int kOuts>
void dots(const LinearParams& p, const float* x, long out, float (&result)[kMaxRows][kMaxOuts]) {
  Vec acc[kRows][kOuts][2] = {};
  long k = 0;
  for (; k + 2 * kLanes <= p.in; k += 2 * kLanes) {
    for (int o = 0; o < kOuts; ++o) {
      const long at = (out + o) * p.weight_stride + k;
      read_ahead_as<kType>(p.weight, at + kOutsAhead * p.weight_stride);
      const Vec w0 = load_as<kType>(p.weight, at), w1 = load_as<kType>(p.weight, at + kLanes);
      for (int r = 0; r < kRows; ++r) {
        acc[r][o][0] += load(x + r * p.in + k) * w0;
        acc[r][o][1] += load(x + r * p.in + k + kLanes) * w1;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOuts; ++o) {
      float tail = 0;
      for (long j = k; j < p.in; ++j) {
        tail = __builtin_fmaf(x[r * p.in + j], load_float(p.weight, (out + o) * p.weight_stride + j, kType), tail);
      }
      result[r][o] = sum(acc[r][o][0] + acc[r][o][1]) + tail;
    }
  }
}

template <FloatType kType, int kRows, int kOuts>
void tile(const LinearParams& p, const float* x, long row, long out) {
  float result[kMaxRows][kMaxOuts];
  dots<kType, kRows, kOuts>(p, x, out, result);
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOuts; ++o) {
      const float bias = p.bias == nullptr ? 0.0f : load_float(p.bias, out + o, p.bias_type);
      store_float(p.y, (row + r) * p.y_stride + out + o, p.y_type, result[r][o] + bias);
    }
  }
}

template <FloatType kType, int kRows>
void rows_by_outs(const LinearParams& p, const float* x, long row, long out, long out_end) {
  constexpr int kOuts = kRows == 1 ? kMaxOuts : kOutsOfRows;
  for (; out + kOuts <= out_end; out += kOuts) tile<kType, kRows, kOuts>(p, x, row, out);
  for (; out < out_end; ++out) tile<kType, kRows, 1>(p, x, row, out);
}

template <FloatType kType>
void block(const LinearParams& p, const float* x, long row, long row_end, long out, long out_end) {
  for (; row + kMaxRows <= row_end; row += kMaxRows, x += kMaxRows * p.in) {
    rows_by_outs<kType, kMaxRows>(p, x, row, out, out_end);
  }
  for (; row < row_end; ++row, x += p.in) rows_by_outs<kType, 1>(p, x, row, out, out_end);
}

void run_task(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const LinearParams*>(context);
  const long out_blocks = (p.out + kOutBlock - 1) / kOutBlock;
  const long row = task / out_blocks * kRowBlock, out = task % out_blocks * kOutBlock;
  const long row_end = row + kRowBlock < p.rows ? row + kRowBlock : p.rows;
  const long out_end = out + kOutBlock < p.out ? out + kOutBlock : p.out;
  for (long r = row; r < row_end; ++r) load_row(scratch + (r - row) * p.in, p.x, r * p.x_stride, p.in, p.x_type);
  switch (p.weight_type) {
    case FloatType::kF32: return block<FloatType::kF32>(p, scratch, row, row_end, out, out_end);
    case FloatType::kBF16: return block<FloatType::kBF16>(p, scratch, row, row_end, out, out_end);
    case FloatType::kF16: return block<FloatType::kF16>(p, scratch, row, row_end, out, out_end);
    case FloatType::kE4M3:
    case FloatType::kI8: __builtin_unreachable();  // only in KV pools
  }
}

// Transposing a panel takes as long as the products of this many rows with it.
constexpr long kMostUnturnedRows = 8;

bool takes_panels(const LinearParams& p) {
  return p.sums == LinearParams::Sums::kAnyOrder && p.rows > kMostUnturnedRows;
}

void run_panel_task(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const LinearParams*>(context);
  const long out_blocks = (p.out + kPanelTaskOuts - 1) / kPanelTaskOuts;
  const long row = task / out_blocks * kPanelTaskRows, out = task % out_blocks * kPanelTaskOuts;
  const long rows = p.rows - row < kPanelTaskRows ? p.rows - row : kPanelTaskRows;
  const long out_end = out + kPanelTaskOuts < p.out ? out + kPanelTaskOuts : p.out;
  const PanelScratch at(scratch, rows);
  switch (p.weight_type) {
    case FloatType::kF32: return panel_products<FloatType::kF32>(p, row, rows, out, out_end, at);
    case FloatType::kBF16: return panel_products<FloatType::kBF16>(p, row, rows, out, out_end, at);
    case FloatType::kF16: return panel_products<FloatType::kF16>(p, row, rows, out, out_end, at);
    case FloatType::kE4M3:
    case FloatType::kI8: __builtin_unreachable();  // only in KV pools
  }
}

void linear_by_panels(const LinearParams& params) {
  const long row_blocks = (params.rows + kPanelTaskRows - 1) / kPanelTaskRows,
             out_blocks = (params.out + kPanelTaskOuts - 1) / kPanelTaskOuts;
  const long rows = params.rows < kPanelTaskRows ? params.rows : kPanelTaskRows;
  parallel_for_with_scratch(params.threads, row_blocks * out_blocks, PanelScratch::floats(rows), run_panel_task,
                            const_cast<LinearParams*>(&params));
}

#ifdef __AVX512BF16__
constexpr long kFewRows = 4, kPairBlock = 32;

void run_pair_task(void* context, long task, float*) {
  const auto& p = *static_cast<const LinearParams*>(context);
  const long out = task * kPairBlock;
  pair_products(p, out, out + kPairBlock < p.out ? out + kPairBlock : p.out);
}

// Up to four rows are bound by reading the weights. More than a block of rows is better split by rows too.
bool takes_pairs(const LinearParams& p) {
  return p.sums == LinearParams::Sums::kAnyOrder && p.rows > kFewRows && p.rows <= kRowBlock &&
         p.x_type == FloatType::kBF16 && p.weight_type == FloatType::kBF16;
}
#endif

}  // namespace

void linear(const LinearParams& params) {
#ifdef __AVX512BF16__
  if (takes_pairs(params)) {
    return parallel_for_with_scratch(params.threads, (params.out + kPairBlock - 1) / kPairBlock, 0, run_pair_task,
                                     const_cast<LinearParams*>(&params));
  }
#endif
  if (takes_panels(params)) return linear_by_panels(params);
  const long row_blocks = (params.rows + kRowBlock - 1) / kRowBlock,
             out_blocks = (params.out + kOutBlock - 1) / kOutBlock;
  const long rows = params.rows < kRowBlock ? params.rows : kRowBlock;
  parallel_for_with_scratch(params.threads, row_blocks * out_blocks, rows * params.in + kLanes, run_task,
                            const_cast<LinearParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
