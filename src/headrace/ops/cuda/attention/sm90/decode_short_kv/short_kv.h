// Plan of short-KV decode: when one warp, or the warps of a CTA, process a request and KV head.
#pragma once
#include <cstdint>

#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

// Input of plan_short().
struct ShortTask {
  int64_t pieces = 0;   // requests times KV heads
  int max_rows = 0;     // of a request
  int dim = 0;          // head size: the larger of K's and V's
  bool strict = false;  // Determinism::kStrict
  bool runs = false;    // requests may suit the contiguous-KV fast path (contiguous_kv.cuh)
};

// The most keys that a row may see in warp-per-head decode (alone_keys) and in CTA-per-head decode (shared_keys). 0:
// never.
struct ShortPlan {
  int alone_keys = 0, shared_keys = 0;
  // Returns the keys for which a graph of short contexts is captured: those of warp-per-head decode where that is
  // faster.
  constexpr int recorded_keys() const {
    return alone_keys >= 640 || alone_keys > shared_keys ? alone_keys : shared_keys;
  }
};

// Returns the plan for contexts so short that prologues and epilogues are much of the work, as measured on an H200
// (docs/design/attention.md). A request and KV head gets a CTA. Beyond six of them per SM it gets a warp,
// while its rows see some hundred keys. In batch-invariant mode more than 32 rows read keys twice.
constexpr ShortPlan plan_short(const ShortTask& task, int num_sms) {
  constexpr int kMostRows = 40, kKeys = 640, kKeysReadTwice = 384, kManyKeys = 2048;
  const bool many = task.pieces >= 6 * num_sms, shares = task.runs && ((task.dim == 128 && task.max_rows <= 32) ||
                                                                       (task.dim == 256 && task.max_rows <= 16));
  ShortPlan plan{.shared_keys = shares ? kManyKeys : 0};
  if (task.dim <= 64 || task.dim > 128 || task.max_rows > kMostRows) return plan;
  if (shares) {
    plan.alone_keys = !many ? 0 : !task.strict ? kKeys : task.max_rows <= 16 ? kKeysReadTwice : 0;
  } else if (task.pieces * 2 >= (task.strict ? 3 : 4) * num_sms) {
    plan.alone_keys = !task.strict                          ? kKeys
                      : task.max_rows > 32                  ? kKeysReadTwice
                      : !many && task.pieces >= 3 * num_sms ? kManyKeys
                                                            : kKeys;
  }
  return plan;
}

// Launches short-KV decode: 16-bit floats on Hopper; in batch-invariant mode with the bits of fmha_sm90(). Returns
// false and launches nothing if the call or the device is unsupported.
bool short_kv_attention(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);
// Returns the number of keys that short-KV decode would support, if only the call's number of keys prevents it. Else 0.
int shorter_keys(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
