// Fused norm and rotary embedding of query and key heads, between the QKV projection and attention.
#pragma once
#include "headrace/ops/rms_norm.h"
#include "headrace/ops/rotary_embedding.h"

namespace headrace {

// Updates q and k in place: rms_norm of each head if there are weights, rounding to the dtype, then rotary_embedding.
// The bits equal those of the separate ops.
struct NormRotaryArgs {
  TensorView q = {};                        // [tokens, heads, dim], a float dtype; rows may be strided
  TensorView k = {};                        // [tokens, kv heads, dim], dtype of q
  TensorView q_weight = {}, k_weight = {};  // [dim], any float dtype; both null: no norm
  float eps = 1e-6f;
  WeightForm weight_form = WeightForm::kPlain;
  TensorView positions = {};  // int32 [tokens], or [axes, tokens]
  TensorView inv_freq = {};   // float32 [R / 2]
  float magnitude = 1;
  std::optional<RotarySections> sections = std::nullopt;  // as in RotaryEmbeddingArgs

  // Return the arguments of the separate ops for one of q and k.
  RMSNormArgs norm_of(const TensorView& x, const TensorView& weight) const {
    return {.x = x, .weight = weight, .eps = eps, .weight_form = weight_form, .out = x};
  }
  RotaryEmbeddingArgs rotation_of(const TensorView& x) const {
    return {.x = x, .positions = positions, .inv_freq = inv_freq, .magnitude = magnitude, .sections = sections};
  }
};

// Throws Error kInvalidArgument if one of the fused ops would, if q and k differ in dtype, tokens or dim, or if only
// one of them has a weight.
void check(const NormRotaryArgs& args);

// Runs the fused ops one after another. `ops` is an OpSet.
template <class Ops, class Context>
void norm_rotary_apart(const Ops& ops, const NormRotaryArgs& a, const Context& context) {
  if (a.q_weight) {
    ops.rms_norm(a.norm_of(a.q, a.q_weight), context);
    ops.rms_norm(a.norm_of(a.k, a.k_weight), context);
  }
  ops.rotary_embedding(a.rotation_of(a.q), context);
  ops.rotary_embedding(a.rotation_of(a.k), context);
}

}  // namespace headrace
