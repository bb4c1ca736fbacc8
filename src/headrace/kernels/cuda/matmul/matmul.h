// The matrix products behind linear and fused_linear: y = n W^T + bias, n = x or its norm.
#pragma once
#include "headrace/kernels/cuda/stream.h"
#include "headrace/kernels/fused_linear.h"

namespace headrace::cuda {

inline constexpr int64_t kFewRows = 16;  // up to here the weights' bytes bound a product

// Up to kFewRows rows, bfloat16 or float16: reads each weight once. The sum over `in` does not depend on the rows,
// but for one or two held ones under kFast; under kStrict it has the order of the other ordered products. Where rows
// are not held, a norm does not have the bits of rms_norm.
bool few_rows_supports(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
// Whether dtypes, alignment and sizes are those of such a product; the device's memory may be too small for it.
bool has_few_rows(const FusedLinearArgs& args);
void few_rows_matmul(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
// Whether that is a kernel for one row or two, whose blocks hold their weights in registers, and whose norm has the
// bits of rms_norm under kStrict.
bool held_supports(const FusedLinearArgs& args, const Stream& stream);

// Any number of rows, bfloat16 or float16, the bits of few_rows_matmul under kStrict. Takes one product without a norm.
bool ordered_supports(const FusedLinearArgs& args);
void ordered_matmul(const FusedLinearArgs& args, const Stream& stream);

// The same on Hopper's warpgroups, at four to six times the rate. Takes two products whose results are combined, too.
bool ordered_sm90_supports(const FusedLinearArgs& args, const Stream& stream);
void ordered_matmul_sm90(const FusedLinearArgs& args, const Stream& stream);

// silu(gate) * up of many rows of 16-bit floats in one kernel, by the one above or another (gate_up_plan.h), where that
// is faster than its parts. For fast mode: the sum's order depends on the number of rows.
bool gate_up_sm90_supports(const FusedLinearArgs& args, const Stream& stream);
void gate_up_sm90(const FusedLinearArgs& args, const Stream& stream);

// 2 to 64 rows of 16-bit floats, one product or two that are combined, without a norm, where that is faster than other
// kernels (narrow_plan.h). Under kStrict the bits of the other ordered products, else the sum's order depends on the
// number of rows.
bool narrow_supports(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);
void narrow_matmul(const FusedLinearArgs& args, Determinism determinism, const Stream& stream);

// Through cuBLASLt: one product without a norm, x and weight of one dtype, with a bias rows of both that begin at
// multiples of 16 bytes, TF32 off. The sum's order depends on the number of rows. False, and nothing is done, when it
// has no kernel for the shape. Error kCuda when the device fails, kOutOfMemory, or what else the library says.
bool library_supports(const FusedLinearArgs& args);
[[nodiscard]] bool library_matmul(const FusedLinearArgs& args, const Stream& stream);

// Any dtypes, slowly: one product without a norm; the sum over `in` is sequential.
void plain_matmul(const FusedLinearArgs& args, const Stream& stream);

}  // namespace headrace::cuda
