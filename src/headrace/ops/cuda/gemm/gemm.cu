// The ops linear and fused_linear: chooses the kernel of a call, and splits fused calls that no kernel takes whole.
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/runtime/kernel_attributes.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

enum class Chained : uint8_t { kWhereFaster, kAlways };

// Runs one GEMM without a norm.
void multiply(const FusedLinearArgs& a, const OpContext& context) {
  Stream& stream = stream_of(context);
  const bool strict = context.determinism == Determinism::kStrict;
  if (small_m_gemm_supports(a, context.determinism, stream)) return small_m_gemm(a, context.determinism, stream);
  if (skinny_gemm_supports(a, context.determinism, stream)) return skinny_gemm(a, context.determinism, stream);
  if (strict && batch_invariant_gemm_sm90_supports(a, stream)) return batch_invariant_gemm_sm90(a, stream);
  if (strict && batch_invariant_gemm_sm80_supports(a)) return batch_invariant_gemm_sm80(a, stream);
  if (!strict && cublaslt_gemm_supports(a) && cublaslt_gemm(a, stream)) return;
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

// Returns true if one kernel computes silu(gate) * up. run_parts then needs scratch for the normalised x only, which
// replaces x.
bool combined_at_once(const FusedLinearArgs& a, const Stream& stream, bool strict) {
  if (a.combine != FusedLinearArgs::Combine::kSiluMul) return false;
  FusedLinearArgs of_rows = a;
  of_rows.norm_weight = {};
  if (small_m_gemm_supports(of_rows, strict ? Determinism::kStrict : Determinism::kFast, stream)) return true;
  return strict ? batch_invariant_gemm_sm90_supports(of_rows, stream) : swiglu_gemm_supports(of_rows, stream);
}

// Most scratch bytes of run_parts. Does not count a small last slice of rows that is not combined in one kernel.
int64_t temporary_bytes(const FusedLinearArgs& a, const Stream& stream, bool strict) {
  const int64_t rows = a.x.dim(0), out = a.products[0].weight.dim(0);
  const int64_t normed = a.norm_weight ? rows * a.x.dim(1) * size_of(a.x.dtype()) : 0;
  if (a.combine == FusedLinearArgs::Combine::kNone || combined_at_once(a, stream, strict)) return normed + 512;
  return normed + rows * out * (strict ? 8 : size_of(a.products[0].y.dtype())) + 1024;
}

// Returns true if `next` begins where the `bytes` of `first` end, with the same dtype.
bool goes_on(const TensorView& first, const TensorView& next, int64_t bytes) {
  return static_cast<char*>(first.data()) + bytes == next.data() && first.dtype() == next.dtype();
}

// Returns true if one GEMM can compute both results: the rows of weights, the biases and the columns of y are
// contiguous.
bool side_by_side(const FusedLinearArgs::Product& first, const FusedLinearArgs::Product& next) {
  const int64_t out = first.weight.dim(0);
  const bool biases = first.bias ? next.bias && goes_on(first.bias, next.bias, first.bias.bytes()) : !next.bias;
  return first.weight.is_contiguous() && goes_on(first.weight, next.weight, first.weight.bytes()) &&
         first.y.stride(0) == next.y.stride(0) && goes_on(first.y, next.y, out * size_of(first.y.dtype())) && biases;
}

FusedLinearArgs::Product joined(const FusedLinearArgs::Product& first, const FusedLinearArgs::Product& next) {
  const auto with_rows = [](const TensorView& x, int64_t rows) {
    Shape shape = x.shape();
    shape[0] = rows;
    return TensorView(x.data(), x.dtype(), shape, x.strides(), x.device());
  };
  const int64_t out = first.weight.dim(0) + next.weight.dim(0);
  return {.weight = with_rows(first.weight, out),
          .bias = first.bias ? with_rows(first.bias, out) : TensorView(),
          .y = TensorView(first.y.data(), first.y.dtype(), {first.y.dim(0), out}, first.y.strides(), first.y.device())};
}

// Merges GEMMs whose weights and results are contiguous: each alone may have too small an N for the device.
void join_products(FusedLinearArgs& a) {
  int kept = 0;
  for (int i = 1; i < a.num_products; ++i) {
    FusedLinearArgs::Product& last = a.products[static_cast<size_t>(kept)];
    const FusedLinearArgs::Product& next = a.products[static_cast<size_t>(i)];
    if (side_by_side(last, next)) {
      last = joined(last, next);
    } else {
      a.products[static_cast<size_t>(++kept)] = next;
    }
  }
  a.num_products = kept + 1;
}

// Returns true if small_m_gemm takes the whole call, after a separate norm kernel.
bool becomes_small_m_gemm(FusedLinearArgs a, const OpContext& context) {
  if (a.combine == FusedLinearArgs::Combine::kNone) join_products(a);
  a.norm_weight = {};
  return small_m_gemm_supports(a, context.determinism, stream_with_waiting(context));
}

// Heuristic: returns true if the call should wait for the GEMMs that follow it and run in a GEMM sequence with them.
bool pays_as_sequence(const FusedLinearArgs& a, const OpContext& context) {
  if (!GemmSequence::pays(a)) return false;
  const bool few = a.x.dim(0) <= GemmSequencePlan::kMostFastRows;
  return few || context.determinism == Determinism::kStrict || !becomes_small_m_gemm(a, context);
}

// Returns true if the call may join the GEMM sequence, in either mode: the sequence always adds in batch-invariant
// order. The exception is a norm of rows that are too long for the order of rms_norm.
bool may_join_sequence(const FusedLinearArgs& a, const OpContext& context, Chained chained) {
  if (!GemmSequence::supports(a, stream_with_waiting(context))) return false;
  const bool strict = context.determinism == Determinism::kStrict;
  if (strict && a.norm_weight && a.x.dim(1) > kLongestOrderedNorm) return false;
  return chained == Chained::kAlways || pays_as_sequence(a, context);
}

// Defers the call to the GEMM sequence if that pays; returns true if it did. Also records the kind of GEMM in
// KernelAttributes.
bool joins_sequence(const FusedLinearArgs& a, const OpContext& context, Chained chained) {
  using Products = KernelAttributes::Products;
  const Stream& stream = stream_with_waiting(context);
  const bool joins = may_join_sequence(a, context, chained);
  stream.notes->note_products(joins || gemv_supports(a, stream) ? Products::kSequenceOrGemv : Products::kOthers);
  if (joins) stream.chain->add(a, stream);
  return joins;
}

// Runs the norm, the GEMMs and silu(gate) * up one after another. In batch-invariant mode gate and up stay float32, as
// in the fused kernel, so that the bits do not depend on M.
void run_parts(FusedLinearArgs a, const OpContext& context) {
  const bool strict = context.determinism == Determinism::kStrict;
  Temporary temporary{static_cast<char*>(stream_of(context).scratch), a.x.device()};
  if (a.norm_weight) {
    const TensorView normed = temporary.take(a.x.dtype(), a.x.dim(0), a.x.dim(1));
    rms_norm({.x = a.x, .weight = a.norm_weight, .eps = a.eps, .weight_form = a.norm_form, .out = normed}, context);
    a.x = normed, a.norm_weight = {};
  }
  if (strict && skinny_gemm_supports(a, context.determinism, stream_of(context)) && !becomes_small_m_gemm(a, context)) {
    return skinny_gemm(a, context.determinism, stream_of(context));
  }
  const bool combined = a.combine == FusedLinearArgs::Combine::kSiluMul;
  if (combined_at_once(a, stream_of(context), strict)) {
    const Stream& stream = stream_of(context);
    if (small_m_gemm_supports(a, context.determinism, stream)) return small_m_gemm(a, context.determinism, stream);
    return strict ? batch_invariant_gemm_sm90(a, stream) : swiglu_gemm(a, stream);
  }
  if (!combined) join_products(a);
  const TensorView result = a.products[0].y;
  for (int i = 0; i < a.num_products; ++i) {
    FusedLinearArgs one = a;
    one.products[0] = a.products[static_cast<size_t>(i)];
    one.num_products = 1, one.combine = FusedLinearArgs::Combine::kNone;
    if (combined && strict) one.products[0].y = temporary.take(DType::kF32, result.dim(0), result.dim(1));
    if (combined && !strict && i == 1) one.products[0].y = temporary.take(result.dtype(), result.dim(0), result.dim(1));
    multiply(one, context);
    a.products[static_cast<size_t>(i)].y = one.products[0].y;
  }
  if (!combined) return;
  pointwise({.kind = PointwiseKind::kSiluMul, .x = a.products[0].y, .y = a.products[1].y, .out = result}, context);
}

// Returns the most rows whose temporaries fit in the scratch: a multiple of 128, at least 128.
int64_t rows_at_once(const FusedLinearArgs& a, const Stream& stream, bool strict) {
  constexpr int64_t kKept = int64_t{64} << 20, kMultiple = 128;
  const int64_t rows =
      (static_cast<int64_t>(stream.scratch_bytes) - kKept) * a.x.dim(0) / temporary_bytes(a, stream, strict);
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

void run(const LinearArgs& a, const OpContext& context, Chained chained) {
  check(a);
  if (a.y.numel() == 0) return;
  FusedLinearArgs product{.x = a.x};
  product.products[0] = {.weight = a.weight, .bias = a.bias, .y = a.y};
  if (!joins_sequence(product, context, chained)) multiply(product, context);
}

void run(const FusedLinearArgs& a, const OpContext& context, Chained chained) {
  check(a);
  const int64_t rows = a.x.dim(0);
  if (rows == 0 || joins_sequence(a, context, chained)) return;
  const Stream& stream = stream_of(context);
  const bool strict = context.determinism == Determinism::kStrict;
  const bool parts = strict && a.norm_weight && !gemv_supports(a, stream);
  if (!parts && skinny_gemm_supports(a, context.determinism, stream) && !becomes_small_m_gemm(a, context)) {
    return skinny_gemm(a, context.determinism, stream);
  }
  const int64_t step = rows_at_once(a, stream, strict);
  for (int64_t begin = 0; begin < rows; begin += step) {
    run_parts(rows_of(a, begin, std::min(rows, begin + step)), context);
  }
}

}  // namespace

void linear(const LinearArgs& a, const OpContext& context) { run(a, context, Chained::kWhereFaster); }
bool fused_linear(const FusedLinearArgs& a, const OpContext& context) {
  run(a, context, Chained::kWhereFaster);
  return true;
}

namespace chained {
void linear(const LinearArgs& a, const OpContext& context) { run(a, context, Chained::kAlways); }
bool fused_linear(const FusedLinearArgs& a, const OpContext& context) {
  run(a, context, Chained::kAlways);
  return true;
}
}  // namespace chained

}  // namespace headrace::cuda
