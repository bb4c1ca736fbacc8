// The gated delta rule token by token for heads of 128 x 128: a block for some rows of a head of one request, their
// state in registers from the first token to the last.
//
// Four warps, one on each of a multiprocessor's schedulers, do nothing but the chain of tokens. Four others bring the
// next tile of tokens to shared memory, with all factors that depend on a token alone, and write the outputs of the
// tile before: of these the first four leave the parts of a sum that eight lanes have. Rows are independent of each
// other, so their number in a block changes no bit.
#include "headrace/kernels/cuda/gdn/gated_delta_rule.cuh"
#include "headrace/kernels/cuda/gdn/gdn_rows.cuh"

namespace headrace::cuda {
namespace {

constexpr int kTileTokens = 16, kWorkers = 4, kFeeders = 4, kThreads = (kWorkers + kFeeders) * 32;
constexpr int kFeederTokens = kTileTokens / kFeeders;  // of a tile; the same feeder writes their outputs

// A lane's pieces of q or k as they came: 16 bytes at a time from shared memory, whose path workers share with the
// shuffles that their chain waits for.
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
  // Where a vector's piece lies.
  static __device__ int place(int piece) {
    const int lane = piece % kRowLanes, i = piece / kRowLanes;
    return (i / kTogether * kRowLanes + lane) * kTogether + i % kTogether;
  }
};

// kRows: of a lane.
template <class T, int kRows>
struct Tile {
  static constexpr int kBlockRows = kWorkers * kWarpRows * kRows;

  // Of a token: what starts its chain, and q and outputs of the token before, which are worked on at the same time.
  // Workers read one row more than there are tokens and one more k, and use neither.
  struct Row {
    Bits4<T> k[kHeadPieces], q_before[kHeadPieces];
    float4 parts_before[kBlockRows][2];  // of the outputs, by lane
    float pushed[kBlockRows];            // push v
    float2 chain;                        // decay, pull
    float query_before, unused;
  };
  Row rows[kTileTokens + 2];
};

// Sums each of eight values over the warp, in the order of warp_sum; the lane gets the sum of value lane / 4.
__device__ inline float warp_sum_of_eight(const float (&x)[8], int lane) {
  float a[4], b[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool upper = (lane & 16) != 0;
    a[i] = (upper ? x[i + 4] : x[i]) + __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + 4], 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool upper = (lane & 8) != 0;
    b[i] = (upper ? a[i + 2] : a[i]) + __shfl_xor_sync(0xffffffffu, upper ? a[i] : a[i + 2], 8);
  }
  const bool upper = (lane & 4) != 0;
  float sum = (upper ? b[1] : b[0]) + __shfl_xor_sync(0xffffffffu, upper ? b[0] : b[1], 4);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

// A value that is the same in all lanes, so that the compiler knows it: else every shuffle is preceded by a check,
// across which it moves nothing.
__device__ inline int of_warp(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// What all warps of a block work on.
template <int kRows>
struct Place {
  int head, first_row;
  KeySpan span;
  StateSlots slots;
};

// Inputs on their way from memory to a tile, by one of the feeding warps.
template <class T, int kRows>
struct Feeder {
  static constexpr int kBlockRows = Tile<T, kRows>::kBlockRows;
  static constexpr int kValues = kFeederTokens * kBlockRows / 32;  // of v and of the outputs, for a lane

  Bits4<T> q[kFeederTokens], k[kFeederTokens];
  T v[kValues], a, b;

  // Tokens beyond the request's last repeat it.
  __device__ void load(const GDNParams& p, const Place<kRows>& place, int tile, int warp, int lane) {
    const int first = tile * kTileTokens + warp * kFeederTokens, last = place.span.q_len - 1;
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
    const int64_t of_lane = token(lane % kFeederTokens);
    a = static_cast<const T*>(p.a.data)[p.a.at(of_lane) + place.head];
    b = static_cast<const T*>(p.b.data)[p.b.at(of_lane) + place.head];
  }

  __device__ void store(Tile<T, kRows>& tile, float a_log, float dt_bias, int warp, int lane) const {
    const int first = warp * kFeederTokens, place = TokenPieces<T>::place(lane);
    float squares[2 * kFeederTokens];
#pragma unroll
    for (int i = 0; i < kFeederTokens; ++i) {
      tile.rows[first + i + 1].q_before[place] = q[i];
      tile.rows[first + i].k[place] = k[i];
      squares[i] = sum_of_squares(floats<T>(q[i])), squares[kFeederTokens + i] = sum_of_squares(floats<T>(k[i]));
    }
    const float sum = warp_sum_of_eight(squares, lane);
    const int token_lane = lane % kFeederTokens * 4;
    const TokenFactors of_token(expf(gdn_log_decay(static_cast<float>(a), a_log, dt_bias)),
                                gdn_beta(static_cast<float>(b)), __shfl_sync(0xffffffffu, sum, token_lane),
                                __shfl_sync(0xffffffffu, sum, 4 * kFeederTokens + token_lane));
    if (lane < kFeederTokens) {
      tile.rows[first + lane].chain = {of_token.decay, of_token.pull};
      tile.rows[first + lane + 1].query_before = of_token.query;
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i * 32 + lane, token = at / kBlockRows;
      tile.rows[first + token].pushed[at % kBlockRows] =
          __shfl_sync(0xffffffffu, of_token.push, token) * static_cast<float>(v[i]);
    }
  }

  static __device__ void write_outputs(const GDNParams& p, const Place<kRows>& place, const Tile<T, kRows>& tile,
                                       int number, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i * 32 + lane, token = warp * kFeederTokens + at / kBlockRows, row = at % kBlockRows;
      const int t = number * kTileTokens + token;
      if (t >= place.span.q_len) continue;
      const auto& of_token = tile.rows[token + 1];
      p.out.set(place.span.q_off + t, place.head, place.first_row + row,
                of_token.query_before * row_sum_of(of_token.parts_before[row][0], of_token.parts_before[row][1]));
    }
    __syncwarp();  // store() overwrites `query_before`
  }
};

// The rows of a working warp, and the snapshots that are still to come.
template <class T, int kRows>
struct Worker {
  StateRows<kRows> state;
  int own_row;          // of the block: the lane's first
  int warp_row;         // of the head: the warp's first
  int snapshot, until;  // the next one, and after how many tokens it is due

  __device__ void start(const GDNParams& p, const Place<kRows>& place, int request, int warp, int lane) {
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

  __device__ void run(const GDNParams& p, const Place<kRows>& place, Tile<T, kRows>& tile, int number, int request,
                      int lane) {
    const int first = number * kTileTokens, end = of_warp(min(kTileTokens, place.span.q_len - first));
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

  // Of the token before that of `at`.
  __device__ void put_parts(Row& at, const TokenPieces<T>& q, int lane) const {
    float part[kRows];
    dot_parts(state.row, q, part);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      reinterpret_cast<float*>(at.parts_before[own_row + kWarpRows * r])[lane % kRowLanes] = part[r];
    }
  }

  // What the next token needs, and keys of the token behind it.
  struct Ahead {
    RowPieces k;
    TokenPieces<T> k_after, q_before;
    float2 chain;
    float pushed[kRows];

    __device__ void load(const Row* at, int own_row, int lane) {
      k_after.load(at[1].k, lane);
      q_before.load(at->q_before, lane);
      chain = at->chain;
#pragma unroll
      for (int r = 0; r < kRows; ++r) pushed[r] = at->pushed[own_row + kWarpRows * r];
    }
  };

  // A token's chain is one product, three shuffles and an update. All else is for the time that the shuffles take: the
  // output of the token before, the next token's keys as float, and what the token after that needs.
  __device__ void run_tokens(Tile<T, kRows>& tile, int from, int to, int lane) {
    Row* at = tile.rows + from;
    Ahead ahead;
    ahead.k_after.load(at->k, lane);
    ahead.k_after.as_float(ahead.k);
    ahead.load(at, own_row, lane);
#pragma unroll 1  // of two tokens the compiler mixes what belongs behind the shuffles of one
    for (int t = from; t < to; ++t) {
      put_parts(*at, ahead.q_before, lane);
      state.step(ahead.k, ahead.pushed, ahead.chain.x, ahead.chain.y);
      ahead.k_after.as_float(ahead.k);
      ahead.load(++at, own_row, lane);
    }
    put_parts(*at, ahead.q_before, lane);
  }
};

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads, 2) recur_rows(const __grid_constant__ GDNParams p) {
  extern __shared__ float4 memory[];
  auto* const tiles = reinterpret_cast<Tile<T, kRows>*>(memory);  // two: one is worked on, the other fed
  const int request = blockIdx.z, lane = threadIdx.x % 32;
  const Place<kRows> place = {.head = static_cast<int>(blockIdx.y),
                              .first_row = static_cast<int>(blockIdx.x) * Tile<T, kRows>::kBlockRows,
                              .span = p.batch.spans[request],
                              .slots = p.batch.state_slots[request]};
  if (!p.has(place.span)) return;
  const int number = of_warp(static_cast<int>(threadIdx.x) / 32), warp = number % kWorkers;
  const bool works = number < kWorkers;
  const float a_log = p.a_log[place.head], dt_bias = p.dt_bias[place.head];
  const int num_tiles = of_warp((place.span.q_len + kTileTokens - 1) / kTileTokens);
  Worker<T, kRows> worker;
  if (works) {
    worker.start(p, place, request, warp, lane);
  } else {
    Feeder<T, kRows> feeder;
    feeder.load(p, place, 0, warp, lane);
    feeder.store(tiles[0], a_log, dt_bias, warp, lane);
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
    feeder.store(other, a_log, dt_bias, warp, lane);
  }
  __syncthreads();
  if (!works) {
    Feeder<T, kRows>::write_outputs(p, place, tiles[(num_tiles - 1) % 2], num_tiles - 1, warp, lane);
  } else if (place.slots.write != kNoState) {
    worker.state.save(p.state_of(place.slots.write, place.head), worker.warp_row, lane);
  }
}

template <class T, int kRows>
void launch(const GDNParams& p, cudaStream_t stream) {
  constexpr int kBytes = 2 * sizeof(Tile<T, kRows>);
  check_cuda(cudaFuncSetAttribute(recur_rows<T, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "shared memory of gated_delta_rule, token by token");
  const dim3 grid(static_cast<unsigned>(kHeadDim / Tile<T, kRows>::kBlockRows), static_cast<unsigned>(p.v_heads),
                  static_cast<unsigned>(p.requests));
  recur_rows<T, kRows><<<grid, kThreads, kBytes, stream>>>(p);
  check_launch("gated_delta_rule, token by token");
}

// One row in a lane is the shortest chain, for which every block wants a multiprocessor; two need fewer instructions.
template <class T>
void launch_on(const GDNParams& p, const Stream& stream) {
  const int64_t blocks = int64_t{p.requests} * p.v_heads * (kHeadDim / Tile<T, 1>::kBlockRows);
  if (blocks <= stream.num_sms) {
    launch<T, 1>(p, stream.handle);
  } else {
    launch<T, 2>(p, stream.handle);
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

void gdn_recurrence(const GDNParams& p, const Stream& stream) {
  switch (p.qkv.type) {
    case DType::kBF16: launch_on<__nv_bfloat16>(p, stream); break;
    case DType::kF16: launch_on<__half>(p, stream); break;
    default: launch_on<float>(p, stream); break;
  }
}

}  // namespace headrace::cuda
