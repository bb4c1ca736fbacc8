// What stands between the projections of a decoder layer and its output product, in one pass.
#pragma once
#include "headrace/ops/norm_rotary.h"
#include "headrace/ops/paged_attention.h"
#include "headrace/ops/pointwise.h"
#include "headrace/ops/store_kv.h"

namespace headrace {

// norm_rotary of q and k, then store_kv, then paged_attention, then the gate if there is one, with their rounding to
// the dtype in between. Under Determinism::kStrict the bits are those of the ops one by one.
struct AttentionStepArgs {
  // Of attention.q and store.k, which hold anything afterwards; null q: neither a norm nor a rotation. On a device its
  // positions and the slots below are arrays of the batch, there as early as DeviceMetadata says.
  NormRotaryArgs norm_rotary = {};
  StoreKVArgs store;  // slots null: nothing is stored, and kv is not looked at
  PagedAttentionArgs attention;
  TensorView gate = {};  // [num_tokens, num_heads, v_head_dim], dtype of out: out *= sigmoid(gate); or null

  bool rotates() const { return static_cast<bool>(norm_rotary.q); }
  bool stores() const { return static_cast<bool>(store.slots); }
  // Of all tokens' heads, as rows.
  PointwiseArgs gate_of_rows() const {
    const TensorView& out = attention.out;
    const Shape rows = {out.dim(0) * out.dim(1), out.dim(2)};
    return {
        .kind = PointwiseKind::kSigmoidMul, .x = gate.reshape(rows), .y = out.reshape(rows), .out = out.reshape(rows)};
  }
};

// Error kInvalidArgument as the ops that it stands for, and when they do not speak of the same rows.
void check(const AttentionStepArgs& args);

// Runs them one by one: `ops` is an OpSet.
template <class Ops, class Context>
void attention_step_apart(const Ops& ops, const AttentionStepArgs& a, const Context& context) {
  if (a.rotates()) {
    if (ops.norm_rotary != nullptr) {
      ops.norm_rotary(a.norm_rotary, context);
    } else {
      norm_rotary_apart(ops, a.norm_rotary, context);
    }
  }
  if (a.stores()) ops.store_kv(a.store, context);
  ops.paged_attention(a.attention, context);
  if (a.gate && a.gate.numel() > 0) ops.pointwise(a.gate_of_rows(), context);
}

}  // namespace headrace
