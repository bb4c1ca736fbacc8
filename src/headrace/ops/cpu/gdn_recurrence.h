// Recurrent form of the gated delta rule: one pass over a head's state per token. For kernel sources only.
//
// S' = decay S + d kn^T with d = beta (v - decay S kn), so S' qn = decay S qn + d (kn . qn). Both dot products use the
// old state, so a row is read and written once. Rows are independent of each other.
#pragma once
#include <math.h>
#include <string.h>

#include "headrace/ops/cpu/gated_delta_rule.h"
#include "headrace/ops/cpu/read_ahead.h"
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu {
namespace {

constexpr float kL2Epsilon = 1e-6f;
constexpr long kRowsAhead = 12;  // prefetch distance in state rows: 8 and 16 were as good, 4 and 32 were not

// Inputs of one token and value head; vectors are padded with zeros to whole Vecs.
struct GDNToken {
  const float* k;  // normalised
  const float* q;  // normalised and scaled
  const float* v;
  float decay, beta, kq;  // kq = k . q
};

struct GDNGate {
  float log_decay, beta;
};

inline GDNGate gdn_gate(const GatedDeltaRuleParams& p, long token, long head) {
  const float u = load_float(p.a, token * p.a_stride + head, p.gate_type) + p.dt_bias[head];
  const float softplus = u > 20 ? u : log1pf(expf(u));
  const float b = load_float(p.b, token * p.b_stride + head, p.gate_type);
  return {-expf(p.a_log[head]) * softplus, 1 / (1 + expf(-b))};
}

// n must be a multiple of the lanes.
inline float dot(const float* x, const float* y, long n) {
  Vec acc = {};
  for (long i = 0; i < n; i += kLanes) acc += load(x + i) * load(y + i);
  return sum(acc);
}

// x[0, padded) = the n values at channel `first` of the token, times scale / |x|, then zeros.
inline void load_normalised(const GatedDeltaRuleParams& p, float* x, long token, long first, float scale) {
  const long padded = round_up_to_lanes(p.dk);
  load_row(x, p.qkv, token * p.qkv_stride + first, p.dk, p.qkv_type);
  for (long i = p.dk; i < padded; ++i) x[i] = 0;
  const float factor = scale / sqrtf(dot(x, x, padded) + kL2Epsilon);
  for (long i = 0; i < padded; i += kLanes) store(x + i, load(x + i) * factor);
}

// Products of one state row with k and q. Reading each row from start to end, and rows in order, lets the hardware's
// stream prefetcher follow; several rows at once would not.
struct RowProducts {
  float k, q;
};

[[gnu::always_inline]] inline RowProducts multiply_row(const GDNToken& token, const float* row, long dk) {
  Vec k = {}, q = {};
  float tail_k = 0, tail_q = 0;
  const long whole = dk / kLanes * kLanes;
  for (long i = 0; i < whole; i += kLanes) {
    read_ahead(reinterpret_cast<const char*>(row + kRowsAhead * dk + i));
    const Vec s = load(row + i);
    k += s * load(token.k + i);
    q += s * load(token.q + i);
  }
  for (long i = whole; i < dk; ++i) {
    tail_k += row[i] * token.k[i];
    tail_q += row[i] * token.q[i];
  }
  return {sum(k) + tail_k, sum(q) + tail_q};
}

// Computes the state `to` after `token` from the state `from` before it (may be the same memory), and out [dv].
[[gnu::always_inline]] inline void step_rows(const GDNToken& token, const float* from, float* to, float* out, long dk,
                                             long dv) {
  const long whole = dk / kLanes * kLanes;
  for (long row = 0; row < dv; ++row, from += dk, to += dk) {
    const RowProducts s = multiply_row(token, from, dk);
    const float d = token.beta * (token.v[row] - token.decay * s.k);
    out[row] = token.decay * s.q + d * token.kq;
    for (long i = 0; i < whole; i += kLanes) store(to + i, token.decay * load(from + i) + d * load(token.k + i));
    for (long i = whole; i < dk; ++i) to[i] = token.decay * from[i] + d * token.k[i];
  }
}

// The constant 128 lets loops unroll and keeps k and q in registers.
inline void step(const GDNToken& token, const float* from, float* to, float* out, long dk, long dv) {
  dk == 128 ? step_rows(token, from, to, out, 128, dv) : step_rows(token, from, to, out, dk, dv);
}

// Copies the state after `tokens` tokens to the snapshots at that count.
inline void save_snapshots(const GatedDeltaRuleParams& p, long request, long head, long tokens, const float* state) {
  const long size = p.dk * p.dv;
  for (long i = 0; i < p.num_snapshots; ++i) {
    const StateSnapshot& s = p.snapshots[i];
    float* const to = p.state + s.slot * p.slot_stride + head * size;
    if (s.request == request && s.num_tokens == tokens && to != state) {
      memcpy(to, state, static_cast<unsigned long>(size) * sizeof(float));
    }
  }
}

// Runs all tokens of one request and value head. The state is updated in the write slot, or in `scratch` if there is
// none. scratch: 2 * padded dk + 2 * padded dv floats, plus dk * dv without a write slot.
inline void run_recurrence(const GatedDeltaRuleParams& p, long request, long head, float* scratch) {
  const KeySpan& span = p.spans[request];
  const StateSlots& slots = p.slots[request];
  const long size = p.dk * p.dv, key_head = head / (p.num_v_heads / p.num_k_heads);
  float* const k = scratch;
  float* const q = k + round_up_to_lanes(p.dk);
  float* const v = q + round_up_to_lanes(p.dk);
  float* const out = v + round_up_to_lanes(p.dv);
  float* const own = out + round_up_to_lanes(p.dv);
  float* const state = slots.write == kNoState ? own : p.state + slots.write * p.slot_stride + head * size;
  const float* from = state;
  if (slots.read == kNoState) {
    memset(state, 0, static_cast<unsigned long>(size) * sizeof(float));
  } else {
    from = p.state + slots.read * p.slot_stride + head * size;
  }
  for (long t = 0; t < span.q_len; ++t) {
    const long token = span.q_off + t;
    load_normalised(p, q, token, key_head * p.dk, 1 / sqrtf(static_cast<float>(p.dk)));
    load_normalised(p, k, token, (p.num_k_heads + key_head) * p.dk, 1);
    load_row(v, p.qkv, token * p.qkv_stride + 2 * p.num_k_heads * p.dk + head * p.dv, p.dv, p.qkv_type);
    const GDNGate gate = gdn_gate(p, token, head);
    const float kq = dot(k, q, round_up_to_lanes(p.dk));
    step({.k = k, .q = q, .v = v, .decay = expf(gate.log_decay), .beta = gate.beta, .kq = kq}, from, state, out, p.dk,
         p.dv);
    store_row(p.out, token * p.out_stride + head * p.dv, out, p.dv, p.out_type);
    from = state;
    if (p.num_snapshots != 0) save_snapshots(p, request, head, t + 1, state);
  }
}

}  // namespace
}  // namespace headrace::cpu
