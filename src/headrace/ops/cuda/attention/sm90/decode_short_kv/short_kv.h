// When a request and kv head is one warp's work, or that of the warps of a block.
#pragma once
#include <cstdint>

#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

struct ShortTask {
  int64_t pieces = 0;   // requests times kv heads
  int max_rows = 0;     // of a request
  int dim = 0;          // of a head: of keys or values, the longer
  bool strict = false;  // Determinism::kStrict
  bool runs = false;    // requests may be of the usual kind (attention_short_run.cuh)
};

// Of keys that a row sees: the most with which a warp takes a request and kv head alone, and the most with which the
// warps of a block share them. 0: never.
struct ShortPlan {
  int alone_keys = 0, shared_keys = 0;
  // For how many keys a graph for short contexts is recorded: where warps alone are faster, for theirs.
  constexpr int recorded_keys() const {
    return alone_keys >= 640 || alone_keys > shared_keys ? alone_keys : shared_keys;
  }
};

// Where keys are so few that beginnings and ends are much of the work, as measured on an H200
// (docs/performance/short_requests.md): a block for each piece of work, and beyond six of these for each multiprocessor
// a warp, while its rows see some hundred keys. In strict mode more than 32 rows read keys twice.
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

// 16-bit floats on Hopper; in strict mode with the Hopper kernel's bits. False when the call or the device is not of
// that form.
bool short_kv_attention(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);
// Of a call that is not of that form for its number of keys alone: how many would be. 0: another reason, or none.
int shorter_keys(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
