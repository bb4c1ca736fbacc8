// CTA-per-head decode of short contexts: one CTA per request and KV head, whose warps split the keys.
#pragma once
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/cta_per_head_block.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.cuh"

namespace headrace::cuda {

struct CtaPerHeadCall : ShortCall {
  int places = 0;  // stages of K tiles or V tiles
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Returns true if the contiguous-KV fast path supports a request and its keys are one fixed KV split.
__device__ inline bool usual_in_order(const AttentionParams& p, const KeySpan& span) {
  const RunKeys keys(p, span);
  const bool follows = keys.added == 0 || span.phys0 == keys.cached;
  return span.hole_end <= span.hole_begin && follows && keys.added * keys.fresh <= kContiguousSlice &&
         keys.stored <= p.page_size * 32 && keys.cached + keys.added <= kSm90SplitKeys;
}

// Processes rows from row0 on, 16 * kTiles at most, with all warps of the CTA. Returns true if a value is NaN.
template <class X>
__device__ inline bool attend_shared_rows(const ShortCall& call, const KeySpan& span, const ShortPlace& place,
                                          int first_pages, char* shared, TilePlaceOf& turn) {
  const AttentionParams& p = call.p;
  CtaPerHead<X> run{.call = call,
                    .p = p,
                    .place = place,
                    .keys = RunKeys(p, span),
                    .behind = shared + turn.places * X::kTileBytes,
                    .memory = shared_address(shared),
                    .lane = static_cast<int>(threadIdx.x % 32),
                    .warp = static_cast<int>(uniform(threadIdx.x / 32)),
                    .page = first_pages,
                    .to_log2 = p.scale * 1.4426950408889634f,
                    .taken = turn,
                    .asked = turn};
  run.begin();
  if (place.row0 == 0) {
    pdl_wait();
    pdl_launch_dependents();
  }
  run.begin_rest(span);
  const bool nan = run.attend_all();
  turn = run.taken;
  return nan;
}

// Processes one request and KV head. If the fast path does not support the request, one warp processes it.
template <class X>
__device__ inline void cta_per_head_block(const ShortCall& call, int places, char* shared) {
  using S = typename X::S;
  const AttentionParams& p = call.p;
  const int request = static_cast<int>(gridDim.y - 1 - blockIdx.y), kv_head = static_cast<int>(blockIdx.x);
  const KeySpan span = folded(p.spans[request], p.type);
  const int first_pages = first_pages_of(p, span), rows = span.q_len * (p.heads / p.kv_heads);
  const bool shares = call.contiguous && usual_in_order(p, span);
  char* const behind = shared + places * X::kTileBytes;
  ShortControl<S>& control = *reinterpret_cast<ShortControl<S>*>(behind);
  if (threadIdx.x == 0) {
    uint64_t* const barriers = shares ? reinterpret_cast<uint64_t*>(behind + X::kBarriersAt) : control.full;
    for (int i = 0; i < (shares ? places : S::kMostStages); ++i)
      barrier_init(shared_address(barriers + i), shares ? S::kThreads : 1);
    fence_barrier_init();
  }
  __syncthreads();
  const PackedRows packed(p.heads / p.kv_heads);
  bool nan = false;
  if (rows == 0 || (!shares && threadIdx.x >= 32)) {
    pdl_wait();  // a kernel may not end before the preceding ones
    pdl_launch_dependents();
  }
  if (shares) {
    TilePlaceOf turn{places};
    for (int row0 = 0; row0 < rows; row0 += X::kRows) {
      const ShortPlace place{packed, span.q_off, kv_head, row0, min(X::kRows, rows - row0)};
      nan |= attend_shared_rows<X>(call, span, place, first_pages, shared, turn);
    }
  } else if (threadIdx.x < 32) {
    uint32_t phases = 0;
    for (int row0 = 0; row0 < rows; row0 += X::kRows) {
      const ShortPart part{span, request, kv_head, row0, first_pages};
      nan |= attend_short_rows<S, X::kTiles>(call, part, packed, control, shared, phases);
      fence_for_wgmma();  // for TMA: the next rows' keys come where these rows were staged for output
      __syncwarp();
    }
  }
  if (__syncthreads_or(nan)) redo_short_rows(p, p.spans[request], request, kv_head, 1, shared);
}

#endif

template <class X>
__global__ void __launch_bounds__(X::S::kThreads, 2) cta_per_head(const __grid_constant__ CtaPerHeadCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  cta_per_head_block<X>(call, call.places, shared);
#endif
}

// CTAs with an SM each take all of its shared memory. That pays only for many keys, because the next kernel then finds
// no room beside them.
template <class X>
void launch_cta_per_head(const ShortCall& call, const AttentionShape& shape, const Stream& stream) {
  constexpr int kFewKeys = 640;
  const bool spread = shape.seen_keys > kFewKeys && shape.requests * call.p.kv_heads <= stream.num_sms;
  const CtaPerHeadCall all{call, spread ? X::kMostPlaces : X::kFewPlaces};
  const dim3 grid(static_cast<unsigned>(call.p.kv_heads), static_cast<unsigned>(call.p.requests));
  launch_pdl(stream, cta_per_head<X>, grid, dim3(X::S::kThreads), X::shared_bytes(all.places), all, "paged_attention");
}

template <class T>
void cta_per_head_of(const ShortCall& call, const AttentionShape& shape, const Stream& stream) {
  if (call.p.head_dim > 128) {
    launch_cta_per_head<CtaPerHeadTraits<StrictShape<T, 256>, 1>>(call, shape, stream);
  } else if (shape.max_rows <= 16) {
    launch_cta_per_head<CtaPerHeadTraits<StrictShape<T, 128>, 1>>(call, shape, stream);
  } else {
    launch_cta_per_head<CtaPerHeadTraits<StrictShape<T, 128>, 2>>(call, shape, stream);
  }
}

}  // namespace headrace::cuda
