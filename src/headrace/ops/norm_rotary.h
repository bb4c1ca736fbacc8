// What stands between a layer's projections and its attention: norms of query and key heads, and their rotation.
#pragma once
#include "headrace/ops/rms_norm.h"
#include "headrace/ops/rotary_embedding.h"

namespace headrace {

// q and k in place: rms_norm of each head if there are weights, rounded to the dtype, then rotary_embedding. The bits
// are those of the ops one by one.
struct NormRotaryArgs {
  TensorView q = {};                        // [tokens, heads, dim], a float dtype; rows may be strided
  TensorView k = {};                        // [tokens, kv heads, dim], dtype of q
  TensorView q_weight = {}, k_weight = {};  // [dim], any float dtype; both null: no norm
  float eps = 1e-6f;
  WeightForm weight_form = WeightForm::kPlain;
  TensorView positions = {};  // int32 [tokens], or [axes, tokens]
  TensorView inv_freq = {};   // float32 [R / 2]
  float magnitude = 1;
  std::optional<RotarySections> sections = std::nullopt;  // as rotary_embedding

  // The ops that it stands for, of one of q and k.
  RMSNormArgs norm_of(const TensorView& x, const TensorView& weight) const {
    return {.x = x, .weight = weight, .eps = eps, .weight_form = weight_form, .out = x};
  }
  RotaryEmbeddingArgs rotation_of(const TensorView& x) const {
    return {.x = x, .positions = positions, .inv_freq = inv_freq, .magnitude = magnitude, .sections = sections};
  }
};

// Error kInvalidArgument as the ops that it stands for, when q and k differ in dtype, tokens or dim, and when one of
// them has a weight and the other has not.
void check(const NormRotaryArgs& args);

// Runs them one by one: `ops` is an OpSet.
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
