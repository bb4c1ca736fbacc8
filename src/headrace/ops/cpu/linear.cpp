// GEMM y = x W^T. A task is a block of rows times a block of outputs.
//
// In strict mode and for few rows, dot products on weights as stored (linear_dots.h). In default mode, small M in bf16
// uses bf16 dot products (linear_pairs.h), and larger M panels of outputs (linear_panels.h).
#include "headrace/ops/cpu/linear.h"

#include "headrace/ops/cpu/linear_dots.h"
#include "headrace/ops/cpu/linear_pairs.h"
#include "headrace/ops/cpu/linear_panels.h"
#include "headrace/ops/cpu/parallel_scratch.h"

namespace headrace::cpu::HR_ISA {
namespace {

// Tasks are large enough to pay for loading x and for what they prefetch behind their end, and enough of them share the
// work evenly.
constexpr long kRowBlock = 64, kTasksPerThread = 8, kFewestTaskOuts = 32;

long outs_of_task(const LinearParams& p) {
  const long outs = (p.out - 1) / (kTasksPerThread * p.threads) + 1;
  return outs > kFewestTaskOuts ? (outs + 3) / 4 * 4 : kFewestTaskOuts;
}

void run_task(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const LinearParams*>(context);
  const long task_outs = outs_of_task(p), out_blocks = (p.out - 1) / task_outs + 1;
  const long row = task / out_blocks * kRowBlock, out = task % out_blocks * task_outs;
  const long row_end = row + kRowBlock < p.rows ? row + kRowBlock : p.rows;
  const long out_end = out + task_outs < p.out ? out + task_outs : p.out;
  const DotScratch at(scratch);
  switch (p.weight_type) {
    case FloatType::kF32: return multiply_rows<FloatType::kF32>(p, row, row_end, out, out_end, at);
    case FloatType::kBF16: return multiply_rows<FloatType::kBF16>(p, row, row_end, out, out_end, at);
    case FloatType::kF16: return multiply_rows<FloatType::kF16>(p, row, row_end, out, out_end, at);
    case FloatType::kE4M3:
    case FloatType::kI8: __builtin_unreachable();  // only in KV pools
  }
}

// Transposing a panel takes as long as the products of this many rows with it.
constexpr long kMostUnturnedRows = 8;

bool takes_panels(const LinearParams& p) {
  return p.sums == LinearParams::Sums::kAnyOrder && p.rows > kMostUnturnedRows;
}

// Few large tasks transpose few panels; there are at least four for each thread, if tasks of kRowBlock rows allow.
long rows_of_panel_task(const LinearParams& p) {
  const long out_blocks = (p.out - 1) / kPanelTaskOuts + 1;
  const long wanted = (4 * p.threads - 1) / out_blocks + 1, most = (p.rows - 1) / kRowBlock + 1;
  const long fewest = (p.rows - 1) / kPanelTaskRows + 1, allowed = wanted < most ? wanted : most;
  return (p.rows - 1) / (fewest > allowed ? fewest : allowed) + 1;
}

void run_panel_task(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const LinearParams*>(context);
  const long task_rows = rows_of_panel_task(p), out_blocks = (p.out - 1) / kPanelTaskOuts + 1;
  const long row = task / out_blocks * task_rows, out = task % out_blocks * kPanelTaskOuts;
  const long rows = p.rows - row < task_rows ? p.rows - row : task_rows;
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
  const long rows = rows_of_panel_task(params);
  const long row_blocks = (params.rows - 1) / rows + 1, out_blocks = (params.out - 1) / kPanelTaskOuts + 1;
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
  const long row_blocks = (params.rows - 1) / kRowBlock + 1, out_blocks = (params.out - 1) / outs_of_task(params) + 1;
  const long rows = params.rows < kRowBlock ? params.rows : kRowBlock;
  parallel_for_with_scratch(params.threads, row_blocks * out_blocks, DotScratch::floats(rows, params.in), run_task,
                            const_cast<LinearParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
