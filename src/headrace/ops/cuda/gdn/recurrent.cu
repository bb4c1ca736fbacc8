// Gated delta rule token by token for heads of 128 x 128. A CTA keeps some rows of one head of one request in registers
// from the first token to the last.
//
// Four worker warps, one per scheduler of an SM, run only the chain of tokens. Four feeder warps load the next tile of
// tokens into shared memory and write the previous tile's outputs. The workers leave an output as the partial sums of
// eight lanes. A first kernel computes the factors that depend on a token only, once for all rows of a head. Rows are
// independent, so their number per CTA does not change the bits.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/gdn/gated_delta_rule.cuh"
#include "headrace/ops/cuda/gdn/gdn_plan.h"
#include "headrace/ops/cuda/gdn/gdn_rows.cuh"
#include "headrace/ops/cuda/limits.h"

namespace headrace::cuda {
namespace {

constexpr int kWorkers = 4, kFeeders = 4, kThreads = (kWorkers + kFeeders) * 32;

// A lane's share of q or k in its stored dtype, loaded 16 bytes at a time. Few loads matter, because workers' shared
// memory loads and the shuffles of their chain use the same path.
template <class T>
struct TokenPieces {
  static constexpr int kTogether = 4 / sizeof(T), kLoads = kLanePieces / kTogether;
  uint4 bits[kLoads];

  __device__ void load(const Bits4<T>* vector, int lane) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) bits[j] = reinterpret_cast<const uint4*>(vector)[lane % kRowLanes + j * kRowLanes];
  }
  __device__ float4 operator[](int i) const {
    const uint4& x = bits[i / kTogether];
    if constexpr (kTogether == 1) {
      return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
    } else {
      return floats<T>(i % kTogether == 0 ? uint2{x.x, x.y} : uint2{x.z, x.w});
    }
  }
  __device__ void as_float(RowPieces& to) const {
#pragma unroll
    for (int i = 0; i < kLanePieces; ++i) to[i] = (*this)[i];
  }
  // Returns the index in shared memory of a vector's float4 number `piece`.
  static __device__ int place(int piece) {
    const int lane = piece % kRowLanes, i = piece / kRowLanes;
    return (i / kTogether * kRowLanes + lane) * kTogether + i % kTogether;
  }
};

// Tile of tokens. kRows: state rows per lane.
template <class T, int kRows>
struct Tile {
  static constexpr int kBlockRows = kWorkers * kWarpRows * kRows;
  // One row per lane has a short chain, so longer tiles hide the work between tiles
  static constexpr int kTokens = kRows == 4 ? 12 : kRows == 1 && sizeof(T) == 2 ? 32 : 16;
  static constexpr int kFeederTokens = kTokens / kFeeders;  // the same feeder writes the outputs of these tokens

  // Inputs of a token's chain, and q and outputs of the previous token, which workers compute at the same time. Workers
  // read one Row past the tile's tokens, and one more k, and use neither.
  struct Row {
    Bits4<T> k[kHeadPieces], q_before[kHeadPieces];
    float4 parts_before[kBlockRows][2];  // partial outputs by lane
    float pushed[kBlockRows];            // push v
    float2 chain;                        // decay, pull
    float query_before, unused;
  };
  Row rows[kTokens + 2];
};

// Makes a value provably uniform over the warp. Otherwise the compiler puts a check before each shuffle, and moves no
// instruction across it.
__device__ inline int of_warp(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// Launch parameters of both kernels.
struct Params {
  GDNParams gdn;
  float4* factors;  // [v_heads, tokens]: decay, pull, push and query of a token
  int64_t tokens;
};

constexpr int kFactorWarps = 8;

// Computes the factors of every token: one warp per token and key head, one lane per value head.
template <class T>
__global__ void __launch_bounds__(kFactorWarps * 32) find_factors(const __grid_constant__ Params of) {
  const GDNParams& p = of.gdn;
  const int64_t token = int64_t{blockIdx.x} * kFactorWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, key_head = blockIdx.y, group = p.v_heads / p.k_heads;
  if (token >= of.tokens) return;
  const T* const row = static_cast<const T*>(p.qkv.data) + p.qkv.at(token);
  const float4 q = load4(row + key_head * kHeadDim + 4 * lane);
  const float4 k = load4(row + (p.k_heads + key_head) * kHeadDim + 4 * lane);
  const float q_squared = warp_sum(sum_of_squares(q)), k_squared = warp_sum(sum_of_squares(k));
  for (int i = lane; i < group; i += 32) {
    const int head = key_head * group + i;
    const auto a = static_cast<float>(static_cast<const T*>(p.a.data)[p.a.at(token) + head]);
    const auto b = static_cast<float>(static_cast<const T*>(p.b.data)[p.b.at(token) + head]);
    const TokenFactors f(expf(gdn_log_decay(a, p.a_log[head], p.dt_bias[head])), gdn_beta(b), q_squared, k_squared);
    of.factors[head * of.tokens + token] = {f.decay, f.pull, f.push, f.query};
  }
}

// Forces the values to be computed here, not at their use.
__device__ inline void hold(RowPieces& x) {
#pragma unroll
  for (int i = 0; i < kLanePieces; ++i) asm volatile("" : "+f"(x[i].x), "+f"(x[i].y), "+f"(x[i].z), "+f"(x[i].w));
}

// Work of a CTA.
struct Place {
  int head, first_row;
  KeySpan span;
  StateSlots slots;
  const float4* factors;  // [tokens] of the head
};

// Copies inputs from global memory to a tile: one feeder warp's share.
template <class T, int kRows>
struct Feeder {
  static constexpr int kBlockRows = Tile<T, kRows>::kBlockRows, kFeederTokens = Tile<T, kRows>::kFeederTokens;
  static constexpr int kValues = kFeederTokens * kBlockRows / 32;  // of v, and of the outputs, per lane

  Bits4<T> q[kFeederTokens], k[kFeederTokens];
  T v[kValues];
  float4 factors;  // of token lane % kFeederTokens

  // Tokens past the request's end repeat its last token.
  __device__ void load(const GDNParams& p, const Place& place, int tile, int warp, int lane) {
    const int first = tile * Tile<T, kRows>::kTokens + warp * kFeederTokens, last = place.span.q_len - 1;
    const int key_head = place.head / (p.v_heads / p.k_heads);
    const auto token = [&](int i) { return place.span.q_off + min(first + i, last); };
    const auto row = [&](int i) { return static_cast<const T*>(p.qkv.data) + token(i) * p.qkv.token_stride; };
#pragma unroll
    for (int i = 0; i < kFeederTokens; ++i) {
      q[i] = load_bits4(row(i) + key_head * kHeadDim + 4 * lane);
      k[i] = load_bits4(row(i) + (p.k_heads + key_head) * kHeadDim + 4 * lane);
    }
    const int from = 2 * p.k_heads * kHeadDim + place.head * kHeadDim + place.first_row;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i * 32 + lane;
      v[i] = row(at / kBlockRows)[from + at % kBlockRows];
    }
    factors = place.factors[token(lane % kFeederTokens)];
  }

  __device__ void store(Tile<T, kRows>& tile, int warp, int lane) const {
    const int first = warp * kFeederTokens, place = TokenPieces<T>::place(lane);
#pragma unroll
    for (int i = 0; i < kFeederTokens; ++i) {
      tile.rows[first + i + 1].q_before[place] = q[i];
      tile.rows[first + i].k[place] = k[i];
    }
    if (lane < kFeederTokens) {
      tile.rows[first + lane].chain = {factors.x, factors.y};
      tile.rows[first + lane + 1].query_before = factors.w;
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i * 32 + lane, token = at / kBlockRows;
      tile.rows[first + token].pushed[at % kBlockRows] =
          __shfl_sync(0xffffffffu, factors.z, token) * static_cast<float>(v[i]);
    }
  }

  static __device__ void write_outputs(const GDNParams& p, const Place& place, const Tile<T, kRows>& tile, int number,
                                       int warp, int lane) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i * 32 + lane, token = warp * kFeederTokens + at / kBlockRows, row = at % kBlockRows;
      const int t = number * Tile<T, kRows>::kTokens + token;
      if (t >= place.span.q_len) continue;
      const auto& of_token = tile.rows[token + 1];
      p.out.set(place.span.q_off + t, place.head, place.first_row + row,
                of_token.query_before * row_sum_of(of_token.parts_before[row][0], of_token.parts_before[row][1]));
    }
    __syncwarp();  // store() overwrites `query_before`
  }
};

// State rows and pending snapshots of a worker warp.
template <class T, int kRows>
struct Worker {
  StateRows<kRows> state;
  int own_row;          // the lane's first row, relative to the CTA
  int warp_row;         // the warp's first row, relative to the head
  int snapshot, until;  // the next snapshot, and the token count at which it is due

  __device__ void start(const GDNParams& p, const Place& place, int request, int warp, int lane) {
    own_row = warp * kWarpRows * kRows + lane / kRowLanes;
    warp_row = place.first_row + warp * kWarpRows * kRows;
    state.load(p.state_of(place.slots.read, place.head), warp_row, lane);
    snapshot = p.first_snapshot(request);
    find_snapshot(p, request);
  }
  __device__ void find_snapshot(const GDNParams& p, int request) {
    const bool due = snapshot < p.snapshots && p.batch.snapshots[snapshot].request == request;
    until = of_warp(due ? p.batch.snapshots[snapshot].num_tokens : INT32_MAX);
  }

  __device__ void run(const GDNParams& p, const Place& place, Tile<T, kRows>& tile, int number, int request, int lane) {
    constexpr int kTokens = Tile<T, kRows>::kTokens;
    const int first = number * kTokens, end = of_warp(min(kTokens, place.span.q_len - first));
    for (int t = 0; t < end;) {
      const int stop = min(end, until - first);
      run_tokens(tile, t, stop, lane);
      t = stop;
      for (; first + t == until; ++snapshot, find_snapshot(p, request)) {
        state.save(p.state_of(p.batch.snapshots[snapshot].slot, place.head), warp_row, lane);
      }
    }
  }

  using Row = Tile<T, kRows>::Row;

  // Writes the partial outputs of the token before that of `at`.
  __device__ void put_parts(Row& at, const TokenPieces<T>& q, int lane) const {
    float part[kRows];
    dot_parts(state.row, q, part);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      reinterpret_cast<float*>(at.parts_before[own_row + kWarpRows * r])[lane % kRowLanes] = part[r];
    }
  }

  // Prefetched inputs of the next token, and k of the token after it.
  struct Ahead {
    TokenPieces<T> k, q_before;
    float2 chain;
    float pushed[kRows];

    __device__ void load(const Row* at, int own_row, int lane) {
      k.load(at[1].k, lane);
      q_before.load(at->q_before, lane);
      chain = at->chain;
#pragma unroll
      for (int r = 0; r < kRows; ++r) pushed[r] = at->pushed[own_row + kWarpRows * r];
    }
  };

  // Runs tokens [from, to). A token's chain is one dot product, three shuffles and an update. All other work is done
  // during the shuffles: the previous token's output, the next token's k as float and the loads for the token after
  // that.
  __device__ void run_tokens(Tile<T, kRows>& tile, int from, int to, int lane) {
    Row* at = tile.rows + from;
    Ahead ahead;
    RowPieces even, odd;  // k of alternate tokens
    ahead.k.load(at->k, lane);
    ahead.k.as_float(even);
    ahead.load(at, own_row, lane);
    const auto run = [&](const RowPieces& k, RowPieces& next) {
      state.step(k, ahead.pushed, ahead.chain.x, ahead.chain.y, [&] {
        put_parts(*at, ahead.q_before, lane);
        ahead.k.as_float(next);
        hold(next);
      });
      ahead.load(++at, own_row, lane);
    };
#pragma unroll 1
    for (int t = from; t < to; t += 2) {
      run(even, odd);
      if (t + 1 == to) break;
      run(odd, even);
    }
    put_parts(*at, ahead.q_before, lane);
  }
};

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads, 2) recur_rows(const __grid_constant__ Params of) {
  const GDNParams& p = of.gdn;
  extern __shared__ float4 memory[];
  // Double buffer: workers use one tile while feeders fill the other.
  auto* const tiles = reinterpret_cast<Tile<T, kRows>*>(memory);
  const int request = blockIdx.z, lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.y);
  const Place place = {.head = head,
                       .first_row = static_cast<int>(blockIdx.x) * Tile<T, kRows>::kBlockRows,
                       .span = p.batch.spans[request],
                       .slots = p.batch.state_slots[request],
                       .factors = of.factors + head * of.tokens};
  if (!p.has(place.span)) return;
  const int number = of_warp(static_cast<int>(threadIdx.x) / 32), warp = number % kWorkers;
  const bool works = number < kWorkers;
  constexpr int kTokens = Tile<T, kRows>::kTokens;
  const int num_tiles = of_warp((place.span.q_len + kTokens - 1) / kTokens);
  Worker<T, kRows> worker;
  if (works) {
    worker.start(p, place, request, warp, lane);
  } else {
    Feeder<T, kRows> feeder;
    feeder.load(p, place, 0, warp, lane);
    feeder.store(tiles[0], warp, lane);
  }
  for (int tile = 0; tile < num_tiles; ++tile) {
    __syncthreads();
    Tile<T, kRows>&now = tiles[tile % 2], &other = tiles[(tile + 1) % 2];
    if (works) {
      worker.run(p, place, now, tile, request, lane);
      continue;
    }
    if (tile > 0) Feeder<T, kRows>::write_outputs(p, place, other, tile - 1, warp, lane);
    if (tile + 1 == num_tiles) continue;
    Feeder<T, kRows> feeder;
    feeder.load(p, place, tile + 1, warp, lane);
    feeder.store(other, warp, lane);
  }
  __syncthreads();
  if (!works) {
    Feeder<T, kRows>::write_outputs(p, place, tiles[(num_tiles - 1) % 2], num_tiles - 1, warp, lane);
  } else if (place.slots.write != kNoState) {
    worker.state.save(p.state_of(place.slots.write, place.head), worker.warp_row, lane);
  }
}

template <class T, int kRows>
void launch(const Params& params, const Stream& stream) {
  constexpr int kBytes = 2 * sizeof(Tile<T, kRows>);
  static_assert(kBytes <= kLeastSharedBytes);
  allow_shared(stream, recur_rows<T, kRows>, kBytes, "gated_delta_rule, token by token");
  const dim3 grid(static_cast<unsigned>(kHeadDim / Tile<T, kRows>::kBlockRows),
                  static_cast<unsigned>(params.gdn.v_heads), static_cast<unsigned>(params.gdn.requests));
  recur_rows<T, kRows><<<grid, kThreads, kBytes, stream.handle>>>(params);
  check_launch("gated_delta_rule, token by token");
}

template <class T>
void launch_on(const Params& params, int long_requests, const Stream& stream) {
  const GDNParams& p = params.gdn;
  const dim3 grid(static_cast<unsigned>((params.tokens + kFactorWarps - 1) / kFactorWarps),
                  static_cast<unsigned>(p.k_heads));
  find_factors<T><<<grid, kFactorWarps * 32, 0, stream.handle>>>(params);
  check_launch("gated_delta_rule, factors of tokens");
  switch (gdn_recurrence_rows(int64_t{long_requests} * p.v_heads, kHeadDim, Tile<T, 1>::kBlockRows, stream.num_sms)) {
    case 1: return launch<T, 1>(params, stream);
    case 2: return launch<T, 2>(params, stream);
    default: return launch<T, 4>(params, stream);
  }
}

bool aligned(const TensorView& x, int64_t elements) {
  return reinterpret_cast<uintptr_t>(x.data()) % 16 == 0 && x.stride(0) % elements == 0;
}

}  // namespace

bool gdn_recurrence_supports(const GatedDeltaRuleArgs& a) {
  return a.head_k_dim() == kHeadDim && a.head_v_dim() == kHeadDim && a.a.dtype() == a.qkv.dtype() &&
         a.state.stride(2) == kHeadDim && a.state.stride(1) % 4 == 0 && a.state.stride(0) % 4 == 0 &&
         aligned(a.qkv, 4) && reinterpret_cast<uintptr_t>(a.state.data()) % 16 == 0;
}

void gdn_recurrence(const GDNParams& p, int64_t tokens, int long_requests, const Stream& stream) {
  const Params params = {.gdn = p, .factors = static_cast<float4*>(stream.scratch), .tokens = tokens};
  HR_REQUIRE(tokens * p.v_heads <= static_cast<int64_t>(stream.scratch_bytes / sizeof(float4)), ErrorCode::kUnsupported,
             "cuda gated_delta_rule: ", tokens, " tokens of ", p.v_heads, " heads in one call, expected at most ",
             stream.scratch_bytes / sizeof(float4) / p.v_heads, " tokens; take smaller chunks");
  switch (p.qkv.type) {
    case DType::kBF16: launch_on<__nv_bfloat16>(params, long_requests, stream); break;
    case DType::kF16: launch_on<__half>(params, long_requests, stream); break;
    default: launch_on<float>(params, long_requests, stream); break;
  }
}

}  // namespace headrace::cuda
