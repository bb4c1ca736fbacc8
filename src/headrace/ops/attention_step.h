// Fused attention step of a decoder layer: everything between its QKV projections and its output projection.
#pragma once
#include "headrace/ops/norm_rotary.h"
#include "headrace/ops/paged_attention.h"
#include "headrace/ops/pointwise.h"
#include "headrace/ops/store_kv.h"

namespace headrace {

// Runs norm_rotary on q and k, store_kv, paged_attention and, if given, the output gate. Each intermediate is rounded
// to its tensor's dtype. Under Determinism::kStrict the bits equal those of the separate ops.
struct AttentionStepArgs {
  // Applies to attention.q and store.k in place; their contents are unspecified afterwards. Null q: no norm and no
  // rotation. On a device, `positions` here and `store.slots` must be arrays of the batch that are written as early as
  // DeviceMetadata requires.
  NormRotaryArgs norm_rotary = {};
  StoreKVArgs store;  // null slots: nothing is stored and store.kv is ignored
  PagedAttentionArgs attention;
  TensorView gate = {};  // [num_tokens, num_heads, v_head_dim], dtype of out: out *= sigmoid(gate); null: no gate

  bool rotates() const { return static_cast<bool>(norm_rotary.q); }
  bool stores() const { return static_cast<bool>(store.slots); }
  // The gate as a pointwise op over [num_tokens * num_heads, v_head_dim].
  PointwiseArgs gate_of_rows() const {
    const TensorView& out = attention.out;
    const Shape rows = {out.dim(0) * out.dim(1), out.dim(2)};
    return {
        .kind = PointwiseKind::kSigmoidMul, .x = gate.reshape(rows), .y = out.reshape(rows), .out = out.reshape(rows)};
  }
};

// Throws Error kInvalidArgument if one of the fused ops would, or if their tensors disagree.
void check(const AttentionStepArgs& args);

// Runs the fused ops one after another. `ops` is an OpSet.
template <class Ops, class Context>
void attention_step_apart(const Ops& ops, const AttentionStepArgs& a, const Context& context) {
  if (a.rotates() && !ops.norm_rotary(a.norm_rotary, context)) norm_rotary_apart(ops, a.norm_rotary, context);
  if (a.stores()) ops.store_kv(a.store, context);
  ops.paged_attention(a.attention, context);
  if (a.gate && a.gate.numel() > 0) ops.pointwise(a.gate_of_rows(), context);
}

}  // namespace headrace
