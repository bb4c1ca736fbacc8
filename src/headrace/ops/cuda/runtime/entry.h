// Entry of an op from outside: makes the stream's device current and chooses which device properties the op sees.
#pragma once
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// kItsDevice: the device's own properties. kLeastDevice: capped to the smallest device that runs sm_80 code.
enum class Told : uint8_t { kItsDevice, kLeastDevice };

// Returns a copy of the stream capped to sm_80. The ops table "cuda_baseline" uses it, so ops choose no kernel and no
// size that such a device lacks.
inline Stream least_of(const Stream& stream) {
  Stream least = stream;
  least.arch = 80, least.shared_bytes_of_block = kLeastSharedBytes, least.shared_bytes_of_sm = kLeastSharedBytesOfSM;
  return least;
}

// Runs `op` with the capped copy. Launches the stream's deferred GEMMs first, because the copy must not launch them.
template <class Result, class Args>
Result run_as_least(Result (*op)(Args, const OpContext&), Args args, const OpContext& context) {
  Stream least = least_of(stream_of(context));
  OpContext there = context;
  there.stream = &least;
  return op(args, there);
}

// Ops table entry of kOp.
template <auto kOp, Told kTold>
struct Entry;
template <class Result, class Args, Result (*kOp)(Args, const OpContext&), Told kTold>
struct Entry<kOp, kTold> {
  static Result run(Args args, const OpContext& context) {
    make_current(stream_with_waiting(context));
    if constexpr (kTold == Told::kLeastDevice) return run_as_least<Result, Args>(kOp, args, context);
    return kOp(args, context);
  }
};

}  // namespace headrace::cuda
