#include "headrace/ops/gated_delta_rule.h"

#include "headrace/ops/causal_conv1d.h"
#include "headrace/ops/checks.h"

namespace headrace {

void check(const GatedDeltaRuleArgs& a) {
  check_rank("gated_delta_rule: qkv", a.qkv, 2);
  check_rank("gated_delta_rule: state", a.state, 4);
  check_dtype("gated_delta_rule: state", a.state, DType::kF32);
  const int64_t tokens = a.qkv.dim(0), heads = a.num_v_heads();
  HR_REQUIRE(a.num_k_heads > 0 && heads % a.num_k_heads == 0, ErrorCode::kInvalidArgument, "gated_delta_rule: ", heads,
             " value heads are not a multiple of ", a.num_k_heads, " key heads");
  check_shape("gated_delta_rule: qkv", a.qkv,
              {tokens, int64_t{2} * a.num_k_heads * a.head_k_dim() + heads * a.head_v_dim()});
  check_shape("gated_delta_rule: a", a.a, {tokens, heads});
  check_shape("gated_delta_rule: b", a.b, {tokens, heads});
  check_shape("gated_delta_rule: a_log", a.a_log, {heads});
  check_shape("gated_delta_rule: dt_bias", a.dt_bias, {heads});
  check_shape("gated_delta_rule: out", a.out, {tokens, heads, a.head_v_dim()});
  for (const TensorView* t : {&a.qkv, &a.a, &a.out}) check_float("gated_delta_rule", *t);
  check_dtype("gated_delta_rule: b", a.b, a.a.dtype());
  check_dtype("gated_delta_rule: a_log", a.a_log, DType::kF32);
  check_dtype("gated_delta_rule: dt_bias", a.dt_bias, DType::kF32);
  check_state_slots("gated_delta_rule", a.spans, a.slots, a.snapshots, a.state.dim(0));
}

}  // namespace headrace
