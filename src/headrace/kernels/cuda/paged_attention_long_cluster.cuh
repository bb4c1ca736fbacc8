// Attention of one request's few rows over many keys, where launches, a plan and a join were a fifth of the time: the
// blocks of a kv head take tiles of its keys in turns, with two always under way, and meet in clusters, whose blocks
// send one another their sums; the last of the clusters to come adds up the sums of all. Source: Dao et al. 2023,
// Flash-Decoding.
#pragma once
#include <bit>

#include "headrace/kernels/cuda/long_cluster_block.cuh"

namespace headrace::cuda {

#if __CUDA_ARCH__ >= 900

// Sums of the parts of a row's keys, added up; of the values four columns.
struct JoinedColumns {
  PartSum all;
  float4 sum{};

  // `state` and `values` give those of part 0 to `count` - 1. They are loaded before the first is used.
  template <int kMost, class State, class Values>
  __device__ static JoinedColumns of(int count, const State& state, const Values& values) {
    PartSum parts[kMost];
    float4 columns[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= count) continue;
      const float2 x = state(i);
      parts[i] = {x.x, x.y};
      columns[i] = values(i);
    }
    JoinedColumns joined;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (parts[i].sum != 0) joined.all.largest = fmaxf(joined.all.largest, parts[i].largest);
    }
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (parts[i].sum != 0) joined.add(parts[i].sum, columns[i], exp2_fast(parts[i].largest - joined.all.largest));
    }
    return joined;
  }
  __device__ void add(float weights, const float4& x, float factor) {
    all.sum = fmaf(factor, weights, all.sum);
    sum = {fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z), fmaf(factor, x.w, sum.w)};
  }
};

// How a block's sums meet those of the others. Each block of a cluster adds up an equal share of the rows' elements,
// four columns each.
template <class S>
struct LongClusterJoin {
  static constexpr int kRowElements = S::kDim / 4;
  const LongClusterCall& call;
  const LongClusterBlock<S>& b;
  int share;        // elements
  int slot;         // the share's place: kv head and rank
  int part, parts;  // this cluster's, of those that have keys

  __device__ float2* sent_state(unsigned block, int row) const {
    return reinterpret_cast<float2*>(b.shared + S::kSentStatesAt) + block * S::kRows + row;
  }
  __device__ float4* sent_values(unsigned block, int e) const {
    return reinterpret_cast<float4*>(b.shared + S::kSentValuesAt) + block * share + e;
  }
  // Sends the block's sums, as join_warps left them to each of its threads, to the blocks that add them up.
  __device__ void send() const {
    const RowSums<S> from = b.joined_sums();
    for (int i = threadIdx.x; i < b.valid_rows() * static_cast<int>(b.blocks); i += S::kThreads) {
      const float2 x = *from.state(i / b.blocks);
      const uint32_t to = address_in(shared_address(sent_state(b.rank, i / b.blocks)), i % b.blocks);
      asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x.x), "f"(x.y) : "memory");
    }
    for (int i = threadIdx.x; i < b.valid_rows() * kRowElements; i += S::kThreads) {
      const float4 x = *reinterpret_cast<const float4*>(from.values(i / kRowElements, i % kRowElements * 4));
      const uint32_t to = address_in(shared_address(sent_values(b.rank, i % share)), i / share);
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                   : "memory");
    }
  }

  __device__ int element(int e) const { return static_cast<int>(b.rank) * share + e; }
  // Element `e` of the share from the first `active` blocks of this cluster, and from all parts.
  __device__ JoinedColumns of_blocks(int active, int e) const {
    const int row = element(e) / kRowElements;
    return JoinedColumns::of<kMostLongBlocks>(
        active, [&](int block) { return *sent_state(block, row); }, [&](int block) { return *sent_values(block, e); });
  }
  __device__ int64_t left_at(int of_part, int e) const { return (int64_t{slot} * call.parts + of_part) * share + e; }
  __device__ float2* left_state(int of_part, int e) const {
    return reinterpret_cast<float2*>(call.states) + left_at(of_part, e);
  }
  __device__ float4* left_values(int of_part, int e) const {
    return reinterpret_cast<float4*>(call.values) + left_at(of_part, e);
  }
  __device__ JoinedColumns of_parts(int e) const {
    return JoinedColumns::of<kMostLongParts>(
        parts, [&](int i) { return __ldcg(left_state(i, e)); }, [&](int i) { return __ldcg(left_values(i, e)); });
  }

  // Leaves the share where the last of the parts finds it. True in that one.
  __device__ bool leave(int active) const {
    for (int e = threadIdx.x; e < share; e += S::kThreads) {
      const JoinedColumns x = of_blocks(active, e);
      *left_state(part, e) = make_float2(x.all.largest, x.all.sum);
      *left_values(part, e) = x.sum;
    }
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
      int before;  // releases what this block wrote, and acquires what the others did
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(call.done + slot), "r"(parts - 1)
                   : "memory");
      last = before == parts - 1;
    }
    return __syncthreads_or(last) != 0;
  }
  // Writes the share. Returns whether a value is NaN.
  __device__ bool write(int active) const {
    bool nan = false;
    for (int e = threadIdx.x; e < share; e += S::kThreads) {
      const int row = element(e) / kRowElements, d = element(e) % kRowElements * 4;
      const JoinedColumns x = parts > 1 ? of_parts(e) : of_blocks(active, e);
      const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
      const RowResult result{b.p, {}, 0};
      if (d == 0) result.state(token, head, x.all.largest, x.all.sum);
      nan |= result.template values<typename S::T>(token, head, d, x.sum.x, x.sum.y, x.all.sum);
      nan |= result.template values<typename S::T>(token, head, d + 2, x.sum.z, x.sum.w, x.all.sum);
    }
    return nan;
  }
  // The share again, row by row: see redo_rows. 128 threads' work.
  __device__ void redo(int request) const {
    const int begin = element(0) * 4, end = begin + share * 4;
    for (int row = begin / S::kDim; row * S::kDim < end; ++row) {
      const int from = max(begin - row * S::kDim, 0), to = min(end - row * S::kDim, S::kDim);
      attend_row(b.p, request, b.axis.span.q_off + b.token_of(row), b.head_of(row),
                 *reinterpret_cast<RowScratch*>(b.shared), RowWrite::kWhereNaN,
                 {1, static_cast<int>(threadIdx.x), from, to - from});
    }
  }
};

template <class S>
__device__ inline void attend_long_cluster_block(const LongClusterCall& call, char* shared) {
  const AttentionParams& p = call.p;
  const int kv_head = static_cast<int>(blockIdx.y);
  prefetch_keys<typename S::T, S::kDim, S::kKeys>(p,
                                                  {kv_head, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)});
  wait_for_previous();
  const int group = p.heads / p.kv_heads;
  const TilePlace place = locate_tile(p.spans, p.requests, S::kRows, 0, group);
  if (place.request < 0) return;
  cluster_arrive_release();  // this block has begun: others may write to its memory
  const KeyAxis axis(p, place.request);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = axis.span.q_len * group;
  const int blocks = static_cast<int>(gridDim.x) / call.parts, first = static_cast<int>(blockIdx.x),
            rank = first % blocks;
  LongClusterBlock<S> b{{{p, axis, shared, kv_head, 0, rows, group, lane, 0, warp, {}, {}},
                         static_cast<unsigned>(rank),
                         static_cast<unsigned>(blocks)}};
  b.top = axis.row(p, b.token_of(0)), b.bottom = axis.row(p, b.token_of(b.valid_rows() - 1));
  b.range = TileRange::of<S::kKeys>(p, axis, b.top, b.bottom.end);
  b.plain = !p.encoder && axis.span.hole_end == axis.span.hole_begin && p.window == kNoWindow;
  b.policy = read_once_policy();

  const int parts = min((b.range.count + blocks - 1) / blocks, call.parts), part = first / blocks,
            active = min(max(b.range.count - part * blocks, 0), blocks);
  const int share = b.valid_rows() * (S::kDim / 4) / blocks;
  const LongClusterJoin<S> join{call, b, share, kv_head * blocks + rank, part, parts};
  if (rank < active) {
    MmaState<S> state;
    b.attend(first, static_cast<int>(gridDim.x), state);
    b.join_warps(state);
  }
  cluster_wait_acquire();
  if (rank < active) join.send();
  cluster_arrive_release();
  cluster_wait_acquire();
  if (part >= max(parts, 1)) return;
  if (parts > 1 && !join.leave(active)) return;
  const bool nan = join.write(active);
  if (__syncthreads_or(nan) && threadIdx.x < 128) join.redo(place.request);
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) attend_long_cluster(const __grid_constant__ LongClusterCall call) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  attend_long_cluster_block<S>(call, shared);
#endif
}

// Clusters of `blocks` blocks that the device holds at once.
template <class S>
int room_for_clusters(int blocks) {
  check_cuda(cudaFuncSetAttribute(attend_long_cluster<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
             "paged_attention: shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = S::kSharedBytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int room = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&room, attend_long_cluster<S>, &config), "paged_attention: clusters");
  return room;
}

// Calls f with the shape of a head size. Eight warps hide one another's chains of products and softmax; of heads of 256
// there is room for four.
template <class T, class F>
auto with_long_shape(int dim, const F& f) {
  if (dim == 64) return f(LongClusterShape<T, 64, 8, 6>());
  if (dim == 128) return f(LongClusterShape<T, 128, 8, 3>());
  return f(LongClusterShape<T, 256, 4, 3>());
}

template <class T>
int room_for_long_clusters(int dim, int blocks) {
  return with_long_shape<T>(dim, [&](auto shape) {
    using S = decltype(shape);
    static const int room[4] = {room_for_clusters<S>(1), room_for_clusters<S>(2), room_for_clusters<S>(4),
                                room_for_clusters<S>(8)};
    return room[std::countr_zero(static_cast<unsigned>(blocks))];
  });
}

template <class T>
void attend_long_cluster_of(const LongClusterCall& call, int blocks, const Stream& stream) {
  with_long_shape<T>(call.p.head_dim, [&](auto shape) {
    using S = decltype(shape);
    const dim3 grid(static_cast<unsigned>(blocks * call.parts), static_cast<unsigned>(call.p.kv_heads));
    launch_early(stream, attend_long_cluster<S>, grid, dim3(S::kThreads), S::kSharedBytes, call, "paged_attention",
                 static_cast<unsigned>(blocks));
  });
}

}  // namespace headrace::cuda
