// Chunked gated delta rule on Hopper, second kernel: state pass. A CTA carries one value head's state, or half of its
// value dimensions, through a request's chunks. One producer thread loads ahead by TMA.
#include "headrace/ops/cuda/gdn/sm90/chunk.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HR_BUILD_SM90A 1
#endif
#include "headrace/ops/cuda/gdn/sm90/chunk_state.cuh"

namespace headrace::cuda {
namespace {

using namespace gdn;

#ifdef HR_BUILD_SM90A
// State pass of one of two warpgroups in a CTA, over all chunks of the pass. The two warpgroups hide each other's
// latency. A chunk's outputs are computed and written while S k of the next chunk runs.
__device__ void pass_half(const ChunkState<2>& c, uint32_t full, uint32_t empty) {
  using L = Layout<2>;
  Walk walk = c.at.walk;
  int now = 0, parity = 0, first = walk.done;
  walk.next(c.p);
  int snapshot = walk.snapshot;
  float s[16][4], x[8][4], o[8][4], n[8][4], y[8][4];
  uint32_t packed[8][4], r[4][4], plain[4][4], scaled[4][4];
  float2 of_value[8], of_state[8], of_query[8], of_update[8];
  c.load_first(s);
  int count = c.wait_for(full, 0, 0);
  c.pack_state(s, packed);
  c.start_state_product(c.operands(0), L::kK, packed, x);
  c.load_pairs(c.chunk(0).scales.value, of_value);
  c.load_pairs(c.chunk(0).scales.state, of_state);
  c.load_values(c.stage(0), r);
  c.scale_values(of_value, r, y);
  wgmma_wait<0>();
  hold(x);
  while (count > 0) {
    const auto chunk = c.chunk(now);
    c.right_hand_side(of_state, x, y, r);
    c.start_solve(chunk.operands, r, n);
    c.start_state_product(chunk.operands, L::kQ, packed, o);
    c.load_pairs(chunk.scales.update, of_update);
    c.decay_state(chunk.last, s);
    wgmma_wait<1>();
    hold(n);
    c.pack_n(of_update, n, plain, scaled);
    c.start_update(chunk.operands, scaled, s);
    c.load_pairs(chunk.scales.query, of_query);
    wgmma_wait<1>();
    hold(o);
    c.start_output(chunk.operands, of_query, plain, o);
    const int before = now;
    if (++now == kStages) now = 0, parity ^= 1;
    const int next_count = c.wait_for(full, now, parity);
    wgmma_wait<1>();
    hold(s);
    c.pack_state(s, packed);
    c.start_state_product(c.operands(now), L::kK, packed, x);  // unused after the last chunk
    wgmma_wait<1>();
    hold(o);
    barrier_arrive(empty + 8 * before);
    c.keep_output(o);
    c.write_output(first, count);
    c.load_pairs(c.chunk(now).scales.value, of_value);
    c.load_pairs(c.chunk(now).scales.state, of_state);
    c.load_values(c.stage(now), r);
    c.scale_values(of_value, r, y);
    wgmma_wait<0>();
    hold(x);
    first += count, count = next_count;
    if (c.p.snapshots > 0) c.save_snapshots(snapshot, first, s);
  }
  c.save_last(first, s);
  if (c.thread == 0) wait_bytes_out();
}

// State pass of a warpgroup that is alone in its CTA. Only N = T v + W S and the state update depend on each other. All
// other GEMMs are issued where the warpgroup would wait for these.
__device__ void pass_half(const ChunkState<1>& c, uint32_t full, uint32_t empty) {
  using L = Layout<1>;
  Walk walk = c.at.walk;
  int now = 0, parity = 0, first = walk.done;
  walk.next(c.p);
  int snapshot = walk.snapshot;
  float s[16][4], o[8][4], n[8][4], y[8][4];
  uint32_t packed[8][4], values[4][4], plain[4][4], scaled[4][4];
  float2 of_value[8], of_query[8], of_update[8];
  c.load_first(s);
  int count = c.wait_for(full, 0, 0);
  c.load_pairs(c.chunk(0).scales.value, of_value);
  c.load_values(c.stage(0), values);
  c.scale_values(of_value, values, o);
  c.pack_tokens(o, values);
  c.start_solve(c.operands(0), values, n);
  wgmma_wait<0>();
  hold(n);
  c.pack_state(s, packed);
  c.start_state_product<kAccumulate>(c.operands(0), L::kW, packed, n);
  c.load_pairs(c.chunk(0).scales.update, of_update);
  wgmma_wait<0>();
  hold(n);
  while (count > 0) {
    const auto chunk = c.chunk(now);
    c.start_state_product(chunk.operands, L::kQ, packed, o);
    c.decay_state(chunk.last, s);
    c.pack_n(of_update, n, plain, scaled);
    c.start_update(chunk.operands, scaled, s);
    c.load_pairs(chunk.scales.query, of_query);
    wgmma_wait<1>();
    hold(o);
    c.start_output(chunk.operands, of_query, plain, o);
    const int before = now;
    if (++now == kStages) now = 0, parity ^= 1;
    const int next_count = c.wait_for(full, now, parity);
    c.load_pairs(c.chunk(now).scales.value, of_value);
    c.load_values(c.stage(now), values);  // unused after the last chunk
    c.scale_values(of_value, values, y);
    c.pack_tokens(y, values);
    c.start_solve(c.operands(now), values, n);
    wgmma_wait<2>();
    hold(s);
    c.pack_state(s, packed);
    c.start_state_product<kAccumulate>(c.operands(now), L::kW, packed, n);
    wgmma_wait<2>();
    hold(o);
    barrier_arrive(empty + 8 * before);
    c.keep_output(o);
    c.write_output(first, count);
    c.load_pairs(c.chunk(now).scales.update, of_update);
    wgmma_wait<0>();  // waits for all WGMMAs: the compiler does not keep them in flight across the loop's end
    hold(n);
    first += count, count = next_count;
    if (c.p.snapshots > 0) c.save_snapshots(snapshot, first, s);
  }
  c.save_last(first, s);
  if (c.thread == 0) wait_bytes_out();
}

// Copies T and P to a stage of layout L.
template <class L>
__device__ void read_triangles(uint32_t stage, const char* wy_factors, uint32_t barrier) {
#pragma unroll
  for (int s = 0; s < Triangle::kStrips; ++s) {
    const int below = s * 2048 + s * 512, from = Triangle::strip(s), bytes = Triangle::strip_bytes(s);
    copy_bytes_in(stage + L::kT + below, wy_factors + WYFactors::kT + from, bytes, barrier);
    copy_bytes_in(stage + L::kP + below, wy_factors + WYFactors::kP + from, bytes, barrier);
  }
}
// Zeros the part above the diagonals of T and P. Called by all threads of the CTA.
template <class L>
__device__ void clear_above_diagonals(char* stages) {
  for (int i = threadIdx.x; i < kStages * 2 * kTile / 16; i += blockDim.x) {
    const int within = i % (2 * kTile / 16), row = within / 2 % kChunk,
              strip = within / (2 * kChunk) % Triangle::kStrips;
    if (row >= 16 * strip) continue;
    reinterpret_cast<uint4*>(stages + i / (2 * kTile / 16) * L::kStage + L::kT)[within] = uint4{};
  }
  fence_for_wgmma();
}

// Producer: loads the chunks of the pass into the stages. Called by one thread.
template <int kHalves>
__device__ void read_chunks(const GDNParams& p, const Pass& pass, const Place& at, const CUtensorMap& qkv,
                            uint32_t full, uint32_t empty) {
  using L = Layout<kHalves>;
  Walk walk = at.walk;
  int stage = 0, parity = 1;
  for (int i = 0;; ++i) {
    const int row = at.span.q_off + walk.done, count = i < pass.count ? walk.next(p) : 0;
    barrier_wait(empty + 8 * stage, parity);  // the first kStages waits return at once
    const uint32_t to = at.shared + stage * L::kStage, barrier = full + 8 * stage;
    reinterpret_cast<int*>(at.base + L::kCounts)[stage] = count;
    if (count == 0) return barrier_arrive(barrier);
    barrier_expect(barrier, L::kStageBytes);
    const int q = at.key_head * kDim, k = (p.k_heads + at.key_head) * kDim;
    const int v = (2 * p.k_heads + at.head) * kDim + at.first_row;
    tma_load(to + L::kK, qkv, k, row, 0, 0, barrier);
    tma_load(to + L::kK + kTile, qkv, k + 64, row, 0, 0, barrier);
    tma_load(to + L::kV, qkv, v, row, 0, 0, barrier, kReadOnce);
    if (kHalves == 2) tma_load(to + L::kV + kTile, qkv, v + 64, row, 0, 0, barrier, kReadOnce);
    const char* const wy_factors = wy_factors_of(p, pass, at.place + i, at.head);
    read_triangles<L>(to, wy_factors, barrier);
    copy_bytes_in(at.shared + L::kScales + stage * L::kScalesEach, wy_factors + WYFactors::kScales + L::kUnread,
                  L::kScalesEach, barrier);
    if (kHalves == 1) copy_bytes_in(to + L::kW, keys_of(p, pass, at.place + i, at.head), 2 * kTile, barrier);
    tma_load(to + L::kQ, qkv, q, row, 0, 0, barrier);
    tma_load(to + L::kQ + kTile, qkv, q + 64, row, 0, 0, barrier);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

// Returns the places of the requests before `request`. Called by whole warps.
__device__ int places_before(const GDNParams& p, const Pass& pass, int request) {
  int sum = 0;
  for (int r = threadIdx.x % 32; r < request; r += 32) sum += places(p, pass, r);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}
// Runs the state pass of a CTA. The op's inputs are available from the start; WY factors and states between passes only
// after the previous kernel has ended.
template <int kHalves>
__device__ void pass_head(const GDNParams& p, const Pass& pass, const Maps& maps, const Place& at) {
  using L = Layout<kHalves>;
  if (at.shared % 1024 != 0) __trap();  // required by the TMA swizzle
  clear_above_diagonals<L>(at.base);
  const uint32_t full = at.shared + L::kBarriers, empty = full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, kGroupThreads * kHalves);
    }
    fence_barrier_init();
  }
  pdl_wait();
  pdl_launch_dependents();
  __syncthreads();
  const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  if (group == kHalves) {
    if constexpr (kHalves == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 0) read_chunks<kHalves>(p, pass, at, maps.qkv, full, empty);
  } else {
    // The register total must not exceed the launch's 3 x 168, or setmaxnreg would wait forever.
    if constexpr (kHalves == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    pass_half(ChunkState<kHalves>{p, pass, at, maps.out, group, thread, thread / 32, thread % 32}, full, empty);
  }
}
#endif  // HR_BUILD_SM90A

// With two consumer warpgroups the producer is a whole warpgroup, so that it can give its registers to them.
template <int kHalves>
constexpr int kThreads = kHalves == 2 ? 3 * kGroupThreads : kGroupThreads + 32;

template <int kHalves>
__global__ void __launch_bounds__(kThreads<kHalves>, 1)
    pass_states(const GDNParams p, const Pass pass, const __grid_constant__ Maps maps) {
#ifdef HR_BUILD_SM90A
  extern __shared__ __align__(1024) char memory[];
  const int request = blockIdx.y, head = kHalves == 2 ? blockIdx.x : blockIdx.x / 2;
  const KeySpan span = p.batch.spans[request];
  Walk walk(p, request, span.q_len);
  if (p.has(span)) walk.skip(p, pass.first);
  // An idle CTA waits too, so that no later kernel starts before the previous one ends.
  if (!p.has(span) || walk.done == span.q_len) return pdl_wait();
  const Place at{request,
                 head,
                 head / (p.v_heads / p.k_heads),
                 kHalves == 2 ? 0 : static_cast<int>(blockIdx.x) % 2 * 64,
                 places_before(p, pass, request),
                 shared_address(memory),
                 memory,
                 span,
                 walk};
  pass_head<kHalves>(p, pass, maps, at);
#endif
}

template <int kHalves>
void launch(const GDNParams& p, const Pass& pass, const Maps& maps, const Stream& stream) {
  constexpr int kBytes = Layout<kHalves>::kBytes;
  static_assert(kBytes <= 227 * 1024);
  check_cuda(cudaFuncSetAttribute(pass_states<kHalves>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "setting the shared memory of gated_delta_rule");
  EarlyLaunch early(dim3(static_cast<unsigned>(p.v_heads * (2 / kHalves)), static_cast<unsigned>(p.requests)),
                    kThreads<kHalves>, kBytes, stream);
  check_cuda(cudaLaunchKernelEx(&early.config, pass_states<kHalves>, p, pass, maps),
             "launching gated_delta_rule, states");
}

}  // namespace

void gdn::gdn_chunk_state_sm90(const GDNParams& p, const Pass& pass, const Maps& maps, const Stream& stream) {
  if (halves_apart(p, stream)) {
    launch<1>(p, pass, maps, stream);
  } else {
    launch<2>(p, pass, maps, stream);
  }
}

}  // namespace headrace::cuda
