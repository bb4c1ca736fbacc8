// rms_norm and rotary_embedding: ops on rows.
#include "headrace/core/error.h"
#include "headrace/ops/rms_norm.h"
#include "headrace/ops/rotary_embedding.h"
#include "op_call.h"
#include "ops.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

void rms_norm(nb::handle x, nb::handle weight, nb::handle gate, nb::handle out, int rank, float eps, bool plus_one) {
  OpCall call("rms_norm");
  HR_REQUIRE(rank == 2 || rank == 3, ErrorCode::kInvalidArgument, call.op(), ": x has ", rank,
             " dimensions, expected [tokens, dim] or [tokens, heads, dim]");
  RMSNormArgs args{.x = call.read(x, "x", DTypes::kFloat, rank),
                   .weight = call.read(weight, "weight", DTypes::kFloat, 1),
                   .gate = call.read_if(gate, "gate", DTypes::kFloat, rank),
                   .eps = eps,
                   .weight_form = plus_one ? WeightForm::kPlusOne : WeightForm::kPlain,
                   .out = call.write(out, "out", DTypes::kFloat, rank)};
  call.expect_shape("weight", args.weight, {args.x.dim(rank - 1)});
  const auto expect_like_x = [&](const char* name, const TensorView& view) {
    if (!view) return;
    rank == 2 ? call.expect_shape(name, view, {args.x.dim(0), args.x.dim(1)})
              : call.expect_shape(name, view, {args.x.dim(0), args.x.dim(1), args.x.dim(2)});
    call.expect_dtype(name, view, args.x.dtype());
  };
  expect_like_x("x", args.x);
  expect_like_x("gate", args.gate);
  expect_like_x("out", args.out);
  call.run(&OpSet::rms_norm, args);
}

void rotary_embedding(nb::handle x, nb::handle positions, nb::handle inv_freq, float magnitude) {
  OpCall call("rotary_embedding");
  RotaryEmbeddingArgs args{.x = call.write(x, "x", DTypes::kFloat, 3),
                           .positions = call.read(positions, "positions", DTypes::kI32, 1),
                           .inv_freq = call.read(inv_freq, "inv_freq", DTypes::kF32, 1),
                           .magnitude = magnitude};
  call.expect_shape("x", args.x, {kAnySize, kAnySize, kAnySize});
  call.expect_shape("positions", args.positions, {args.x.dim(0)});
  HR_REQUIRE(2 * args.inv_freq.dim(0) <= args.x.dim(2), ErrorCode::kInvalidArgument, call.op(), ": inv_freq has ",
             args.inv_freq.dim(0), " frequencies, expected at most ", args.x.dim(2) / 2,
             ", half of x's last dimension");
  call.expect_shape("inv_freq", args.inv_freq, {kAnySize});
  call.run(&OpSet::rotary_embedding, args);
}

}  // namespace

void add_row_ops(nb::module_& module) {
  using namespace nb::literals;
  module.def("rms_norm", rms_norm, "x"_a.none(), "weight"_a.none(), "gate"_a.none(), "out"_a.none(), "rank"_a, "eps"_a,
             "plus_one"_a);
  module.def("rotary_embedding", rotary_embedding, "x"_a.none(), "positions"_a.none(), "inv_freq"_a.none(),
             "magnitude"_a);
}

}  // namespace headrace::python
