// causal_conv1d and gated_delta_rule.
#include "headrace/core/error.h"
#include "headrace/ops/causal_conv1d.h"
#include "headrace/ops/gated_delta_rule.h"
#include "op_requests.h"
#include "ops.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

// Without spans every request has one token, and `slots` [requests] names its state.
OpRequests requests_of(OpCall& call, nb::handle spans, nb::handle slots, nb::handle snapshots, int64_t num_tokens,
                       int max_q_len) {
  if (spans.is_none()) return OpRequests::one_token_each(call, slots, num_tokens);
  OpRequests requests(call, spans, num_tokens, {.max_q_len = max_q_len});
  requests.take_states(call, slots, snapshots);
  return requests;
}

void causal_conv1d(nb::handle x, nb::handle weight, nb::handle state, nb::handle spans, nb::handle slots,
                   nb::handle snapshots, nb::handle out, int max_q_len) {
  OpCall call("causal_conv1d");
  CausalConv1dArgs args{.x = call.read(x, "x", DTypes::kFloat, 2),
                        .weight = call.read(weight, "weight", DTypes::kFloat, 2),
                        .state = call.write(state, "state", DTypes::kFloat, 3),
                        .out = call.write(out, "out", DTypes::kFloat, 2)};
  const int64_t channels = args.x.dim(1), width = args.weight.dim(1);
  call.expect_shape("x", args.x, {kAnySize, channels});
  HR_REQUIRE(args.weight.dim(0) == channels, ErrorCode::kInvalidArgument, call.op(), ": weight: shape is ",
             args.weight.shape(), ", expected ", channels, " rows, the channels of x");
  call.expect_shape("state", args.state, {kAnySize, channels, width - 1});
  call.expect_shape("out", args.out, {args.x.dim(0), channels});
  const OpRequests requests = requests_of(call, spans, slots, snapshots, args.x.dim(0), max_q_len);
  args.spans = requests.spans(), args.slots = requests.slots(), args.snapshots = requests.snapshots();
  args.on_device = requests.on_device();
  call.run(&OpSet::causal_conv1d, args);
}

void gated_delta_rule(nb::handle qkv, nb::handle a, nb::handle b, nb::handle a_log, nb::handle dt_bias,
                      nb::handle state, nb::handle spans, nb::handle slots, nb::handle snapshots, nb::handle out,
                      int num_k_heads, int max_q_len, bool strict) {
  OpCall call("gated_delta_rule", strict ? Determinism::kStrict : Determinism::kFast);
  GatedDeltaRuleArgs args{.qkv = call.read(qkv, "qkv", DTypes::kFloat, 2),
                          .a = call.read(a, "a", DTypes::kFloat, 2),
                          .b = call.read(b, "b", DTypes::kFloat, 2),
                          .a_log = call.read(a_log, "a_log", DTypes::kF32, 1),
                          .dt_bias = call.read(dt_bias, "dt_bias", DTypes::kF32, 1),
                          .state = call.write(state, "state", DTypes::kF32, 4),
                          .num_k_heads = num_k_heads,
                          .out = call.write(out, "out", DTypes::kFloat, 3)};
  const int64_t tokens = args.qkv.dim(0), heads = args.num_v_heads(), k_dim = args.head_k_dim();
  HR_REQUIRE(num_k_heads > 0 && heads % num_k_heads == 0, ErrorCode::kInvalidArgument, call.op(), ": num_k_heads is ",
             num_k_heads, ", expected a divisor of the ", heads, " value heads of state");
  call.expect_shape("qkv", args.qkv, {tokens, 2 * int64_t{num_k_heads} * k_dim + heads * args.head_v_dim()});
  call.expect_shape("a", args.a, {tokens, heads});
  call.expect_shape("b", args.b, {tokens, heads});
  call.expect_dtype("b", args.b, args.a.dtype());
  call.expect_shape("a_log", args.a_log, {heads});
  call.expect_shape("dt_bias", args.dt_bias, {heads});
  call.expect_shape("out", args.out, {tokens, heads, args.head_v_dim()});
  const OpRequests requests = requests_of(call, spans, slots, snapshots, tokens, max_q_len);
  args.spans = requests.spans(), args.slots = requests.slots(), args.snapshots = requests.snapshots();
  args.on_device = requests.on_device();
  call.run(&OpSet::gated_delta_rule, args);
}

}  // namespace

void add_gdn_ops(nb::module_& module) {
  using namespace nb::literals;
  module.def("causal_conv1d", causal_conv1d, "x"_a.none(), "weight"_a.none(), "state"_a.none(), "spans"_a.none(),
             "slots"_a.none(), "snapshots"_a.none(), "out"_a.none(), "max_q_len"_a);
  module.def("gated_delta_rule", gated_delta_rule, "qkv"_a.none(), "a"_a.none(), "b"_a.none(), "a_log"_a.none(),
             "dt_bias"_a.none(), "state"_a.none(), "spans"_a.none(), "slots"_a.none(), "snapshots"_a.none(),
             "out"_a.none(), "num_k_heads"_a, "max_q_len"_a, "strict"_a);
}

}  // namespace headrace::python
