// Plan of short-KV decode: when one warp, or the warps of a CTA, process a request and KV head. Pure functions.
#pragma once
#include <cstdint>

namespace headrace::cuda {

constexpr int kContiguousSlice = 16;  // keys of a slice on the contiguous-KV fast path

// Input of plan_short().
struct ShortTask {
  int64_t work_tiles = 0;   // requests times KV heads
  int max_rows = 0;         // of a request
  int dim = 0;              // head size: the larger of K's and V's
  bool strict = false;      // Determinism::kStrict
  bool contiguous = false;  // requests may suit the contiguous-KV fast path (contiguous_kv.cuh)
};

// The most keys that a row may see in warp-per-head decode (warp_keys) and in CTA-per-head decode (cta_keys). 0:
// never.
struct ShortPlan {
  int warp_keys = 0, cta_keys = 0;
  // Returns the keys for which a graph of short contexts is captured: those of warp-per-head decode where that is
  // faster.
  constexpr int bucket_keys() const { return warp_keys >= 640 || warp_keys > cta_keys ? warp_keys : cta_keys; }
};

// Returns the plan for contexts so short that prologues and epilogues are much of the work, as measured on an H200
// (docs/design/attention.md). A request and KV head gets a CTA. Beyond six of them per SM it gets a warp,
// while its rows see some hundred keys. In batch-invariant mode more than 32 rows read keys twice.
constexpr ShortPlan plan_short(const ShortTask& task, int64_t num_sms) {
  constexpr int kMostRows = 40, kKeys = 640, kKeysReadTwice = 384, kManyKeys = 2048;
  const bool many = task.work_tiles >= 6 * num_sms,
             fits_cta = task.contiguous &&
                        ((task.dim == 128 && task.max_rows <= 32) || (task.dim == 256 && task.max_rows <= 16));
  ShortPlan plan{.cta_keys = fits_cta ? kManyKeys : 0};
  if (task.dim <= 64 || task.dim > 128 || task.max_rows > kMostRows) return plan;
  if (fits_cta) {
    plan.warp_keys = !many ? 0 : !task.strict ? kKeys : task.max_rows <= 16 ? kKeysReadTwice : 0;
  } else if (task.work_tiles * 2 >= (task.strict ? 3 : 4) * num_sms) {
    plan.warp_keys = !task.strict                              ? kKeys
                     : task.max_rows > 32                      ? kKeysReadTwice
                     : !many && task.work_tiles >= 3 * num_sms ? kManyKeys
                                                               : kKeys;
  }
  return plan;
}

// A warp, or the warps of a CTA, process a request and KV head.
enum class ShortKVSchedule : uint8_t { kWarpPerHead, kCtaPerHead };

}  // namespace headrace::cuda
