// Chunked form with GEMMs on AMX tiles: bfloat16 operands, float32 sums. The triangular solve, gates and states stay
// float32. For bfloat16 inputs only, whose own rounding is as large. See gdn_chunk.h for the algorithm.
#pragma once
#include "headrace/ops/cpu/amx_tile.h"
#include "headrace/ops/cpu/gdn_chunk.h"

namespace headrace::cpu {
namespace {

// Operands of a task in addition to ChunkScratch; "pairs" have the layout of AmxProduct::b.
struct AmxScratch {
  uint16_t* kq;        // [2 chunk, dk]
  uint32_t* k_pairs;   // [dk / 2, chunk]: Kn transposed
  uint16_t* kt;        // [dk, chunk]
  uint16_t* p;         // [chunk, chunk]
  uint32_t* s_pairs;   // [dk / 2, dv]
  uint32_t* n_pairs;   // [chunk / 2, dv]
  uint32_t* n_to_end;  // [chunk / 2, dv]: rows times exp(g_C - g)
};

inline bool amx_fits(const GatedDeltaRuleParams& p) {
  return p.qkv_type == FloatType::kBF16 && p.dk % 32 == 0 && p.dv % 32 == 0;
}

// Sets the pointers (null without memory) and returns the number of floats needed.
inline long place(const GatedDeltaRuleParams& p, float* memory, AmxScratch& s) {
  long used = 0;
  const auto take = [&](long words) {
    uint32_t* const at = memory == nullptr ? nullptr : reinterpret_cast<uint32_t*>(memory + used);
    used += words;
    return at;
  };
  const auto take_halves = [&](long halves) { return reinterpret_cast<uint16_t*>(take(halves / 2)); };
  s = {.kq = take_halves(2 * kChunk * p.dk),
       .k_pairs = take(p.dk / 2 * kChunk),
       .kt = take_halves(p.dk * kChunk),
       .p = take_halves(kChunk * kChunk),
       .s_pairs = take(p.dk / 2 * p.dv),
       .n_pairs = take(kChunk / 2 * p.dv),
       .n_to_end = take(kChunk / 2 * p.dv)};
  return used;
}

[[gnu::always_inline]] inline BitsVec bf16_bits(Vec value) {
  const auto halves = reinterpret_cast<HalfVec>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
  return __builtin_convertvector(halves, BitsVec);
}
[[gnu::always_inline]] inline void store_pairs(uint32_t* to, Vec low, Vec high) {
  typedef uint32_t BitsInMemory __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
  *reinterpret_cast<BitsInMemory*>(to) = bf16_bits(low) | (bf16_bits(high) << 16);
}

[[gnu::always_inline]] inline void store_bits(uint16_t* to, BitsVec bits) {
  *reinterpret_cast<HalfVecInMemory*>(to) = __builtin_convertvector(bits, HalfVec);
}

// Rounds kq to bfloat16, builds the two transposes, then computes gram.
inline void load_keys_amx(const GatedDeltaRuleParams& p, const Chunk& chunk, long key_head, const ChunkScratch& s,
                          const AmxScratch& m) {
  load_normalised_keys(p, chunk, key_head, s);
  for (long t = 0; t < 2 * kChunk; ++t) store_row(m.kq, t * p.dk, s.kq + t * p.dk, p.dk, FloatType::kBF16);
  transpose(reinterpret_cast<const float*>(m.kq), p.dk / 2, kChunk, p.dk / 2, reinterpret_cast<float*>(m.k_pairs),
            kChunk);
  for (long i = 0; i < p.dk / 2; ++i) {
    for (long t = 0; t < kChunk; t += kLanes) {
      const auto pairs = reinterpret_cast<BitsVec>(load(reinterpret_cast<const float*>(m.k_pairs) + i * kChunk + t));
      store_bits(m.kt + 2 * i * kChunk + t, pairs & 0xffffu);
      store_bits(m.kt + (2 * i + 1) * kChunk + t, pairs >> 16);
    }
  }
  for (long row = 0; row < 2 * kChunk; row += 32) {
    multiply(AmxProduct{.a = m.kq + row * p.dk,
                        .a_stride = p.dk,
                        .b = m.k_pairs,
                        .b_stride = kChunk,
                        .c = s.gram + row * kChunk,
                        .c_stride = kChunk,
                        .rows = 32,
                        .columns = row % kChunk + 32,
                        .depth = p.dk,
                        .into = AmxProduct::Into::kZeros});
  }
}

// x = [Kn; Qn] S^T; then S = exp(g_C) S, ready for the update.
inline void multiply_state(const GatedDeltaRuleParams& p, const ChunkGates& gates, const ChunkScratch& s,
                           const AmxScratch& m, float* state) {
  for (long i = 0; i < p.dk; i += 2) {
    for (long j = 0; j < p.dv; j += kLanes) {
      float* const low = state + i * p.dv + j;
      const Vec a = load(low), b = load(low + p.dv);
      store_pairs(m.s_pairs + i / 2 * p.dv + j, a, b);
      store(low, a * gates.last);
      store(low + p.dv, b * gates.last);
    }
  }
  multiply(AmxProduct{.a = m.kq,
                      .a_stride = p.dk,
                      .b = m.s_pairs,
                      .b_stride = p.dv,
                      .c = s.x,
                      .c_stride = p.dv,
                      .rows = 2 * kChunk,
                      .columns = p.dv,
                      .depth = p.dk,
                      .into = AmxProduct::Into::kZeros});
}

// Packs rows [begin, end) of n into n_pairs and n_to_end.
inline void pack_values(const GatedDeltaRuleParams& p, long begin, long end, const ChunkGates& gates,
                        const ChunkScratch& s, const AmxScratch& m) {
  for (long t = begin; t < end; t += 2) {
    for (long j = 0; j < p.dv; j += kLanes) {
      const Vec a = load(s.n + t * p.dv + j), b = load(s.n + (t + 1) * p.dv + j);
      store_pairs(m.n_pairs + t / 2 * p.dv + j, a, b);
      store_pairs(m.n_to_end + t / 2 * p.dv + j, a * gates.to_end[t], b * gates.to_end[t + 1]);
    }
  }
}

// Returns the rounding error of a value in bfloat16.
[[gnu::always_inline]] inline Vec left_of(Vec value) { return value - reinterpret_cast<Vec>(bf16_bits(value) << 16); }

// Subtracts the first half's contribution from the second half of n. It includes the bfloat16 rounding errors of both
// factors: nearly parallel keys amplify errors of the solution more than those of any other GEMM. Overwrites p and the
// second half of n_pairs.
inline void subtract_first_half(const GatedDeltaRuleParams& p, const Chunk& chunk, const ChunkScratch& s,
                                const AmxScratch& m) {
  constexpr long kHalf = kChunk / 2;
  uint16_t *const a = m.p, *const a_left = m.p + kHalf * kHalf;
  uint32_t* const n_left = m.n_pairs + kHalf / 2 * p.dv;
  memset(m.p, 0, 2 * kHalf * kHalf * sizeof(uint16_t));
  for (long t = kHalf; t < chunk.rows(); ++t) {
    for (long j = 0; j < kHalf; j += kLanes) {
      const Vec minus_a = -load(s.a + t * kChunk + j);
      store_bits(a + (t - kHalf) * kHalf + j, bf16_bits(minus_a));
      store_bits(a_left + (t - kHalf) * kHalf + j, bf16_bits(left_of(minus_a)));
    }
  }
  for (long t = 0; t < kHalf; t += 2) {
    for (long j = 0; j < p.dv; j += kLanes)
      store_pairs(n_left + t / 2 * p.dv + j, left_of(load(s.n + t * p.dv + j)),
                  left_of(load(s.n + (t + 1) * p.dv + j)));
  }
  const auto add = [&](const uint16_t* left, const uint32_t* right) {
    multiply(AmxProduct{.a = left,
                        .a_stride = kHalf,
                        .b = right,
                        .b_stride = p.dv,
                        .c = s.n + kHalf * p.dv,
                        .c_stride = p.dv,
                        .rows = kHalf,
                        .columns = p.dv,
                        .depth = kHalf,
                        .into = AmxProduct::Into::kSum});
  };
  add(a, m.n_pairs), add(a_left, m.n_pairs), add(a, n_left);
}

// Solves for n and packs it, in two halves, so that the first half's contribution to the second is an AMX GEMM. Rows
// past the chunk's tokens are zero.
inline void solve_amx(const GatedDeltaRuleParams& p, const Chunk& chunk, const ChunkGates& gates, const ChunkScratch& s,
                      const AmxScratch& m) {
  constexpr long kHalf = kChunk / 2;
  const long rows = chunk.rows();
  memset(s.n + rows * p.dv, 0, static_cast<unsigned long>((kChunk - rows) * p.dv) * sizeof(float));
  solve(0, rows < kHalf ? rows : kHalf, p.dv, s);
  pack_values(p, 0, kHalf, gates, s, m);
  if (rows > kHalf) {
    subtract_first_half(p, chunk, s, m);
    solve(kHalf, rows, p.dv, s);
  }
  pack_values(p, kHalf, kChunk, gates, s, m);
}

// O = exp(g) Qn S^T + p n, in the second half of x; then stores it.
inline void write_outputs_amx(const GatedDeltaRuleParams& p, const Chunk& chunk, long head, const ChunkGates& gates,
                              const ChunkScratch& s, const AmxScratch& m) {
  memset(m.p, 0, kChunk * kChunk * sizeof(uint16_t));
  for (long t = 0; t < chunk.rows(); ++t) {
    store_row(m.p, t * kChunk, s.p + t * kChunk, round_up_to_lanes(t + 1), FloatType::kBF16);
    float* const o = s.x + (kChunk + t) * p.dv;
    for (long i = 0; i < p.dv; i += kLanes) store(o + i, load(o + i) * gates.decay[t]);
  }
  for (long row = 0; row < kChunk; row += 32) {
    multiply(AmxProduct{.a = m.p + row * kChunk,
                        .a_stride = kChunk,
                        .b = m.n_pairs,
                        .b_stride = p.dv,
                        .c = s.x + (kChunk + row) * p.dv,
                        .c_stride = p.dv,
                        .rows = 32,
                        .columns = p.dv,
                        .depth = row + 32,
                        .into = AmxProduct::Into::kSum});
  }
  for (long t = 0; t < chunk.count; ++t) {
    store_row(p.out, (chunk.first + t) * p.out_stride + head * p.dv, s.x + (kChunk + t) * p.dv, p.dv, p.out_type);
  }
}

// Runs one value head of one chunk. `state` [dk, dv] is transposed, and is updated in place.
inline void run_chunk_amx(const GatedDeltaRuleParams& p, const Chunk& chunk, long head, const ChunkScratch& s,
                          const AmxScratch& m, float* state) {
  ChunkGates gates;
  load_gates(p, chunk, head, gates);
  multiply_state(p, gates, s, m, state);
  weigh_gram(gates, chunk, s);
  load_values(p, chunk, head, gates, s);
  solve_amx(p, chunk, gates, s, m);
  write_outputs_amx(p, chunk, head, gates, s, m);
  multiply(AmxProduct{.a = m.kt,
                      .a_stride = kChunk,
                      .b = m.n_to_end,
                      .b_stride = p.dv,
                      .c = state,
                      .c_stride = p.dv,
                      .rows = p.dk,
                      .columns = p.dv,
                      .depth = kChunk,
                      .into = AmxProduct::Into::kSum});
}

// GEMMs in bfloat16; the thread's tiles must be configured.
struct AmxProducts {
  const GatedDeltaRuleParams& p;
  ChunkScratch scratch;
  AmxScratch amx;

  void load_keys(const Chunk& chunk, long key_head) const { load_keys_amx(p, chunk, key_head, scratch, amx); }
  void run_chunk(const Chunk& chunk, long head, float* state) const {
    run_chunk_amx(p, chunk, head, scratch, amx, state);
  }
};

}  // namespace
}  // namespace headrace::cpu
