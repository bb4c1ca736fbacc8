// Chunked gated delta rule on Hopper, first kernel: WY factors. A CTA of one warpgroup handles a chunk of a key head
// and two of its value heads. Four CTAs per SM hide each other's latency.
#include "headrace/ops/cuda/gdn/sm90/chunk.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HR_BUILD_SM90A 1
#endif
#include "headrace/ops/cuda/gdn/sm90/chunk_wy.cuh"

namespace headrace::cuda {
namespace {

using namespace gdn;

constexpr int kBlocks = 4;  // CTAs per SM

#ifdef HR_BUILD_SM90A
// Returns the request of place `place` of the pass and the place's index in the request; {-1, 0} after the last. Called
// by whole warps.
__device__ int2 locate(const GDNParams& p, const Pass& pass, int place) {
  const int lane = threadIdx.x % 32;
  for (int r0 = 0; r0 < p.requests; r0 += 32) {
    const int mine = r0 + lane < p.requests ? places(p, pass, r0 + lane) : 0;
    int upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto += before;
    }
    const unsigned after = __ballot_sync(0xffffffffu, upto > place);
    if (after != 0) {
      const int found = __ffs(static_cast<int>(after)) - 1;
      return {r0 + found, place - __shfl_sync(0xffffffffu, upto - mine, found)};
    }
    place -= __shfl_sync(0xffffffffu, upto, 31);
  }
  return {-1, 0};
}

// Computes the WY factors of `kHeads` value heads from `head`. Their gates must have been written.
template <int kHeads>
__device__ void make(const WyFactors& maker, const float (&kk)[8][4], const float (&qk)[8][4]) {
  float near_kk[2][4], near_qk[2][4];
  maker.copy_diagonal(kk, near_kk);
  maker.copy_diagonal(qk, near_qk);
  hold(near_kk);
  hold(near_qk);
#pragma unroll 1
  for (int head = 0; head < kHeads; ++head) {
    WyFactors self = maker;  // recomputes addresses per head, to save registers
    asm volatile("" : "+r"(self.warp), "+r"(self.lane));
    const WyFactors::Rows rows = self.rows_of(head);
    self.weigh_near(head, rows, near_kk, near_qk);
    self.weigh_far(head, rows, kk, qk);
  }
  __syncwarp();
  maker.invert_diagonal<kHeads>();
  __syncwarp();
  for (int head = 0; head < kHeads; ++head) maker.multiply_left(head);
  if (kHeads == 2 || maker.thread < kChunk) maker.write_scales(maker.thread / kChunk, maker.thread % kChunk);
  __syncthreads();
  maker.substitute_column(0, maker.warp);
  if (kHeads == 2) maker.substitute_column(1, 3 - maker.warp);
  fence_for_wgmma();
  __syncthreads();
}

// Work of a CTA: a chunk and one or two value heads.
struct Task {
  int place, key_head, head, heads, first_row, count;
};

// Computes W of the heads, which overwrites the scaled keys, and copies it to scratch memory.
template <int kHeads>
__device__ void write_keys_out(const GDNParams& p, const Pass& pass, const WyFactors& maker, const Task& task) {
  using L = MakerLayout;
  maker.scale_keys<kHeads>();
  fence_for_wgmma();
  __syncthreads();
  for (int head = 0; head < kHeads; ++head) {
    const int keys = head == 0 ? L::kQ : L::kK;
    float w[16][4];
    maker.multiply_keys(head, keys, w);
    __syncthreads();  // all warps have read the keys
    maker.write_keys(keys, w);
  }
  fence_for_wgmma();
  __syncthreads();
  if (maker.thread != 0) return;
  copy_bytes_out(keys_of(p, pass, task.place, task.head), maker.shared + L::kQ, kKeysBytes);
  if (kHeads == 2) copy_bytes_out(keys_of(p, pass, task.place, task.head + 1), maker.shared + L::kK, kKeysBytes);
}

template <int kHeads>
__device__ void make_all(const GDNParams& p, const Pass& pass, const WyFactors& maker, const Task& task,
                         const float (&kk)[8][4], const float (&qk)[8][4]) {
  make<kHeads>(maker, kk, qk);
  if (maker.thread == 0) {
    copy_bytes_out(wy_factors_of(p, pass, task.place, task.head), maker.shared + MakerLayout::kWYFactors,
                   kHeads * WYFactors::kBytes);
  }
  if (pass.keys != nullptr) write_keys_out<kHeads>(p, pass, maker, task);
}

__device__ void read_keys(const GDNParams& p, const CUtensorMap& qkv, const WyFactors& maker, const Task& task) {
  using L = MakerLayout;
  const uint32_t barrier = maker.shared + L::kBarrier;
  if (maker.thread != 0) return;
  barrier_init(barrier, 1);
  fence_barrier_init();
  barrier_expect(barrier, 4 * kTile);
  for (int half = 0; half < 2; ++half) {
    tma_load(maker.shared + L::kK + half * kTile, qkv, (p.k_heads + task.key_head) * kDim + 64 * half, task.first_row,
             0, 0, barrier);
    tma_load(maker.shared + L::kQ + half * kTile, qkv, task.key_head * kDim + 64 * half, task.first_row, 0, 0, barrier);
  }
}

__device__ void make_wy_factors_of(const GDNParams& p, const Pass& pass, const CUtensorMap& qkv, const WyFactors& maker,
                                   const Task& task) {
  using L = MakerLayout;
  read_keys(p, qkv, maker, task);
  WyFactors::GateInputs inputs{};
  if (maker.warp < task.heads) inputs = maker.load_gates(task.first_row, task.count, task.head + maker.warp);
  __syncthreads();  // the mbarrier is initialised
  barrier_wait(maker.shared + L::kBarrier, 0);
  if (task.count < kChunk) {
    clear_rows(maker.base, 4, task.count, maker.thread, kGroupThreads);
    fence_for_wgmma();
    __syncthreads();
  }
  float kk[8][4], qk[8][4], near[2][4];
  maker.start_products(kk, qk);
  maker.write_query_factors();
  if (maker.warp < task.heads) maker.write_gates(maker.gates(maker.warp), inputs, task.count);
  wgmma_wait<0>();
  hold(kk);
  hold(qk);
  maker.copy_diagonal(kk, near);
  maker.write_key_factors(near);
  __syncthreads();  // the tiles of q have been read; factors and gates are written
  if (task.heads == 2) {
    make_all<2>(p, pass, maker, task, kk, qk);
  } else {
    make_all<1>(p, pass, maker, task, kk, qk);
  }
  if (maker.thread == 0) wait_bytes_out();
}
#endif  // HR_BUILD_SM90A

__global__ void __launch_bounds__(kGroupThreads, kBlocks)
    make_wy_factors(const GDNParams p, const Pass pass, const __grid_constant__ CUtensorMap qkv) {
#ifdef HR_BUILD_SM90A
  extern __shared__ __align__(1024) char memory[];
  pdl_launch_dependents();
  const int2 at = locate(p, pass, static_cast<int>(blockIdx.y));
  if (at.x >= 0) {
    const KeySpan span = p.batch.spans[at.x];
    Walk walk(p, at.x, span.q_len);
    walk.skip(p, pass.first + at.y);
    const int first = walk.done, count = walk.next(p), thread = threadIdx.x;
    const WyFactors maker{p, memory, shared_address(memory), thread, thread / 32, thread % 32};
    const int group = p.v_heads / p.k_heads, pairs = (group + 1) / 2, key_head = static_cast<int>(blockIdx.x) / pairs;
    const int of_group = 2 * (static_cast<int>(blockIdx.x) % pairs);
    const Task task{.place = static_cast<int>(blockIdx.y),
                    .key_head = key_head,
                    .head = key_head * group + of_group,
                    .heads = min(group - of_group, 2),
                    .first_row = span.q_off + first,
                    .count = count};
    if (maker.shared % 1024 != 0) __trap();  // required by the TMA swizzle
    if (count > 0) make_wy_factors_of(p, pass, qkv, maker, task);
  }
  if (blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) pdl_wait();  // see Start
#endif
}

}  // namespace

// `places` must be at least the sum of the requests' places.
void gdn::gdn_chunk_wy_sm90(const GDNParams& p, const Pass& pass, const Maps& maps, int places, Start start,
                            const Stream& stream) {
  constexpr int bytes = MakerLayout::kBytes;
  static_assert(kBlocks * (bytes + 1024) <= 228 * 1024);
  check_cuda(cudaFuncSetAttribute(make_wy_factors, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "setting the shared memory of gated_delta_rule");
  EarlyLaunch launch(
      dim3(static_cast<unsigned>(p.k_heads * ((p.v_heads / p.k_heads + 1) / 2)), static_cast<unsigned>(places)),
      kGroupThreads, bytes, stream);
  if (start == Start::kAfterAll) launch.config.numAttrs = 0;
  check_cuda(cudaLaunchKernelEx(&launch.config, make_wy_factors, p, pass, maps.qkv),
             "launching gated_delta_rule, WY factors");
}

}  // namespace headrace::cuda
