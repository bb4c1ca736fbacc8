// Memory and dispatch of the Hopper attention kernels.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>

#include "headrace/batch/attention_plan_cache.h"
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/tensor_map.h"
#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/attention/sm90/fmha.h"
#include "headrace/ops/cuda/attention/sm90/kv_heads_per_tile.h"
#include "headrace/ops/cuda/attention/sm90/kv_tensor_maps.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

bool is_fp8(const AttentionParams& p) { return p.key_type == DType::kE4M3; }

// Shape of a tensor map and of its TMA box. `strides` are in elements, for all dimensions but the first, which is
// contiguous.
template <size_t kRank>
struct MapShape {
  std::array<cuuint64_t, kRank> sizes;
  std::array<int64_t, kRank - 1> strides;
  std::array<cuuint32_t, kRank> box;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};

template <size_t kRank>
CUtensorMap encoded(const AttentionParams& p, const PagedSide& side, const MapShape<kRank>& shape) {
  const bool codes = is_fp8(p);
  std::array<cuuint64_t, kRank - 1> strides;
  for (size_t i = 0; i + 1 < kRank; ++i) strides[i] = static_cast<cuuint64_t>(shape.strides[i] * size_of(side.type));
  std::array<cuuint32_t, kRank> steps;
  steps.fill(1);
  CUtensorMap map{};
  const CUresult status =
      tensor_map_encoder()(&map,
                           codes                      ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                           : p.q_type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                           kRank, const_cast<void*>(side.data), shape.sizes.data(), strides.data(), shape.box.data(),
                           steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HR_REQUIRE(status == CUDA_SUCCESS, ErrorCode::kCuda, "cuda paged_attention: no tensor map for a pool of ", side.pages,
             " pages of ", p.page_size, " slots of ", shape.sizes[0], ": driver error ", static_cast<int>(status));
  return map;
}

cuuint32_t box_rows(const AttentionParams& p, int keys) { return static_cast<cuuint32_t>(std::min(p.page_size, keys)); }

}  // namespace

namespace {

// Returns a map with TMA boxes of `columns` elements by the slots of a page that a tile of `keys` keys takes.
CUtensorMap box_map_of(const AttentionParams& p, const PagedSide& side, int dim, int keys, int columns,
                       CUtensorMapSwizzle swizzle) {
  return encoded<4>(p, side,
                    {.sizes = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(p.page_size),
                               static_cast<cuuint64_t>(p.kv_heads), static_cast<cuuint64_t>(side.pages)},
                     .strides = {side.slot_stride, side.head_stride, side.page_stride},
                     .box = {static_cast<cuuint32_t>(columns), box_rows(p, keys), 1, 1},
                     .swizzle = swizzle});
}

}  // namespace

CUtensorMap map_of(const AttentionParams& p, const PagedSide& side, int dim, int kernel_dim, int keys, int columns) {
  if (is_fp8(p)) return box_map_of(p, side, dim, keys, kernel_dim, CU_TENSOR_MAP_SWIZZLE_NONE);
  return box_map_of(p, side, dim, keys, columns,
                    columns == 16   ? CU_TENSOR_MAP_SWIZZLE_32B
                    : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                    : CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap column_map_of(const AttentionParams& p, const PagedSide& side, int dim, int keys) {
  const bool whole = dim % 64 == 0 && p.page_size >= keys;
  const auto columns = static_cast<cuuint32_t>(whole ? dim / 64 : 1);
  return encoded<5>(p, side,
                    {.sizes = {static_cast<cuuint64_t>(whole ? 64 : dim), static_cast<cuuint64_t>(p.page_size), columns,
                               static_cast<cuuint64_t>(p.kv_heads), static_cast<cuuint64_t>(side.pages)},
                     .strides = {side.slot_stride, 64, side.head_stride, side.page_stride},
                     .box = {64, box_rows(p, keys), columns, 1, 1}});
}

namespace {

// Bump allocator over the stream's scratch memory. take() throws kInternal if it is exhausted.
class Scratch {
 public:
  explicit Scratch(const Stream& stream)
      : at_(static_cast<char*>(stream.scratch)), left_(static_cast<int64_t>(stream.scratch_bytes)) {}
  int64_t left() const { return left_; }
  template <class T>
  T* take(int64_t count) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    HR_REQUIRE(bytes <= left_, ErrorCode::kInternal, "cuda paged_attention: scratch memory ends ", bytes - left_,
               " bytes early");
    T* taken = reinterpret_cast<T*>(at_);
    at_ += bytes, left_ -= bytes;
    return taken;
  }

 private:
  char* at_;
  int64_t left_;
};

int64_t tiles_at_most(const AttentionParams& p, int rows) {
  return int64_t{p.tokens} * (p.heads / p.kv_heads) / rows + std::min(p.requests, p.tokens);
}

// Layout of the plan's arrays, one after the other.
class PlanMemory {
 public:
  explicit PlanMemory(const AttentionCall& call) {
    const int64_t tiles = tiles_at_most(call.p, call.rows);
    const bool shares = call.plan.sharing == WorkPlan::Sharing::kEvenSplits;
    works_ = place(shares ? tiles * call.p.kv_heads + call.blocks : tiles * call.plan.max_splits, kWorkBytes);
    shares_ = place(shares ? call.blocks : 0, sizeof(uint2));
    entries_ = place(call.plan.entry_count, sizeof(MergeEntry));
    units_ = place(1, sizeof(uint32_t));
  }
  int64_t bytes() const { return bytes_; }
  void set(WorkPlan& plan, void* memory) const {
    char* at = static_cast<char*>(memory);
    plan.works = reinterpret_cast<Work*>(at + works_);
    plan.shares = reinterpret_cast<uint2*>(at + shares_);
    plan.entries = reinterpret_cast<MergeEntry*>(at + entries_);
    plan.units = reinterpret_cast<uint32_t*>(at + units_);
  }

 private:
  int64_t place(int64_t count, int64_t size) {
    const int64_t at = bytes_;
    bytes_ += (count * size + 15) / 16 * 16;
    return at;
  }
  int64_t works_, shares_, entries_, units_, bytes_ = 0;
};

int64_t slot_bytes(const AttentionParams& p, const WorkPlan& plan) {
  return int64_t{plan.slot_rows} * (p.v_head_dim + 2) * int64_t{sizeof(float)};
}

void take_slots(const AttentionParams& p, WorkPlan& plan, Scratch& scratch, int64_t slots) {
  plan.states = scratch.take<float2>(slots * plan.slot_rows);
  plan.values = scratch.take<float>(slots * plan.slot_rows * p.v_head_dim);
}

// Makes up to `parts` KV splits of each of `places` row tiles work tiles of their own. Returns false if the scratch
// memory cannot hold their partial results, or the plan exceeds the size that layers can share.
bool place_splits(AttentionCall& call, int64_t parts, int64_t places, Scratch& scratch) {
  WorkPlan& plan = call.plan;
  const int64_t tiles = tiles_at_most(call.p, call.rows), pieces = tiles * call.p.kv_heads;
  const int64_t plan_bytes = tiles * parts * kWorkBytes + pieces * int64_t{sizeof(MergeEntry)} + 4096;
  if (plan_bytes > AttentionPlanCache::kMostBytes) return false;
  if (places * parts * slot_bytes(call.p, plan) + plan_bytes > scratch.left()) return false;
  plan.max_splits = static_cast<int>(parts);
  plan.entry_count = static_cast<int>(pieces);
  take_slots(call.p, plan, scratch, places * parts);
  return true;
}

// Splits a long context beside a prompt: unsplit, one CTA per KV head would still run after all others have ended.
void cut_long_rows(AttentionCall& call, const AttentionShape& shape, Scratch& scratch) {
  WorkPlan& plan = call.plan;
  const WorkPlan uncut = plan;
  if (plan.group_tiles == 0) plan.group_tiles = kSm90SplitKeys / call.keys;
  plan.piece_tiles = plan.group_tiles;
  plan.slot_rows = kCutRows;
  plan.cuts = WorkPlan::Cuts::kLongFewRows;
  const int split_keys = plan.group_tiles * call.keys;
  const int64_t parts = (int64_t{shape.max_keys} + split_keys - 1) / split_keys + 1;
  if (!place_splits(call, parts, int64_t{call.p.requests} * call.p.kv_heads, scratch)) plan = uncut;
}

// Sets fixed KV splits and reserves memory for their results. Without that memory rows stay whole.
void set_fixed_splits(AttentionCall& call, const Sm90Plan& planned, Scratch& scratch) {
  const AttentionParams& p = call.p;
  WorkPlan& plan = call.plan;
  plan.piece_tiles = planned.split_keys / planned.keys;
  plan.long_tiles = planned.long_split_keys / planned.keys;
  plan.group_tiles = std::max(plan.piece_tiles, plan.long_tiles);
  call.many_splits = planned.many_splits;
  if (planned.fp8_decode_resident == 0)
    plan.stash = scratch.take<float>(int64_t{call.blocks} * (int64_t{kStashFloats} * 256));
  if (planned.groups < 2) return;
  const int64_t places = tiles_at_most(p, call.rows) * p.kv_heads;
  plan.finer_end = planned.finer_end && place_splits(call, planned.groups * WorkPlan::kFiner + 1, places, scratch);
  if (!plan.finer_end) place_splits(call, planned.groups + 1, places, scratch);
}

// Returns the KV heads that the queue serves side by side: all, except for long prompts.
int heads_side_by_side(const AttentionCall& call, const AttentionShape& shape, const Stream& stream) {
  const AttentionParams& p = call.p;
  if (shape.max_rows <= 64 || call.plan.both_ends) return p.kv_heads;
  const int64_t key_bytes = int64_t{p.head_dim + p.v_head_dim} * static_cast<int64_t>(size_of(p.key_type));
  return heads_together(
      {.kv_heads = p.kv_heads, .bytes = shape.seen_keys * key_bytes, .row_tiles = sm90_tiles(shape, call.rows)},
      stream.num_sms);
}

void take_plan(AttentionCall& call, const Sm90Plan& planned, const AttentionShape& shape, const Stream& stream) {
  WorkPlan& plan = call.plan;
  plan.queue = stream.counters;
  call.fp8_decode_resident = planned.fp8_decode_resident, call.determinism = shape.determinism;
  const int resident = planned.fp8_decode_resident > 0 ? planned.fp8_decode_resident : planned.crowded ? 2 : 1;
  call.blocks = resident * stream.num_sms;
  call.rows = planned.rows, call.keys = planned.keys;
  plan.slot_rows = std::min(call.rows, shape.max_rows);
  plan.both_ends = planned.both_ends, plan.crowded = planned.crowded;
  plan.kv_warpgroups = planned.kv_warpgroups, plan.value_parts = planned.value_parts;
}

// Sets the plan, except the arrays in PlanMemory.
void share_out(AttentionCall& call, const AttentionConfig& config, const AttentionShape& shape, const Stream& stream,
               Scratch& scratch) {
  const AttentionParams& p = call.p;
  WorkPlan& plan = call.plan;
  Sm90Plan planned = config.fmha;
  take_plan(call, planned, shape, stream);
  if (planned.sharing == Sm90Plan::Sharing::kFixedSplits) set_fixed_splits(call, planned, scratch);
  if (planned.needs_room && plan.max_splits == 1) {
    Sm90Task task = config.task;
    task.room_for_splits = false;
    planned = plan_sm90(task, stream.num_sms);
    plan.group_tiles = plan.piece_tiles = plan.long_tiles = 0;
    take_plan(call, planned, shape, stream);
  }
  if (planned.sharing == Sm90Plan::Sharing::kEvenSplits) {
    plan.sharing = WorkPlan::Sharing::kEvenSplits;
    plan.entry_count = call.blocks;
    take_slots(p, plan, scratch, int64_t{2} * call.blocks);
  }
  plan.heads_together = heads_side_by_side(call, shape, stream);
  if (planned.cuts_long_rows && plan.max_splits == 1) cut_long_rows(call, shape, scratch);
}

KVMaps maps_of(const AttentionCall& call, int dim) {
  const AttentionParams& p = call.p;
  const auto of = [&](const PagedSide& side, int of_head) {
    if (call.fp8_decode_resident == 0) return map_of(p, side, of_head, dim, call.keys);
    return box_map_of(p, side, of_head, call.keys, 128, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  return {.k = of(p.k, p.head_dim), .v = of(p.v, p.v_head_dim)};
}

// Returns the cache key: everything that the work tiles depend on besides the batch's spans.
AttentionPlanCache::Key key_of(const AttentionCall& call) {
  const AttentionParams& p = call.p;
  return {call.rows,
          call.keys,
          call.blocks,
          static_cast<int32_t>(call.plan.sharing),
          call.plan.piece_tiles,
          call.plan.max_splits,
          p.heads,
          p.kv_heads,
          p.window,
          static_cast<int32_t>(p.type),
          (p.encoder ? 1 : 0) + (p.k_new.data == nullptr ? 2 : 0) + (call.gathers ? 4 : 0),
          static_cast<int32_t>(call.plan.cuts)};
}

// Provides the work tiles: those that an earlier layer scheduled, or new ones.
void plan_pieces(AttentionCall& call, AttentionPlanCache* plans, const Stream& stream, Scratch& scratch) {
  const PlanMemory memory(call);
  AttentionPlanCache::Place place;
  if (plans != nullptr) place = plans->find(key_of(call), memory.bytes());
  if (place.memory == nullptr) place.memory = scratch.take<char>(memory.bytes());
  memory.set(call.plan, place.memory);
  if (place.state == AttentionPlanCache::State::kNew) return plan_attention_sm90(call, stream);
  call.plan.stands = true;
}

template <class T, PoolElements kPool>
void attend_in(const AttentionCall& call, int dim, int max_rows, const Stream& stream) {
  if constexpr (kPool == PoolElements::kFloats) {
    const auto gather = dim == 64 ? fmha_gather<T, 64> : dim == 128 ? fmha_gather<T, 128> : fmha_gather<T, 256>;
    if (call.gathers) return gather(call, max_rows, stream);
  }
  if (call.fp8_decode_resident > 0) return (dim <= 128 ? fp8_decode<T, 128> : fp8_decode<T, 256>)(call, stream);
  const auto tall = dim == 64    ? fmha_prefill<T, 64, kPool>
                    : dim == 128 ? fmha_prefill<T, 128, kPool>
                                 : fmha_prefill<T, 256, kPool>;
  const auto few = dim == 64    ? fmha_decode<T, 64, kPool>
                   : dim == 128 ? fmha_decode<T, 128, kPool>
                                : fmha_decode<T, 256, kPool>;
  (max_rows > 64 ? tall : few)(call, stream);
}

}  // namespace

void fmha_sm90(const AttentionParams& p, const AttentionShape& shape, const AttentionConfig& config,
               AttentionPlanCache* plans, const Stream& stream) {
  const int dim = config.task.kernel_dim;
  Scratch scratch(stream);
  AttentionCall call{.p = p, .gathers = config.task.gathers};
  share_out(call, config, shape, stream, scratch);
  if (!call.gathers) call.maps = maps_of(call, dim);
  plan_pieces(call, plans, stream, scratch);
  const bool bf16 = p.q_type == DType::kBF16;
  if (is_fp8(p)) {
    (bf16 ? attend_in<__nv_bfloat16, PoolElements::kFp8>
          : attend_in<__half, PoolElements::kFp8>)(call, dim, shape.max_rows, stream);
  } else {
    (bf16 ? attend_in<__nv_bfloat16, PoolElements::kFloats>
          : attend_in<__half, PoolElements::kFloats>)(call, dim, shape.max_rows, stream);
  }
  if (call.plan.entry_count > 0) merge_splits_sm90(call, stream);
}

}  // namespace headrace::cuda
