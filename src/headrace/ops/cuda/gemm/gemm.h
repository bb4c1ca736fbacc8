// GEMM kernels behind the ops linear and fused_linear: y = n W^T + bias (+ residual), where n is x or its RMS norm. x
// is [M, K], W [N, K], y [M, N]. A function `..._supports` returns true if its kernel runs the call; the kernels queue
// work on the stream and throw kCuda if a launch fails.
#pragma once
#include "headrace/ops/cuda/runtime/stream.h"
#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

inline constexpr int64_t kFewRows = 16;  // largest M of a skinny GEMM: up to here the weights' bytes bound a GEMM

// Skinny GEMM by mma.sync: M <= kFewRows, bfloat16 or float16, K a multiple of 8; reads each weight once. The order of
// a sum over K does not depend on M, except for the GEMV kernels (M <= 2) under kFast. Under kStrict it is the fixed
// split-K order of the batch-invariant GEMMs. Norms have the bits of rms_norm in the GEMV kernels under kStrict only.
bool skinny_gemm_supports(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
// Returns true if dtypes, alignment and sizes are those of a skinny GEMM. The device's shared memory may still be too
// small.
bool has_few_rows(const FusedLinearArgs& args);
// Throws kInternal for a norm under kStrict that gemv_supports() refuses.
void skinny_gemm(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
// Returns true if skinny_gemm runs the call as a register-resident GEMV: M <= 2, all weights of a CTA in registers. Its
// norm has the bits of rms_norm under kStrict.
bool gemv_supports(const FusedLinearArgs& args, const Stream& stream);

// Batch-invariant GEMM by mma.sync: any M, bfloat16 or float16, K a multiple of 8, the bits of skinny_gemm under
// kStrict. Takes one GEMM without a norm.
bool batch_invariant_gemm_sm80_supports(const FusedLinearArgs& args);
void batch_invariant_gemm_sm80(const FusedLinearArgs& args, const Stream& stream);

// Batch-invariant GEMM by WGMMA (sm_90), at four to six times the rate of the one above and with the same bits. Also
// takes SwiGLU of two GEMMs.
bool batch_invariant_gemm_sm90_supports(const FusedLinearArgs& args, const Stream& stream);
void batch_invariant_gemm_sm90(const FusedLinearArgs& args, const Stream& stream);

// SwiGLU GEMM: silu(gate) * up for large M and 16-bit floats in one kernel, batch_invariant_gemm_sm90 or another
// (swiglu_gemm_plan.h), where that beats separate kernels. For default mode: the order of a sum depends on M.
bool swiglu_gemm_supports(const FusedLinearArgs& args, const Stream& stream);
void swiglu_gemm(const FusedLinearArgs& args, const Stream& stream);

// Small-M GEMM (sm_90): M from 2 to 64, 16-bit floats, no norm, one GEMM or SwiGLU of two, where it beats other kernels
// (small_m_gemm_plan.h). Under kStrict it has the bits of the batch-invariant GEMMs; otherwise the order of a sum
// depends on M.
bool small_m_gemm_supports(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
void small_m_gemm(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);

// cuBLASLt: one GEMM without a norm; x and the weight have one dtype; TF32 is off. With a bias, rows of x and of the
// weight begin at multiples of 16 bytes. The order of a sum depends on M. cublaslt_gemm returns false and does nothing
// if cuBLASLt has no kernel for the shape. Throws kCuda if the device fails, kOutOfMemory, or the code of cuBLASLt's
// status.
bool cublaslt_gemm_supports(const FusedLinearArgs& args);
[[nodiscard]] bool cublaslt_gemm(const FusedLinearArgs& args, const Stream& stream);

// SIMT GEMM: any dtypes, slow. One GEMM without a norm; adds over K sequentially.
void simt_gemm(const FusedLinearArgs& args, const Stream& stream);

}  // namespace headrace::cuda
