#include "headrace/ops/cuda/attention/heuristics.h"

#include <algorithm>
#include <set>

#include "headrace/core/error.h"

namespace headrace::cuda {
namespace {

bool is_strict(const AttentionProblem& p) { return p.shape.determinism == Determinism::kStrict; }

bool has_16_bit_queries(const AttentionProblem& p) { return p.q_dtype == DType::kBF16 || p.q_dtype == DType::kF16; }

// Returns true if TMA can load the pool's pages.
bool fits_tma(const AttentionProblem& p) {
  constexpr int kLeastPage = 8;  // slots: the swizzle repeats after 8 rows
  return p.pool && p.page_size >= kLeastPage;
}

// Returns true if a call suits WGMMA, whoever loads the keys.
bool fits_wgmma(const AttentionProblem& p, const DeviceProperties& device) {
  return device.arch == 90 && has_16_bit_queries(p) && p.layout == AttentionProblem::Layout::kTma &&
         p.head_dim % 8 == 0 && p.v_head_dim % 8 == 0 && p.largest_head() <= 256 && p.positive_scale;
}

bool fits_sm90(const AttentionProblem& p, const DeviceProperties& device) {
  return fits_wgmma(p, device) && fits_tma(p);
}

// Returns true if a call is for the kernel that gathers keys and values row by row: TMA cannot load them, or many new
// keys lie beside the pool, which the consumers would have to load. For a 12th of a prompt's keys that takes as long.
bool gathers(const AttentionProblem& p, const DeviceProperties& device) {
  constexpr int kMostFilledTokens = 256, kMostFilledShare = 12;
  const bool many = p.new_tokens > kMostFilledTokens && int64_t{p.new_tokens} * kMostFilledShare > p.shape.seen_keys;
  return fits_wgmma(p, device) && !p.is_fp8() && p.in_reach && (!fits_tma(p) || many);
}

bool fits_sm80(const AttentionProblem& p) {
  const int chunk = p.is_fp8() ? 16 : 8;  // elements of 16 bytes
  return has_16_bit_queries(p) && p.layout != AttentionProblem::Layout::kAny && p.head_dim % chunk == 0 &&
         p.v_head_dim % chunk == 0 && p.largest_head() <= 256;
}

ClusterDecodeTask cluster_decode_task(const AttentionProblem& p) {
  return {.row_tiles = p.shape.tiles16,
          .work_tiles = p.shape.tiles16 * p.kv_heads,
          .seen_keys = p.shape.seen_keys,
          .tile_keys = tile_keys(p.kernel_dim(), 1),
          .split_keys = kSm90SplitKeys};
}

bool cluster_decode_has_room(const AttentionProblem& p, const ClusterDecodePlan& plan, const DeviceProperties& device) {
  const int64_t work_tiles = p.shape.tiles16 * p.kv_heads;
  const auto memory = cluster_decode_memory(
      plan, work_tiles, cluster_decode_slots(plan, p.shape.max_keys, kSm90SplitKeys), p.kernel_dim());
  return memory.values + memory.states <= device.scratch_bytes &&
         work_tiles * plan.cluster_size + kQueueCounters <= kStreamCounters;
}

// Returns the plan of cluster decode; cluster_size is 0 if another family is faster or the call is unsupported. In
// batch-invariant mode cluster decode runs wherever it fits, because its bits equal those of fmha_sm90.
ClusterDecodePlan cluster_decode_plan(const AttentionProblem& p, const DeviceProperties& device) {
  const AttentionShape& shape = p.shape;
  if (shape.max_rows > kMostClusterDecodeRows || p.is_fp8() || !fits_sm90(p, device)) return {};
  const bool few_keys = shape.seen_keys <= keys_in_fixed_splits(shape.max_rows),
             few_rows_of_several = shape.requests > 1 && shape.max_rows <= kFewClusterDecodeRows;
  const bool even = !is_strict(p) && !few_keys && shape.tiles16 == 1;
  if (!is_strict(p) && !few_keys && !even && !few_rows_of_several) return {};
  const ClusterDecodeTask task = cluster_decode_task(p);
  const int most = most_cluster_size(p.kernel_dim());
  const ClusterDecodePlan plan = even ? even_cluster_decode_plan(task.work_tiles, most, device.num_sms)
                                      : fixed_cluster_decode_plan(task, most, device.num_sms);
  return plan.cluster_size > 0 && cluster_decode_has_room(p, plan, device) ? plan : ClusterDecodePlan{};
}

// Returns true if requests may suit the contiguous-KV fast path: whole slices, and K and V heads of one size.
bool may_be_contiguous(const AttentionProblem& p) {
  return !p.window && !p.soft_cap && !p.encoder && p.head_dim == p.v_head_dim && p.page_size >= kContiguousSlice;
}

// Returns the plan of short-KV decode, for any number of keys.
ShortPlan short_kv_plan(const AttentionProblem& p, const DeviceProperties& device) {
  constexpr int kPagesOfWarp = 32;  // each lane has one page number
  if (p.is_fp8() || !fits_sm90(p, device)) return {};
  ShortPlan plan = plan_short({.work_tiles = p.shape.requests * p.kv_heads,
                               .max_rows = p.shape.max_rows,
                               .dim = p.largest_head(),
                               .strict = is_strict(p),
                               .contiguous = may_be_contiguous(p)},
                              device.num_sms);
  plan.cta_keys = std::min(plan.cta_keys, kPagesOfWarp * p.page_size);
  return plan;
}

Sm90Task sm90_task(const AttentionProblem& p, bool gathered, bool fp8_decode) {
  return {.shape = p.shape,
          .pool = p.is_fp8() ? PoolElements::kFp8 : PoolElements::kFloats,
          .kernel_dim = p.kernel_dim(),
          .kv_heads = p.kv_heads,
          .gathers = gathered,
          .fp8_decode = fp8_decode && !p.soft_cap};
}

std::string splits_of(const Sm90Plan& plan) {
  if (plan.sharing == Sm90Plan::Sharing::kEvenSplits) return "even KV splits";
  if (plan.groups < 2) return "whole rows";
  std::string text = str("KV splits of ", plan.split_keys);
  if (plan.long_split_keys > 0) text += str(" or ", plan.long_split_keys);
  return text + (plan.finer_end ? " keys, shorter ones last" : " keys");
}

std::string describe(const Sm90Plan& plan) {
  std::string text = str("tiles of ", plan.rows, " rows x ", plan.keys, " keys, ", splits_of(plan));
  if (plan.kv_warpgroups > 1) text += str(", ", plan.kv_warpgroups, " warpgroups alternate");
  if (plan.value_parts > 1) text += str(", ", plan.value_parts, " CTAs share V's columns");
  if (plan.crowded || plan.fp8_decode_resident > 1) text += ", 2 CTAs per SM";
  return text;
}

std::string describe(const ClusterDecodePlan& plan) {
  return str(plan.clusters, plan.clusters == 1 ? " cluster of " : " clusters of ", plan.cluster_size, " CTAs, ",
             plan.splits == KVSplits::kEven ? "even" : "fixed", " KV splits");
}

}  // namespace

std::string_view name_of(AttentionFamily family) {
  switch (family) {
    case AttentionFamily::kClusterDecode: return "cluster_decode";
    case AttentionFamily::kShortKV: return "short_kv";
    case AttentionFamily::kFp8Decode: return "fp8_decode";
    case AttentionFamily::kFmhaSm90: return "fmha_sm90";
    case AttentionFamily::kFmhaSm80: return "fmha_sm80";
    case AttentionFamily::kSimt: return "simt";
  }
  return "unknown";
}

std::string attention_family_names() {
  std::string names;
  for (size_t i = 0; i < static_cast<size_t>(AttentionFamily::kSimt); ++i)
    names += (i > 0 ? "," : "") + std::string(name_of(static_cast<AttentionFamily>(i)));
  return names;
}

AttentionFamilies::AttentionFamilies(std::string_view names) {
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(name.size() + 1, names.size()));
    for (size_t i = 0; i < static_cast<size_t>(AttentionFamily::kSimt); ++i)
      if (name == name_of(static_cast<AttentionFamily>(i))) set_.set(i);
  }
}

AttentionConfig choose_attention(const AttentionProblem& p, const DeviceProperties& device,
                                 const AttentionFamilies& leave_out) {
  using enum AttentionFamily;
  const auto may_run = [&](AttentionFamily family) { return !leave_out.contains(family); };
  if (may_run(kClusterDecode)) {
    const ClusterDecodePlan plan = cluster_decode_plan(p, device);
    if (plan.cluster_size > 0) return {.family = kClusterDecode, .cluster = plan};
  }
  const int keys = std::max(p.shape.seen_keys, 1);
  const ShortPlan short_kv = may_run(kShortKV) ? short_kv_plan(p, device) : ShortPlan{};
  if (keys <= std::max(short_kv.warp_keys, short_kv.cta_keys)) {
    const bool by_warp = keys <= short_kv.warp_keys;
    return {.family = kShortKV,
            .schedule = by_warp ? ShortKVSchedule::kWarpPerHead : ShortKVSchedule::kCtaPerHead,
            .contiguous = may_be_contiguous(p)};
  }
  const bool gathered = gathers(p, device);
  if (gathered || fits_sm90(p, device)) {
    const Sm90Task task = sm90_task(p, gathered, may_run(kFp8Decode));
    const Sm90Plan plan = plan_sm90(task, device.num_sms);
    const AttentionFamily family = plan.fp8_decode_resident > 0 ? kFp8Decode : kFmhaSm90;
    if (may_run(family)) return {.family = family, .task = task, .fmha = plan};
  }
  if (may_run(kFmhaSm80) && fits_sm80(p)) return {.family = kFmhaSm80};
  return {.family = kSimt};
}

std::string to_string(const AttentionConfig& config) {
  std::string name(name_of(config.family));
  switch (config.family) {
    case AttentionFamily::kClusterDecode: return name + ": " + describe(config.cluster);
    case AttentionFamily::kShortKV:
      return name + (config.schedule == ShortKVSchedule::kWarpPerHead ? ": a warp" : ": a CTA") + " per KV head";
    case AttentionFamily::kFp8Decode:
    case AttentionFamily::kFmhaSm90:
      return name + ": " + describe(config.fmha) + (config.task.gathers ? ", rows gathered" : "");
    default: return name;
  }
}

namespace {

// Returns the CTAs of a cluster if rows that see `keys` keys have fixed splits in cluster decode, else 0. Even splits
// are the same for any number of keys.
int cluster_size_of(AttentionProblem p, int keys, const DeviceProperties& device, const AttentionFamilies& leave_out) {
  p.shape.seen_keys = keys;
  const ClusterDecodePlan plan = choose_attention(p, device, leave_out).cluster;
  return plan.splits == KVSplits::kFixed ? plan.cluster_size : 0;
}

// Adds the KV lengths up to which clusters are larger than for all keys.
void add_cluster_buckets(const AttentionProblem& p, const DeviceProperties& device, const AttentionFamilies& leave_out,
                         std::set<int32_t>& buckets) {
  const int all_keys = p.shape.seen_keys;
  const auto size_for = [&](int keys) { return cluster_size_of(p, keys, device, leave_out); };
  const ClusterDecodeTask task = cluster_decode_task(p);
  const int size = size_for(all_keys);
  // In default mode clusters of two are fast enough: the following GEMMs begin on the SMs that they leave free.
  const int most = is_strict(p) ? most_cluster_size(p.kernel_dim()) : 2;
  for (int larger = 2; larger <= most; larger *= 2) {
    int keys = keys_with_room(task.work_tiles, larger, task.split_keys, device.num_sms);
    // Default mode may use fixed splits for fewer keys only.
    if (size == 0 && (keys >= all_keys || size_for(keys) == 0))
      keys = std::min(keys, keys_in_fixed_splits(p.shape.max_rows));
    if (keys > 0 && keys < all_keys && size_for(keys) > size) buckets.insert(keys);
  }
}

}  // namespace

std::vector<int32_t> kv_len_buckets(const AttentionProblem& p, const DeviceProperties& device,
                                    const AttentionFamilies& leave_out) {
  if (p.shape.tiles16 == 0) return {};
  std::set<int32_t> buckets;
  add_cluster_buckets(p, device, leave_out, buckets);
  const bool in_clusters = choose_attention(p, device, leave_out).family == AttentionFamily::kClusterDecode;
  const int keys = leave_out.contains(AttentionFamily::kShortKV) ? 0 : short_kv_plan(p, device).bucket_keys();
  if (keys > 0 && keys < p.shape.seen_keys && !in_clusters) buckets.insert(keys);
  return {buckets.begin(), buckets.end()};
}

}  // namespace headrace::cuda
