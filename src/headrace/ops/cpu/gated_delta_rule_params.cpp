#include <climits>

#include "headrace/ops/cpu/gated_delta_rule.h"
#include "headrace/ops/cpu/params.h"

namespace headrace::cpu {
namespace {

void require_dense(const char* name, int64_t stride, int64_t expected) {
  HR_REQUIRE(stride == expected, ErrorCode::kUnsupported, "gated_delta_rule: ", name, " has an inner stride of ",
             stride, ", expected ", expected);
}

void require_dense(const GatedDeltaRuleArgs& a) {
  require_dense("qkv", a.qkv.stride(1), 1);
  require_dense("a", a.a.stride(1), 1);
  require_dense("b", a.b.stride(1), 1);
  require_dense("a_log", a.a_log.stride(0), 1);
  require_dense("dt_bias", a.dt_bias.stride(0), 1);
  require_dense("out", a.out.stride(2), 1);
  require_dense("out", a.out.stride(1), a.head_v_dim());
  require_dense("state", a.state.stride(3), 1);
  require_dense("state", a.state.stride(2), a.head_k_dim());
  require_dense("state", a.state.stride(1), a.head_v_dim() * a.head_k_dim());
}

}  // namespace

GatedDeltaRuleParams params_of(const GatedDeltaRuleArgs& a, const OpContext& context) {
  require_dense(a);
  return {.qkv = a.qkv.data(),
          .a = a.a.data(),
          .b = a.b.data(),
          .a_log = static_cast<const float*>(a.a_log.data()),
          .dt_bias = static_cast<const float*>(a.dt_bias.data()),
          .state = static_cast<float*>(a.state.data()),
          .out = a.out.data(),
          .qkv_stride = a.qkv.stride(0),
          .a_stride = a.a.stride(0),
          .b_stride = a.b.stride(0),
          .slot_stride = a.state.stride(0),
          .out_stride = a.out.stride(0),
          .num_k_heads = a.num_k_heads,
          .num_v_heads = a.num_v_heads(),
          .dk = a.head_k_dim(),
          .dv = a.head_v_dim(),
          .num_requests = static_cast<long>(a.spans.size()),
          .num_snapshots = static_cast<long>(a.snapshots.size()),
          .spans = a.spans.data(),
          .slots = a.slots.data(),
          .snapshots = a.snapshots.data(),
          .qkv_type = float_type(a.qkv),
          .gate_type = float_type(a.a),
          .out_type = float_type(a.out),
          // Batch-invariant mode uses no chunks: they begin at the call's first token, so sums depend on a request's
          // split.
          // them.
          .chunked_from = context.determinism == Determinism::kStrict ? LONG_MAX : 16,
          .threads = context.threads};
}

}  // namespace headrace::cpu
