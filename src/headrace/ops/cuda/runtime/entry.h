// Entry of an op from outside: makes the stream's device current, and chooses the device properties and the launch
// attributes of the op's kernels.
#pragma once
#include <optional>

#include "headrace/ops/cuda/runtime/relaxed_capture.h"
#include "headrace/ops/cuda/runtime/stream.h"
#include "headrace/ops/op_set.h"

namespace headrace::cuda {

// kNone: the device's own properties. kSm80: those of the smallest device that runs sm_80 code, so that ops choose no
// kernel and no size that such a device lacks.
enum class DeviceCap : uint8_t { kNone, kSm80 };

inline Stream capped_to_sm80(Stream stream) {
  stream.arch = 80;
  stream.shared_bytes_of_block = kLeastSharedBytes, stream.shared_bytes_of_sm = kLeastSharedBytesOfSM;
  return stream;
}

// Returns the rows of a call: tokens, or rows of logits. 0 if it has none.
inline int64_t rows_of(const TensorView& x) { return x ? x.dim(0) : 0; }
inline int64_t rows_of(std::span<const FusedLinearArgs> calls) { return calls.empty() ? 0 : rows_of(calls[0].x); }
inline int64_t rows_of(const StoreKVArgs& args) { return rows_of(args.k); }
inline int64_t rows_of(const AttentionStepArgs& args) { return rows_of(args.attention.q); }
template <class Args>
int64_t rows_of(const Args& args) {
  if constexpr (requires { args.x; }) return rows_of(args.x);
  if constexpr (requires { args.q; }) return rows_of(args.q);
  if constexpr (requires { args.qkv; }) return rows_of(args.qkv);
  if constexpr (requires { args.logits; }) return rows_of(args.logits);
  if constexpr (requires { args.out; }) return rows_of(args.out);
  return 0;
}

// Ops table entry of kOp. The op gets a copy of the stream, which says how many rows the call has (pdl.cuh).
template <auto kOp, DeviceCap kCap>
struct Entry;
template <class Result, class Args, Result (*kOp)(Args, const OpContext&), DeviceCap kCap>
struct Entry<kOp, kCap> {
  static Result run(Args args, const OpContext& context) {
    constexpr int64_t kFewRows = 4;  // GEMVs and GEMM sequences run the GEMMs beside such a call
    Stream stream = kCap == DeviceCap::kSm80 ? capped_to_sm80(stream_of(context)) : stream_of(context);
    make_current(stream);
    std::optional<RelaxedCapture> relaxed;  // its owner may capture before the op's kernels were loaded
    if (stream.overlap == Stream::Overlap::kNone) relaxed.emplace();
    const int64_t rows = rows_of(args);
    stream.has_few_rows = rows > 0 && rows <= kFewRows;
    OpContext there = context;
    there.stream = &stream;
    return kOp(args, there);
  }
};

}  // namespace headrace::cuda
