// The one table of tolerances: what a kernel may differ from the double-precision oracle, and a model in bfloat16 from
// transformers in float32, element by element.
#pragma once
#include <string_view>

#include "headrace/core/error.h"
#include "support/all_close.h"

namespace headrace::testing_support {

// Attention outputs are averages of values of size about 1. The pool's dtype costs nothing here: the oracle reads
// the same rounded keys and values.
inline Tolerance attention_tolerance(DType out) {
  switch (out) {
    case DType::kF32: return {.abs = 2e-5, .rel = 2e-5};   // sums of up to some hundred products in float32
    case DType::kBF16: return {.abs = 8e-3, .rel = 8e-3};  // output rounding 2^-9, and probabilities in bf16 (AMX)
    case DType::kF16: return {.abs = 1e-3, .rel = 1e-3};   // output rounding 2^-12, sums in float32
    default: throw Error(ErrorCode::kInternal, "no attention tolerance for this dtype");
  }
}

// Log-sum-exp of scores in float32; with bf16 inputs a tensor-core product may round the scaled query.
inline Tolerance lse_tolerance(DType in) {
  return in == DType::kF32 ? Tolerance{.abs = 3e-5, .rel = 1e-5} : Tolerance{.abs = 4e-3, .rel = 2e-3};
}

// Outputs and states of the gated delta rule, of size about 1; float32 is for states too.
inline Tolerance gdn_tolerance(DType out) {
  switch (out) {
    case DType::kF32: return {.abs = 2e-5, .rel = 1e-4};   // float32 sums, carried over some hundred tokens
    case DType::kBF16: return {.abs = 2e-4, .rel = 4e-3};  // output rounding 2^-9 on top
    case DType::kF16: return {.abs = 5e-5, .rel = 6e-4};   // output rounding 2^-12 on top
    default: throw Error(ErrorCode::kInternal, "no gated delta rule tolerance for this dtype");
  }
}

// With bfloat16 inputs, a matrix unit may round the operands of the chunked form to bfloat16; the state's too.
inline Tolerance gdn_tolerance(DType out, DType in) {
  if (in == DType::kBF16) return {.abs = 1e-2, .rel = 1e-2};
  return gdn_tolerance(out);
}

// The short convolution sums at most eight products of size about 1.
inline Tolerance conv_tolerance(DType out) {
  switch (out) {
    case DType::kF32:
      return {.abs = 2e-6, .rel = 2e-6};  // float32 sums and exp
    // One unit: a float32 and a double sum may lie on two sides of where the output's rounding changes.
    case DType::kBF16: return {.abs = 1e-5, .rel = 8e-3};  // 2^-7
    case DType::kF16: return {.abs = 1e-5, .rel = 1e-3};   // 2^-10
    default: throw Error(ErrorCode::kInternal, "no convolution tolerance for this dtype");
  }
}

// Dense ops and products of weights, of values of size about 1.
inline Tolerance dense_tolerance(DType out) {
  switch (out) {
    case DType::kF32: return {.abs = 2e-5, .rel = 2e-5};   // sums of up to some hundred products in float32
    case DType::kBF16: return {.abs = 2e-3, .rel = 8e-3};  // output rounding 2^-9, once more inside what is fused
    case DType::kF16: return {.abs = 2e-4, .rel = 1e-3};   // output rounding 2^-12 likewise
    default: throw Error(ErrorCode::kInternal, "no dense tolerance for this dtype");
  }
}

// Allowed error of a logit, as a share of the largest one: whole model, float32 weights, activations in bfloat16.
// About twice what was measured, set by set.
inline double bfloat16_logit_share(std::string_view family) {
  const bool hybrid = family.starts_with("qwen3_5") || family == "qwen3_next";
  const bool experts = family.find("moe") != std::string_view::npos;
  if (hybrid && experts) return 1.0;  // both of the below; catches no more than NaN and logits of another sequence
  if (experts) return 0.6;            // a token between two experts may choose the other one: a step, not a rounding
  if (hybrid) return 0.4;  // the recurrence of random weights amplifies: transformers differs by 7 to 9 % RMS
  return 0.03;             // some ten roundings of 2^-9 in a row
}

// Allowed error of a logit, as that share: two layers, random bfloat16 weights, activations in bfloat16. It is twice
// the worst that five seeds gave on a CPU. A rounding is off by 0.16 % RMS (2^-8 / sqrt(3) of a power of two), and two
// layers have some two dozen one after the other: 0.8 %, as measured. The worst of a million is five times that, but so
// is the largest logit.
inline double wide_logit_share(std::string_view name) {
  return name.starts_with("hybrid") ? 0.04 : 0.022;  // 0.019: heads of little output are normed; 0.011
}

// Allowed error of a logit, as a share of the largest one: whole model in float32, keys and values in FP8. Each is off
// by up to 2^-4. About twice what was measured: 0.10, and 0.47 where a token between two experts chose the other one.
inline double fp8_logit_share(std::string_view family) { return family == "qwen3_moe" ? 0.8 : 0.2; }

// By how much two kernel sets may differ with FP8 keys and values in float32 models, as the same share: where float
// sums differ in their last bit, a key between two codes may take the other one, 2^-3 of one number of one key.
// Measured: 5e-5.
inline double fp8_flip_share() { return 1e-3; }

// As fp8_logit_share, keys and values in int8 with a scale per token and KV head. Each is off by up to 2^-8 of the
// largest of its row. About twice what was measured: 0.020, and 0.26 where a token between two experts chose the other.
inline double int8_logit_share(std::string_view family) { return family == "qwen3_moe" ? 0.5 : 0.04; }

// As fp8_flip_share: another code is 2^-7 of the largest number of one key, and codes of small numbers, which are as
// far apart as all others, flip more often than in FP8. Measured: 6e-4.
inline double int8_flip_share() { return 1.2e-3; }

}  // namespace headrace::testing_support
