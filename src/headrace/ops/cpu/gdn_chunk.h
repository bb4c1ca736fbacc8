// Chunked form of the gated delta rule: up to 64 tokens at once as GEMMs. For kernel sources only.
//
// G is the running sum of log decays and E(t, j) = exp(G_t - G_j); every exponent is <= 0. A chunk computes
//   A = beta_t E(t, j) kn_t.kn_j for j < t;  P = E(t, j) qn_t.kn_j for j <= t
//   N = (I + A)^-1 diag(beta) (V - diag(exp G) Kn S^T)
//   O = diag(exp G) Qn S^T + P N;  S = exp(G_C) S + N^T diag(E(C, t)) Kn
// This is the WY form without a separate triangular solve for W: U - W S^T = N. A task handles one request and key head
// with all its value heads, so Kn Kn^T and Qn Kn^T are computed once per group. States stay transposed, [dk, dv],
// through all chunks, so that every GEMM runs along rows.
#pragma once
#include "headrace/ops/cpu/gdn_recurrence.h"
#include "headrace/ops/cpu/tile.h"

namespace headrace::cpu {
namespace {

constexpr long kChunk = kGDNChunk;

// Scratch memory of a task; dkp and dvp are dk and dv rounded up to whole vectors.
struct ChunkScratch {
  float* kq;      // [2 chunk, dkp]: Kn, then Qn; zero rows past the chunk's tokens
  float* kt;      // [dkp, chunk]: Kn transposed
  float* gram;    // [2 chunk, chunk]: Kn Kn^T, then Qn Kn^T, lower halves
  float* a;       // [chunk, chunk]
  float* p;       // [chunk, chunk]
  float* x;       // [2 chunk, dvp]: Kn S^T, then Qn S^T, then O
  float* n;       // [chunk, dvp]
  float* states;  // group x [dkp, dvp]
};

// Sets the pointers (null without memory) and returns the number of floats needed.
inline long place(const GatedDeltaRuleParams& p, float* memory, ChunkScratch& s) {
  const long dkp = round_up_to_lanes(p.dk), dvp = round_up_to_lanes(p.dv), group = p.num_v_heads / p.num_k_heads;
  long used = 0;
  const auto take = [&](long floats) {
    float* const at = memory == nullptr ? nullptr : memory + used;
    used += (floats + 15) / 16 * 16;
    return at;
  };
  s = {.kq = take(2 * kChunk * dkp),
       .kt = take(dkp * kChunk),
       .gram = take(2 * kChunk * kChunk),
       .a = take(kChunk * kChunk),
       .p = take(kChunk * kChunk),
       .x = take(2 * kChunk * dvp),
       .n = take(kChunk * dvp),
       .states = take(group * dkp * dvp)};
  return used;
}

// Prefetches a token's channels [first, first + n) of qkv. Token rows are too far apart for the hardware prefetcher.
inline void prefetch_row(const GatedDeltaRuleParams& p, long token, long first, long n) {
  const long size = p.qkv_type == FloatType::kF32 ? 4 : 2;
  const char* const row = static_cast<const char*>(p.qkv) + (token * p.qkv_stride + first) * size;
  for (long i = 0; i < n * size; i += 64) __builtin_prefetch(row + i, 0, 2);
}

// Tokens [first, first + count) of the packed batch; its request ends before token `end`.
struct Chunk {
  long first, count, end;
  long rows() const { return (count + kTileRows - 1) / kTileRows * kTileRows; }
};

// Gates of a chunk and value head. Entries past the chunk's tokens have decay 1 and beta 0.
struct ChunkGates {
  float g[kChunk];  // running sum of log decays
  float beta[kChunk];
  float decay[kChunk];   // exp(g)
  float to_end[kChunk];  // exp(g_C - g)
  float last;            // exp(g_C)
};

inline void load_gates(const GatedDeltaRuleParams& p, const Chunk& chunk, long head, ChunkGates& gates) {
  float g = 0;
  for (long t = 0; t < kChunk; ++t) {
    const GDNGate gate = t < chunk.count ? gdn_gate(p, chunk.first + t, head) : GDNGate{0, 0};
    g += gate.log_decay;
    gates.g[t] = g;
    gates.beta[t] = gate.beta;
  }
  for (long t = 0; t < kChunk; t += kLanes) {
    store(gates.decay + t, exp(load(gates.g + t)));
    store(gates.to_end + t, exp(g - load(gates.g + t)));
  }
  gates.last = expf(g);
}

// Loads kq of one key head.
inline void load_normalised_keys(const GatedDeltaRuleParams& p, const Chunk& chunk, long key_head,
                                 const ChunkScratch& s) {
  const long dkp = round_up_to_lanes(p.dk);
  for (long t = 0; t < kChunk; ++t) {
    float* const k = s.kq + t * dkp;
    float* const q = s.kq + (kChunk + t) * dkp;
    if (t < chunk.count) {
      load_normalised(p, k, chunk.first + t, (p.num_k_heads + key_head) * p.dk, 1);
      load_normalised(p, q, chunk.first + t, key_head * p.dk, 1 / sqrtf(static_cast<float>(p.dk)));
      const long later = chunk.first + chunk.count + t;
      if (later < chunk.end) {
        prefetch_row(p, later, key_head * p.dk, p.dk);
        prefetch_row(p, later, (p.num_k_heads + key_head) * p.dk, p.dk);
      }
    } else {
      memset(k, 0, static_cast<unsigned long>(dkp) * sizeof(float));
      memset(q, 0, static_cast<unsigned long>(dkp) * sizeof(float));
    }
  }
}

// Computes kq, kt and gram of one key head.
inline void load_keys(const GatedDeltaRuleParams& p, const Chunk& chunk, long key_head, const ChunkScratch& s) {
  const long dkp = round_up_to_lanes(p.dk);
  load_normalised_keys(p, chunk, key_head, s);
  transpose(s.kq, dkp, kChunk, dkp, s.kt, kChunk);
  for (long half = 0; half < 2; ++half) {
    for (long row = 0; row < chunk.rows(); row += kTileRows) {
      const long at = half * kChunk + row;
      multiply({.a = {s.kq + at * dkp, dkp, 1},
                .b = s.kt,
                .b_stride = kChunk,
                .c = s.gram + at * kChunk,
                .c_stride = kChunk,
                .rows = kTileRows,
                .columns = round_up_to_lanes(row + kTileRows),
                .depth = dkp,
                .scale = 0});
    }
  }
}

// Computes a and p of one value head. Rows of a are zero from the diagonal on, rows of p after it.
inline void weigh_gram(const ChunkGates& gates, const Chunk& chunk, const ChunkScratch& s) {
  Vec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<float>(i);
  for (long t = 0; t < chunk.rows(); ++t) {
    const long tile_end = (t / kTileRows + 1) * kTileRows;
    for (long j = 0; j < tile_end; j += kLanes) {
      const Vec column = lane + static_cast<float>(j), exponent = gates.g[t] - load(gates.g + j);
      const Vec e = exp(exponent < 0.0f ? exponent : Vec{});
      const float row = static_cast<float>(t);
      store(s.a + t * kChunk + j, column < row ? gates.beta[t] * e * load(s.gram + t * kChunk + j) : Vec{});
      store(s.p + t * kChunk + j, column <= row ? e * load(s.gram + (kChunk + t) * kChunk + j) : Vec{});
    }
  }
}

// n = beta (v - exp(g) Kn S^T): the right-hand side.
inline void load_values(const GatedDeltaRuleParams& p, const Chunk& chunk, long head, const ChunkGates& gates,
                        const ChunkScratch& s) {
  const long dvp = round_up_to_lanes(p.dv), first = 2 * p.num_k_heads * p.dk + head * p.dv;
  for (long t = 0; t < chunk.rows(); ++t) {
    float* const n = s.n + t * dvp;
    for (long i = t < chunk.count ? p.dv : 0; i < dvp; ++i) n[i] = 0;
    if (t < chunk.count) load_row(n, p.qkv, (chunk.first + t) * p.qkv_stride + first, p.dv, p.qkv_type);
    if (chunk.first + chunk.count + t < chunk.end) prefetch_row(p, chunk.first + chunk.count + t, first, p.dv);
    const float beta = gates.beta[t], decay = gates.decay[t];
    for (long i = 0; i < dvp; i += kLanes) store(n + i, beta * (load(n + i) - decay * load(s.x + t * dvp + i)));
  }
}

// Solves rows [begin, end) of n = (I + a)^-1 n. The caller has solved and subtracted the rows before `begin`. Per tile
// of rows, a GEMM subtracts the rows above; the tile's own rows are solved in registers.
inline void solve(long begin, long end, long dvp, const ChunkScratch& s) {
  for (long row = begin; row < end; row += kTileRows) {
    const float* const a = s.a + row * kChunk;
    for_each_panel(dvp, [&]<int kVecs>(long column) {
      Tile<kVecs> tile = {};
      tile.multiply_add({a + begin, kChunk, 1}, s.n + begin * dvp + column, dvp, row - begin);
      float* const n = s.n + row * dvp + column;
      for (int r = 0; r < kTileRows; ++r) {
        for (int v = 0; v < kVecs; ++v) {
          Vec value = load(n + r * dvp + v * kLanes) - tile.acc[r][v];
          for (int j = 0; j < r; ++j) value -= a[r * kChunk + row + j] * tile.acc[j][v];
          tile.acc[r][v] = value;
        }
      }
      tile.save(n, dvp);
    });
  }
}

// O = exp(g) Qn S^T + p n, in the second half of x; then stores it.
inline void write_outputs(const GatedDeltaRuleParams& p, const Chunk& chunk, long head, const ChunkGates& gates,
                          const ChunkScratch& s) {
  const long dvp = round_up_to_lanes(p.dv);
  for (long row = 0; row < chunk.rows(); row += kTileRows) {
    float* const o = s.x + (kChunk + row) * dvp;
    for (long r = 0; r < kTileRows; ++r) {
      for (long i = 0; i < dvp; i += kLanes) store(o + r * dvp + i, load(o + r * dvp + i) * gates.decay[row + r]);
    }
    multiply({.a = {s.p + row * kChunk, kChunk, 1},
              .b = s.n,
              .b_stride = dvp,
              .c = o,
              .c_stride = dvp,
              .rows = kTileRows,
              .columns = dvp,
              .depth = row + kTileRows,
              .scale = 1});
    for (long r = 0; r < kTileRows && row + r < chunk.count; ++r) {
      store_row(p.out, (chunk.first + row + r) * p.out_stride + head * p.dv, o + r * dvp, p.dv, p.out_type);
    }
  }
}

// Runs one value head of one chunk. `state` [dkp, dvp] is transposed, and is updated in place.
inline void run_chunk(const GatedDeltaRuleParams& p, const Chunk& chunk, long head, const ChunkScratch& s,
                      float* state) {
  const long dkp = round_up_to_lanes(p.dk), dvp = round_up_to_lanes(p.dv);
  ChunkGates gates;
  load_gates(p, chunk, head, gates);
  for (long half = 0; half < 2; ++half) {
    multiply({.a = {s.kq + half * kChunk * dkp, dkp, 1},
              .b = state,
              .b_stride = dvp,
              .c = s.x + half * kChunk * dvp,
              .c_stride = dvp,
              .rows = chunk.rows(),
              .columns = dvp,
              .depth = dkp,
              .scale = 0});
  }
  weigh_gram(gates, chunk, s);
  load_values(p, chunk, head, gates, s);
  solve(0, chunk.rows(), dvp, s);
  write_outputs(p, chunk, head, gates, s);
  for (long t = 0; t < chunk.rows(); ++t) {
    for (long i = 0; i < dvp; i += kLanes) store(s.n + t * dvp + i, load(s.n + t * dvp + i) * gates.to_end[t]);
  }
  multiply({.a = {s.kq, 1, dkp},
            .b = s.n,
            .b_stride = dvp,
            .c = state,
            .c_stride = dvp,
            .rows = dkp,
            .columns = dvp,
            .depth = chunk.rows(),
            .scale = gates.last});
}

inline void load_states(const GatedDeltaRuleParams& p, long slot, long key_head, float* states) {
  const long dkp = round_up_to_lanes(p.dk), dvp = round_up_to_lanes(p.dv), group = p.num_v_heads / p.num_k_heads;
  memset(states, 0, static_cast<unsigned long>(group * dkp * dvp) * sizeof(float));
  if (slot == kNoState) return;
  for (long i = 0; i < group; ++i) {
    transpose(p.state + slot * p.slot_stride + (key_head * group + i) * p.dk * p.dv, p.dk, p.dv, p.dk,
              states + i * dkp * dvp, dvp);
  }
}

inline void save_states(const GatedDeltaRuleParams& p, long slot, long key_head, const float* states) {
  const long dkp = round_up_to_lanes(p.dk), dvp = round_up_to_lanes(p.dv), group = p.num_v_heads / p.num_k_heads;
  for (long i = 0; i < group; ++i) {
    transpose(states + i * dkp * dvp, dvp, p.dk, p.dv,
              p.state + slot * p.slot_stride + (key_head * group + i) * p.dk * p.dv, p.dk);
  }
}

// Returns the tokens from `done` to the next chunk end, snapshot or end of the request, whichever comes first.
inline long chunk_length(const GatedDeltaRuleParams& p, long request, long done) {
  long length = p.spans[request].q_len - done;
  if (length > kChunk) length = kChunk;
  for (long i = 0; i < p.num_snapshots; ++i) {
    const long left = p.snapshots[i].num_tokens - done;
    if (p.snapshots[i].request == request && left > 0 && left < length) length = left;
  }
  return length;
}

// GEMMs in float32.
struct FloatProducts {
  const GatedDeltaRuleParams& p;
  ChunkScratch scratch;

  void load_keys(const Chunk& chunk, long key_head) const { cpu::load_keys(p, chunk, key_head, scratch); }
  void run_chunk(const Chunk& chunk, long head, float* state) const { cpu::run_chunk(p, chunk, head, scratch, state); }
};

// Runs all tokens of one request and of the value heads of a key head. Calls products.load_keys(chunk, key_head), then
// products.run_chunk(chunk, head, state) for each head.
template <class Products>
inline void run_chunks(const GatedDeltaRuleParams& p, long request, long key_head, const Products& products) {
  const KeySpan& span = p.spans[request];
  const long state_size = round_up_to_lanes(p.dk) * round_up_to_lanes(p.dv), group = p.num_v_heads / p.num_k_heads;
  const ChunkScratch& s = products.scratch;
  load_states(p, p.slots[request].read, key_head, s.states);
  for (long done = 0; done < span.q_len;) {
    const Chunk chunk = {
        .first = span.q_off + done, .count = chunk_length(p, request, done), .end = span.q_off + span.q_len};
    products.load_keys(chunk, key_head);
    for (long i = 0; i < group; ++i) products.run_chunk(chunk, key_head * group + i, s.states + i * state_size);
    done += chunk.count;
    for (long i = 0; i < p.num_snapshots; ++i) {
      const StateSnapshot& shot = p.snapshots[i];
      if (shot.request == request && shot.num_tokens == done) save_states(p, shot.slot, key_head, s.states);
    }
  }
  if (p.slots[request].write != kNoState) save_states(p, p.slots[request].write, key_head, s.states);
}

}  // namespace
}  // namespace headrace::cpu
