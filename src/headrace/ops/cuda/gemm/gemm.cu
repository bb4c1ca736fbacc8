// The ops linear, fused_linear and gemm_sequence: run the kernels that choose_gemm() names, one call or product after
// another where no kernel takes all of them.
#include "headrace/ops/cuda/gemm/gemm.h"

#include <algorithm>
#include <vector>

#include "headrace/ops/cuda/gemm/sm90/gemm_sequence.h"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

bool is_invariant(const OpContext& context) { return context.determinism == Determinism::kStrict; }

GemmConfig config_of(const FusedLinearArgs& a, const OpContext& context) {
  return choose_gemm(gemm_problem(a, context.determinism), stream_of(context).properties(),
                     GemmFamilies(context.leave_out));
}

// Runs the products of `a`, which the kernel can run together.
void run_kernel(const GemmConfig::Kernel& kernel, const FusedLinearArgs& a, const OpContext& context) {
  const Stream& stream = stream_of(context);
  switch (kernel.family) {
    case GemmFamily::kSequence: return run_gemm_sequence({&a, 1}, stream);
    case GemmFamily::kGemv: return gemv(a, context.determinism, stream);
    case GemmFamily::kSmallM: return small_m_gemm(a, std::get<SmallMGemmPlan>(kernel.plan), stream);
    case GemmFamily::kSkinny: return skinny_gemm(a, context.determinism, stream);
    case GemmFamily::kSwiglu: return swiglu_gemm(a, std::get<SwigluGemmPlan>(kernel.plan), stream);
    case GemmFamily::kBatchInvariantSm90: return batch_invariant_gemm_sm90(a, stream);
    case GemmFamily::kBatchInvariantSm80: return batch_invariant_gemm_sm80(a, stream);
    case GemmFamily::kCublasLt:
      if (cublaslt_gemm(a, stream)) return;
      break;
    case GemmFamily::kSimt: break;
  }
  simt_gemm(a, stream);
}

// Allocates from the stream's scratch. Its end is cuBLASLt's workspace, which rows_at_once() leaves free.
struct Temporary {
  char* at;
  Device device;

  TensorView take(DType type, int64_t rows, int64_t columns) {
    const TensorView x(at, type, {rows, columns}, device);
    at += (x.bytes() + 255) / 256 * 256;
    return x;
  }
};

// Most scratch bytes of run(). Does not count a small last slice of rows that has another configuration.
int64_t temporary_bytes(const FusedLinearArgs& a, const GemmConfig& config, bool invariant) {
  const int64_t rows = a.x.dim(0), n = a.products[0].weight.dim(0);
  const int64_t normed = config.norm_apart ? rows * a.x.dim(1) * size_of(a.x.dtype()) : 0;
  if (!config.silu_apart) return normed + 512;
  return normed + rows * n * (invariant ? 8 : size_of(a.products[0].y.dtype())) + 1024;
}

// Returns the most rows whose temporaries fit in the scratch: a multiple of 128, at least 128.
int64_t rows_at_once(const FusedLinearArgs& a, const GemmConfig& config, const OpContext& context) {
  constexpr int64_t kKept = int64_t{64} << 20, kMultiple = 128;
  const int64_t rows = (static_cast<int64_t>(stream_of(context).scratch_bytes) - kKept) * a.x.dim(0) /
                       temporary_bytes(a, config, is_invariant(context));
  return std::max(kMultiple, rows / kMultiple * kMultiple);
}

FusedLinearArgs rows_of(FusedLinearArgs a, int64_t begin, int64_t end) {
  a.x = a.x.slice(begin, end);
  if (a.residual) a.residual = a.residual.slice(begin, end);
  for (FusedLinearArgs::Product& p : a.products) {
    if (p.y) p.y = p.y.slice(begin, end);
  }
  return a;
}

FusedLinearArgs::Product joined(const FusedLinearArgs::Product& first, const FusedLinearArgs::Product& next) {
  const auto with_rows = [](const TensorView& x, int64_t rows) {
    Shape shape = x.shape();
    shape[0] = rows;
    return TensorView(x.data(), x.dtype(), shape, x.strides(), x.device());
  };
  const int64_t n = first.weight.dim(0) + next.weight.dim(0);
  return {.weight = with_rows(first.weight, n),
          .bias = first.bias ? with_rows(first.bias, n) : TensorView(),
          .y = TensorView(first.y.data(), first.y.dtype(), {first.y.dim(0), n}, first.y.strides(), first.y.device())};
}

// Merges products whose weights and results are contiguous: each alone may have too small an N for the device.
void join_products(FusedLinearArgs& a, const GemmProblem& problem) {
  size_t kept = 0;
  for (size_t i = 1; i < static_cast<size_t>(a.num_products); ++i) {
    if (problem.products[i].continues) {
      a.products[kept] = joined(a.products[kept], a.products[i]);
    } else {
      a.products[++kept] = a.products[i];
    }
  }
  a.num_products = static_cast<int>(kept) + 1;
}

// Runs the products one after another, then silu(gate) * up if it is apart. In batch-invariant mode gate and up stay
// float32, as in the fused kernels, so that the bits do not depend on M.
void run_products(FusedLinearArgs a, const GemmConfig& config, Temporary& temporary, const OpContext& context) {
  if (!config.silu_apart) join_products(a, gemm_problem(a, context.determinism));
  const TensorView result = a.products[0].y;
  for (int i = 0; i < config.num_kernels; ++i) {
    FusedLinearArgs one = a;
    one.products[0] = a.products[static_cast<size_t>(i)];
    one.num_products = 1, one.combine = FusedLinearArgs::Combine::kNone;
    TensorView& y = one.products[0].y;
    if (config.silu_apart && is_invariant(context)) y = temporary.take(DType::kF32, result.dim(0), result.dim(1));
    if (config.silu_apart && !is_invariant(context) && i == 1) {
      y = temporary.take(result.dtype(), result.dim(0), result.dim(1));
    }
    run_kernel(config.kernels[static_cast<size_t>(i)], one, context);
    a.products[static_cast<size_t>(i)].y = y;
  }
  if (!config.silu_apart) return;
  pointwise({.kind = PointwiseKind::kSiluMul, .x = a.products[0].y, .y = a.products[1].y, .out = result}, context);
}

void run_rows(FusedLinearArgs a, const GemmConfig& config, const OpContext& context) {
  Temporary temporary{static_cast<char*>(stream_of(context).scratch), a.x.device()};
  if (config.norm_apart) {
    const TensorView normed = temporary.take(a.x.dtype(), a.x.dim(0), a.x.dim(1));
    rms_norm({.x = a.x, .weight = a.norm_weight, .eps = a.eps, .weight_form = a.norm_form, .out = normed}, context);
    a.x = normed, a.norm_weight = {};
  }
  config.whole ? run_kernel(config.kernels[0], a, context) : run_products(a, config, temporary, context);
}

// Runs one call, in slices of rows if its temporaries are larger than the scratch.
void run(const FusedLinearArgs& a, const GemmConfig& config, const OpContext& context) {
  const int64_t rows = a.x.dim(0), step = rows_at_once(a, config, context);
  if (rows <= step) return run_rows(a, config, context);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const FusedLinearArgs slice = rows_of(a, begin, std::min(rows, begin + step));
    run_rows(slice, config_of(slice, context), context);
  }
}

}  // namespace

void gemm_sequence(std::span<const FusedLinearArgs> calls, const OpContext& context) {
  std::vector<FusedLinearArgs> together;
  const auto run_together = [&] {
    if (!together.empty()) run_gemm_sequence(together, stream_of(context));
    together.clear();
  };
  for (const FusedLinearArgs& call : calls) check(call);
  for (const FusedLinearArgs& call : calls) {
    if (call.x.dim(0) == 0 || (call.num_products == 1 && call.products[0].y.numel() == 0)) continue;
    const GemmConfig config = config_of(call, context);
    if (!config.is_sequence()) {
      run_together();
      run(call, config, context);
      continue;
    }
    together.push_back(call);
    if (fit_one_sequence(together, stream_of(context))) continue;
    together.pop_back();
    run_together();
    together.push_back(call);
  }
  run_together();
}

bool fused_linear(const FusedLinearArgs& a, const OpContext& context) {
  gemm_sequence({&a, 1}, context);
  return true;
}

void linear(const LinearArgs& a, const OpContext& context) {
  FusedLinearArgs call{.x = a.x};
  call.products[0] = {.weight = a.weight, .bias = a.bias, .y = a.y};
  gemm_sequence({&call, 1}, context);
}

}  // namespace headrace::cuda
