// The matrix products behind linear and fused_linear: y = n W^T + bias, n = x or its norm.
#pragma once
#include "headrace/ops/cuda/runtime/stream.h"
#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

inline constexpr int64_t kFewRows = 16;  // up to here the weights' bytes bound a product

// Up to kFewRows rows, bfloat16 or float16: reads each weight once. The sum over `in` does not depend on the rows,
// but for one or two held ones under kFast; under kStrict it has the order of the other ordered products. Where rows
// are not held, a norm does not have the bits of rms_norm.
bool skinny_gemm_supports(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
// Whether dtypes, alignment and sizes are those of such a product; the device's memory may be too small for it.
bool has_few_rows(const FusedLinearArgs& args);
void skinny_gemm(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
// Whether that is a kernel for one row or two, whose blocks hold their weights in registers, and whose norm has the
// bits of rms_norm under kStrict.
bool gemv_supports(const FusedLinearArgs& args, const Stream& stream);

// Any number of rows, bfloat16 or float16, the bits of skinny_gemm under kStrict. Takes one product without a norm.
bool batch_invariant_gemm_sm80_supports(const FusedLinearArgs& args);
void batch_invariant_gemm_sm80(const FusedLinearArgs& args, const Stream& stream);

// The same on Hopper's warpgroups, at four to six times the rate. Takes two products whose results are combined, too.
bool batch_invariant_gemm_sm90_supports(const FusedLinearArgs& args, const Stream& stream);
void batch_invariant_gemm_sm90(const FusedLinearArgs& args, const Stream& stream);

// silu(gate) * up of many rows of 16-bit floats in one kernel, by the one above or another (swiglu_gemm_plan.h), where
// that is faster than its parts. For fast mode: the sum's order depends on the number of rows.
bool swiglu_gemm_supports(const FusedLinearArgs& args, const Stream& stream);
void swiglu_gemm(const FusedLinearArgs& args, const Stream& stream);

// 2 to 64 rows of 16-bit floats, one product or two that are combined, without a norm, where that is faster than other
// kernels (small_m_gemm_plan.h). Under kStrict the bits of the other ordered products, else the sum's order depends on
// the number of rows.
bool small_m_gemm_supports(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
void small_m_gemm(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);

// Through cuBLASLt: one product without a norm, x and weight of one dtype, with a bias rows of both that begin at
// multiples of 16 bytes, TF32 off. The sum's order depends on the number of rows. False, and nothing is done, when it
// has no kernel for the shape. Error kCuda when the device fails, kOutOfMemory, or what else the library says.
bool cublaslt_gemm_supports(const FusedLinearArgs& args);
[[nodiscard]] bool cublaslt_gemm(const FusedLinearArgs& args, const Stream& stream);

// Any dtypes, slowly: one product without a norm; the sum over `in` is sequential.
void simt_gemm(const FusedLinearArgs& args, const Stream& stream);

}  // namespace headrace::cuda
