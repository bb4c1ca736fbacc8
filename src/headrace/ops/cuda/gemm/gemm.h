// GEMM kernels behind the ops linear, fused_linear and gemm_sequence: y = n W^T + bias (+ residual), where n is x or
// its RMS norm. x is [M, K], W [N, K], y [M, N]. choose_gemm() (heuristics.h) says which of them runs a call, and is
// the only statement of their limits. They queue work on the stream and throw kCuda if a launch fails.
#pragma once
#include "headrace/ops/cuda/gemm/heuristics.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// Register-resident GEMV: M <= 2, any number of products, bfloat16 or float16. All weights of a CTA lie in registers.
// In batch-invariant mode its norm has the bits of rms_norm, and its sums those of the batch-invariant GEMMs.
void gemv(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);

// Skinny GEMM by mma.sync: M <= 16, any number of products, bfloat16 or float16; reads each weight once. The order of a
// sum over K does not depend on M. In batch-invariant mode it is that of the batch-invariant GEMMs, and there must be
// no norm (kInternal).
void skinny_gemm(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);

// Batch-invariant GEMM by mma.sync: any M, bfloat16 or float16. Takes one GEMM without a norm.
void batch_invariant_gemm_sm80(const FusedLinearArgs& args, const Stream& stream);

// Batch-invariant GEMM by WGMMA (sm_90), at four to six times the rate of the one above and with the same bits. Also
// takes SwiGLU of two GEMMs.
void batch_invariant_gemm_sm90(const FusedLinearArgs& args, const Stream& stream);

// SwiGLU GEMM (sm_90): silu(gate) * up for large M and 16-bit floats in one kernel. For default mode: the order of a
// sum depends on M.
void swiglu_gemm(const FusedLinearArgs& args, const SwigluGemmPlan& plan, const Stream& stream);

// Small-M GEMM (sm_90): M from 1 to 64, 16-bit floats, no norm, one GEMM or SwiGLU of two. In batch-invariant mode it
// has the bits of the batch-invariant GEMMs; otherwise the order of a sum depends on M.
void small_m_gemm(const FusedLinearArgs& args, const SmallMGemmPlan& plan, const Stream& stream);

// cuBLASLt: one GEMM without a norm; x and the weight have one dtype; TF32 is off. The order of a sum depends on M.
// Returns false and does nothing if cuBLASLt has no kernel for the shape. Throws kCuda if the device fails,
// kOutOfMemory, or the code of cuBLASLt's status.
[[nodiscard]] bool cublaslt_gemm(const FusedLinearArgs& args, const Stream& stream);

// SIMT GEMM: any dtypes, slow. One GEMM without a norm; adds over K sequentially.
void simt_gemm(const FusedLinearArgs& args, const Stream& stream);

}  // namespace headrace::cuda
