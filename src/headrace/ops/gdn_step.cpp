#include "headrace/ops/gdn_step.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const GDNStepArgs& a) {
  check(CausalConv1dArgs{.x = a.x,
                         .weight = a.conv_weight,
                         .state = a.conv_state,
                         .spans = a.spans,
                         .slots = a.slots,
                         .snapshots = {},
                         .on_device = a.on_device,
                         .out = a.x});
  check(GatedDeltaRuleArgs{.qkv = a.x,
                           .a = a.a,
                           .b = a.b,
                           .a_log = a.a_log,
                           .dt_bias = a.dt_bias,
                           .state = a.state,
                           .num_k_heads = a.num_k_heads,
                           .spans = a.spans,
                           .slots = a.slots,
                           .snapshots = {},
                           .on_device = a.on_device,
                           .out = a.out});
  check_dtype("gdn_step: out", a.out, a.x.dtype());
  for (size_t r = 0; r < a.spans.size(); ++r) {
    const KeySpan& span = a.spans[r];
    HR_REQUIRE(span.q_len == 1, ErrorCode::kInvalidArgument, "gdn_step: a request has ", span.q_len,
               " tokens, expected 1");
    HR_REQUIRE(span.q_off == static_cast<int64_t>(r), ErrorCode::kInvalidArgument, "gdn_step: request ", r, " has row ",
               span.q_off, ", expected its own number");
  }
  if (!a.norm) return;
  check_shape("gdn_step: gate", a.norm.gate, a.out.shape());
  check_dtype("gdn_step: gate", a.norm.gate, a.out.dtype());
  check_shape("gdn_step: norm weight", a.norm.weight, {a.out.dim(2)});
  check_float("gdn_step: norm weight", a.norm.weight);
}

}  // namespace headrace
