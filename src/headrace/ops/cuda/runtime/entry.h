// How an op is entered from outside: on its stream's device, and told what that is, or that it is the least of those
// that sm_80's code runs on.
#pragma once
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

enum class Told : uint8_t { kItsDevice, kLeastDevice };

// The stream as the set "cuda_baseline" sees it, which so takes no kernel and no size that such a device lacks.
inline Stream least_of(const Stream& stream) {
  Stream least = stream;
  least.arch = 80, least.shared_bytes_of_block = kLeastSharedBytes, least.shared_bytes_of_sm = kLeastSharedBytesOfSM;
  return least;
}

// Runs op with such a copy, behind what waits in the stream: the copy launches nothing of it.
template <class Result, class Args>
Result run_as_least(Result (*op)(const Args&, const OpContext&), const Args& args, const OpContext& context) {
  Stream least = least_of(stream_of(context));
  OpContext there = context;
  there.stream = &least;
  return op(args, there);
}

template <auto kOp, Told kTold>
struct Entry;
template <class Result, class Args, Result (*kOp)(const Args&, const OpContext&), Told kTold>
struct Entry<kOp, kTold> {
  static Result run(const Args& args, const OpContext& context) {
    make_current(stream_with_waiting(context));
    if constexpr (kTold == Told::kLeastDevice) return run_as_least(kOp, args, context);
    return kOp(args, context);
  }
};

}  // namespace headrace::cuda
