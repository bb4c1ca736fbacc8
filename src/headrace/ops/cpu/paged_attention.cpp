// Over 400 lines: one task's steps from its queries to its rows of the output.
//
// Online softmax over tiles of 64 key positions. A task is a block of query rows of one request, some KV heads and a
// range of keys. Every K and V tile is packed once and serves all rows of its unit. Tiles begin at absolute positions,
// and a tile that is invisible to a row leaves that row's state unchanged. A row's bits therefore depend on its own
// keys only, and for requests of few rows on the KV splits.
//
// Requests of few rows are split over their keys, and the partial results are merged in order. In default mode their
// bf16 and int8 tiles are not packed. bf16 queries use bf16 dot products, with probabilities rounded to bf16, where the
// variant has them; this holds for bf16 keys and for FP8 and int8 keys, whose values bf16 represents exactly. All else,
// also few rows over int8 in default mode, is float32. FP8 scales are part of the softmax scale and of the final
// division. Tiles of int8 hold codes: a key's scale multiplies its score, a value's scale the softmax weight of its
// key.
//
// Source: Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022 (FlashAttention), algorithm 1.
#include "headrace/ops/cpu/paged_attention.h"

#include "headrace/core/parallel.h"
#include "headrace/ops/cpu/attention_gemm.h"
#include "headrace/ops/cpu/attention_in_place.h"
#include "headrace/ops/cpu/attention_in_tiles.h"
#include "headrace/ops/cpu/attention_int8_in_place.h"
#include "headrace/ops/cpu/attention_softmax.h"
#include "headrace/ops/cpu/attention_tile.h"
#include "headrace/ops/cpu/attention_values.h"
#include "headrace/ops/cpu/parallel_scratch.h"

namespace headrace::cpu::HR_ISA {
namespace {

// State of a worker: its memory and its current task. Rows of a unit are ordered [head, token].
struct Block {
  const PagedAttentionParams* p;
  const AttentionTask* task;
  const KeySpan* span;
  long tokens, rows, rows_padded, d, dv;  // d and dv padded
  bool pairs;                             // bf16 dot products
  bool in_tiles;                          // few rows, for AMX tiles: their queries are also stored in pairs
  bool int8_in_place;                     // few rows over int8 in the pool: float32 without a packed copy
  Reach reach;                            // union over all rows
  Reach* token_reach;                     // [tokens]
  float *q, *out, *largest, *sum;         // [units, rows, d], [units, rows, dv], [units, rows] twice
  float *scores, *probabilities;          // [kScoreRows, 64] each; bf16 in the second
  float *k, *v, *staged, *row;            // packed tiles, rows before packing, one row
  float *k_scales, *v_scales;             // [64] of an int8 tile, else null
};

// Processing of a tile of keys: from a packed copy, or in the pool with vectors, of codes or not, or with AMX tiles.
enum class Way { kPacked, kInPlace, kInt8InPlace, kInTiles };
// Permission for a task to use AMX tiles on unpacked keys.
enum class InTiles { kAllowed, kRefused };

#ifdef __AVX512BF16__
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

bool uses_pairs(const PagedAttentionParams& p) {
  const bool keys = p.key_type == FloatType::kBF16 || p.key_type == FloatType::kE4M3 || p.key_type == FloatType::kI8;
  return kHasPairs && p.q.type == FloatType::kBF16 && keys;
}

Block block_in(const PagedAttentionParams& p, float* scratch) {
  Block b = {.p = &p, .d = padded(p.head_dim), .dv = padded(p.v_head_dim)};
  const long rows = padded(p.max_rows);
  const long wide = b.d > b.dv ? b.d : b.dv;
  b.q = scratch;
  b.out = b.q + p.max_units * rows * b.d;
  b.scores = b.out + p.max_units * rows * b.dv;
  b.probabilities = b.scores + kScoreRows * kKeyTile;
  b.k = b.probabilities + kScoreRows * kKeyTile;
  b.v = b.k + kKeyTile * b.d;
  b.staged = b.v + kKeyTile * b.dv;
  b.row = b.staged + kKeyTile * wide;
  const bool int8 = p.key_type == FloatType::kI8;
  b.k_scales = int8 ? b.row + wide : nullptr;
  b.v_scales = int8 ? b.k_scales + kKeyTile : nullptr;
  b.largest = b.row + wide + 2 * kKeyTile;
  b.sum = b.largest + p.max_units * rows;
  b.token_reach = reinterpret_cast<Reach*>(b.sum + p.max_units * rows);
  return b;
}

long least(long a, long b) { return a < b ? a : b; }
long most(long a, long b) { return a > b ? a : b; }

void find_reach(Block& b) {
  const KeySpan& span = *b.span;
  const long base = most(span.phys0, span.ctx_len);
  for (long t = 0; t < b.tokens; ++t) {
    const int row = static_cast<int>(b.task->t0 + t);
    Reach& r = b.token_reach[t];
    r = {.cached_from = span.first_cached(row, b.p->window),
         .cached_to = span.ctx_len,
         .hole_begin = span.hole_begin,
         .hole_end = span.hole_end,
         .new_from = base + span.first_new(row, b.p->window),
         .new_to = base + span.new_keys(row)};
    if (t == 0) {
      b.reach = r;
      continue;
    }
    b.reach.cached_from = least(b.reach.cached_from, r.cached_from);
    b.reach.new_from = least(b.reach.new_from, r.new_from);
    b.reach.new_to = most(b.reach.new_to, r.new_to);
  }
}

long query_head(const Block& b, long unit, long row) { return unit * b.p->heads_per_unit + row / b.tokens; }

// [d / 2, 16], stored after the queries of a unit of few rows: as bfloat16 these use half of the unit's floats.
uint32_t* paired_queries(const Block& b, long local) {
  return reinterpret_cast<uint32_t*>(b.q + local * b.rows_padded * b.d) + kMaxRowsInTiles * b.d / 2;
}

void load_queries(const Block& b, long unit, long local) {
  const AttentionRows& from = b.p->q;
  const long head_dim = b.p->head_dim;
  float* const floats = b.q + local * b.rows_padded * b.d;
  auto* const halves = reinterpret_cast<uint16_t*>(floats);
  for (long r = 0; r < b.rows_padded; ++r) {
    float* const row = b.pairs ? b.row : floats + r * b.d;
    long d = 0;
    if (r < b.rows) {
      const long token = b.span->q_off + b.task->t0 + r % b.tokens;
      load_row(row, from.data, token * from.token_stride + query_head(b, unit, r) * from.head_stride, head_dim,
               from.type);
      d = head_dim;
    }
    for (; d < b.d; ++d) row[d] = 0;
    if (b.pairs) store_row(halves + r * b.d, 0, row, b.d, FloatType::kBF16);
  }
  if (b.in_tiles) pair_queries(halves, b.d, paired_queries(b, local));
}

void begin(Block& b, const AttentionTask& task, InTiles tiles) {
  b.task = &task;
  b.span = b.p->spans + task.request;
  b.tokens = task.t1 - task.t0;
  b.rows = b.tokens * b.p->heads_per_unit;
  b.rows_padded = (b.rows + 15) / 16 * 16;  // multiple of an AMX tile's rows
  const bool whole_rows = b.p->head_dim == b.d && b.p->v_head_dim == b.dv;
  b.int8_in_place = b.p->k.type == FloatType::kI8 && whole_rows && b.p->any_order && b.rows <= kMaxRowsInPlace;
  b.pairs = uses_pairs(*b.p) && !b.int8_in_place;
  const bool of_pool =
      b.p->k.type == FloatType::kBF16 && b.p->v.type == FloatType::kBF16 && whole_rows;  // rows in the pool
  b.in_tiles =
      kReadsInTiles && tiles == InTiles::kAllowed && b.p->any_order && b.pairs && of_pool && b.rows <= kMaxRowsInTiles;
  find_reach(b);
  for (long unit = task.u0; unit < task.u1; ++unit) {
    const long local = unit - task.u0;
    load_queries(b, unit, local);
    float* const out = b.out + local * b.rows_padded * b.dv;
    for (long i = 0; i < b.rows_padded * b.dv; ++i) out[i] = 0;
    for (long r = 0; r < b.rows_padded; ++r) {
      b.largest[local * b.rows_padded + r] = -__builtin_inff();
      b.sum[local * b.rows_padded + r] = 0;
    }
  }
}

void pack_rows(const Block& b, const TileKeys& keys, long kv_head, ReadAhead& ahead) {
  const TileRows k = k_rows(*b.p, keys, kv_head), v = v_rows(*b.p, keys, kv_head);
  const void* row[kKeyTile];
#ifdef __AVX512BF16__
  if (b.pairs) {
    auto* const staged = reinterpret_cast<uint16_t*>(b.staged);
    gather_bf16(k, b.d, staged, b.row, b.k_scales, row);
    transpose(row, b.d / 2, b.k, ahead);
    gather_bf16(v, b.dv, staged, b.row, b.v_scales, row);
    pair_keys(row, b.dv, reinterpret_cast<uint32_t*>(b.v), ahead);
    return;
  }
#endif
  stage(k, b.staged, b.d, b.k_scales, ahead);
  for (long i = 0; i < kKeyTile; ++i) row[i] = b.staged + i * b.d;
  transpose(row, b.d, b.k, ahead);
  stage(v, b.v, b.dv, b.v_scales, ahead);
}

// Packs a tile. Its scales become factors of scores and probabilities, 0 for absent keys.
void pack(const Block& b, const TileKeys& keys, long kv_head, ReadAhead& ahead) {
  if (b.k_scales == nullptr) return pack_rows(b, keys, kv_head, ahead);
  for (long i = 0; i < 2 * kKeyTile; ++i) b.k_scales[i] = 0;
  pack_rows(b, keys, kv_head, ahead);
  for (long i = 0; i < kKeyTile; ++i) b.k_scales[i] *= b.p->scale;
}

// Rows [first, first + count) of a unit at a tile, and the keys of the tile that each row sees.
struct Strip {
  long local, first, count;
  uint64_t visible[kScoreRows];
  uint64_t seen_by_all;
};

// Returns false if the tile is invisible to all rows.
bool find_visible(const Block& b, long tile, Strip& s) {
  uint64_t any = 0;
  s.seen_by_all = ~uint64_t{0};
  long token = s.first % b.tokens;
  for (long r = 0; r < s.count; ++r) {
    s.visible[r] = visible_bits(b.token_reach[token], tile);
    any |= s.visible[r];
    s.seen_by_all &= s.visible[r];
    if (++token == b.tokens) token = 0;
  }
  return any != 0;
}

void multiply_scores(const Block& b, const Strip& s, ReadAhead& ahead) {
  const Product shape = {
      .rows = s.count, .depth = b.d, .n = kKeyTile, .a_stride = b.d, .b_stride = kKeyTile, .c_stride = kKeyTile};
  const float* const q = b.q + s.local * b.rows_padded * b.d;
#ifdef __AVX512BF16__
  if (b.pairs) {
    const auto* const halves = reinterpret_cast<const uint16_t*>(q) + s.first * b.d;
    return multiply<Into::kOverwrite>(halves, reinterpret_cast<const uint32_t*>(b.k), b.scores, shape, ahead);
  }
#endif
  multiply<Into::kOverwrite>(q + s.first * b.d, b.k, b.scores, shape, ahead);
}

void add_values(const Block& b, const Strip& s, ReadAhead& ahead) {
  float* const out = b.out + (s.local * b.rows_padded + s.first) * b.dv;
  const Product shape = {
      .rows = s.count, .depth = kKeyTile, .n = b.dv, .a_stride = kKeyTile, .b_stride = b.dv, .c_stride = b.dv};
#ifdef __AVX512BF16__
  if (b.pairs) {
    return multiply<Into::kAdd>(reinterpret_cast<const uint16_t*>(b.probabilities),
                                reinterpret_cast<const uint32_t*>(b.v), out, shape, ahead);
  }
#endif
  multiply<Into::kAdd>(b.probabilities, b.v, out, shape, ahead);
}

void soften(const Block& b, const Strip& s) {
  const SoftmaxRule rule = {
      .scale = b.p->scale, .logit_cap = b.p->logit_cap, .key_scales = b.k_scales, .value_scales = b.v_scales};
  for (long r = 0; r < s.count; ++r) {
    const long at = s.local * b.rows_padded + s.first + r;
    float rescale = 1;
    const RowState state = {.largest = b.largest + at, .sum = b.sum + at, .rescale = &rescale};
    if (b.pairs) {
      soften_row(b.scores + r * kKeyTile, s.visible[r], rule, state,
                 reinterpret_cast<uint16_t*>(b.probabilities) + r * kKeyTile);
    } else {
      soften_row(b.scores + r * kKeyTile, s.visible[r], rule, state, b.probabilities + r * kKeyTile);
    }
    if (rescale == 1) continue;
    float* const out = b.out + at * b.dv;
    for (long d = 0; d < b.dv; d += kLanes) store(out + d, load(out + d) * rescale);
  }
}

uint64_t take_out_nonfinite(const Block& b) {
  const auto from = [&b](auto* v) {
    const uint64_t keys = nonfinite_keys(v, b.dv);
    move_nonfinite(v, b.dv, keys, b.staged);  // b.staged is free once K and V are packed
    return keys;
  };
  return b.pairs ? from(reinterpret_cast<uint32_t*>(b.v)) : from(b.v);
}

void add_taken_out(const Block& b, const Strip& s, uint64_t keys) {
  for (long r = 0; r < s.count; ++r) {
    float* const out = b.out + (s.local * b.rows_padded + s.first + r) * b.dv;
    const auto add = [&](const auto* all) { add_moved(b.staged, b.dv, keys & s.visible[r], all + r * kKeyTile, out); };
    b.pairs ? add(reinterpret_cast<const uint16_t*>(b.probabilities)) : add(b.probabilities);
  }
}

void attend_unit(const Block& b, const TileKeys& keys, long local, long tile, ReadAhead& ahead) {
  bool searched = false;
  uint64_t nonfinite = 0;  // keys whose infinities and NaNs are removed from V
  Strip strip;
  strip.local = local;
  for (strip.first = 0; strip.first < b.rows; strip.first += kScoreRows) {
    strip.count = least(kScoreRows, b.rows - strip.first);
    if (!find_visible(b, tile, strip)) continue;
    multiply_scores(b, strip, ahead);
    soften(b, strip);
    if (!searched && strip.seen_by_all != keys.present) {  // rare: only a row's first and last tiles
      nonfinite = take_out_nonfinite(b);
      searched = true;
    }
    add_values(b, strip, ahead);
    if (nonfinite != 0) add_taken_out(b, strip, nonfinite);
  }
}

// Returns the first tile at or after `tile` that is visible to a row, or one past the last.
long next_tile(const Block& b, long tile) {
  while (tile < b.task->k1 && visible_bits(b.reach, tile) == 0) tile += kKeyTile;
  return tile;
}

ReadAhead ahead_of(const PagedAttentionParams& p, const TileKeys& keys, long kv_head) {
  const TileRows k = k_rows(p, keys, kv_head), v = v_rows(p, keys, kv_head);
  return {.row = keys.k,
          .second = keys.v,
          .offset = k.pool_offset,
          .bytes = k.dim * size_of(k.pool_type),
          .second_offset = v.pool_offset,
          .second_bytes = v.dim * size_of(v.pool_type),
          .num_rows = kKeyTile};
}

// Returns true if all rows see the whole tile, and its keys are of this type in the pool without padding.
bool lies_whole_in_pool(const Block& b, const TileKeys& keys, long tile, FloatType type) {
  const PagedAttentionParams& p = *b.p;
  if (keys.present != ~uint64_t{0} || keys.fresh != 0) return false;
  if (p.k.type != type || p.v.type != type) return false;
  if (p.head_dim != b.d || p.v_head_dim != b.dv) return false;
  for (long t = 0; t < b.tokens; ++t) {
    if (visible_bits(b.token_reach[t], tile) != ~uint64_t{0}) return false;
  }
  return true;
}

Way way_of(const Block& b, const TileKeys& keys, long tile) {
  if (b.int8_in_place) return lies_whole_in_pool(b, keys, tile, FloatType::kI8) ? Way::kInt8InPlace : Way::kPacked;
  const bool in_place = b.p->any_order && b.pairs == kHasPairs && b.rows <= kMaxRowsInPlace;
  if (!(in_place || b.in_tiles) || !lies_whole_in_pool(b, keys, tile, FloatType::kBF16)) return Way::kPacked;
  if (b.in_tiles && lies_in_steps(keys.k) && lies_in_steps(keys.v)) return Way::kInTiles;
  return in_place ? Way::kInPlace : Way::kPacked;
}

TileInPlace tile_in_place(const PagedAttentionParams& p, const TileKeys& keys, long kv_head) {
  return {.k = keys.k,
          .v = keys.v,
          .k_offset = k_rows(p, keys, kv_head).pool_offset,
          .v_offset = v_rows(p, keys, kv_head).pool_offset};
}

RowsInPlace rows_in_place(const Block& b, long local) {
  const long at = local * b.rows_padded;
  return {.count = b.rows,
          .q = reinterpret_cast<const Query*>(b.q + at * b.d),
          .out = b.out + at * b.dv,
          .largest = b.largest + at,
          .sum = b.sum + at,
          .d = b.d,
          .dv = b.dv};
}

// Scales of a tile in the pool as factors of scores and probabilities.
SoftmaxRule int8_rule(const Block& b, const TileKeys& keys, long kv_head) {
  const PagedAttentionParams& p = *b.p;
  const TileRows k = k_rows(p, keys, kv_head), v = v_rows(p, keys, kv_head);
  for (long i = 0; i < kKeyTile; ++i) {
    b.k_scales[i] = k.token_scales[i][k.token_scale_offset] * p.scale;
    b.v_scales[i] = v.token_scales[i][v.token_scale_offset];
  }
  return {.scale = p.scale, .logit_cap = p.logit_cap, .key_scales = b.k_scales, .value_scales = b.v_scales};
}

// Processes all units at an unpacked tile. `next_keys` is the following tile, or null.
void attend_in_place(const Block& b, Way way, const TileKeys& keys, const TileKeys* next_keys) {
  const AttentionTask& task = *b.task;
  const PagedAttentionParams& p = *b.p;
  const long per_head = p.units_per_kv_head;
  const SoftmaxRule rule = {.scale = p.scale, .logit_cap = p.logit_cap};
  for (long unit = task.u0; unit < task.u1; ++unit) {
    const long kv_head = unit / per_head, local = unit - task.u0;
    const long after = way == Way::kInTiles ? (kv_head + 1) * per_head : unit + 1;  // index of the unit to prefetch
    const TileKeys* const from = after < task.u1 ? &keys : next_keys;
    TileInPlace next;
    if (from != nullptr) next = tile_in_place(p, *from, (after < task.u1 ? after : task.u0) / per_head);
    const TileInPlace* const ahead = from != nullptr ? &next : nullptr;
    const RowsInPlace rows = rows_in_place(b, local);
    const TileInPlace tile = tile_in_place(p, keys, kv_head);
    if (way == Way::kInt8InPlace) {
      const float* const q = b.q + local * b.rows_padded * b.d;
      attend_int8_in_place(rows, q, tile, int8_rule(b, keys, kv_head), ahead);
    } else if (way == Way::kInTiles) {
      attend_in_tiles(rows, tile, rule, paired_queries(b, local), ahead, unit % per_head, per_head);
    } else {
      attend_in_place(rows, tile, rule, ahead);
    }
  }
}

void attend_packed(const Block& b, long tile, const TileKeys& keys, const TileKeys* next_keys) {
  const AttentionTask& task = *b.task;
  const PagedAttentionParams& p = *b.p;
  for (long unit = task.u0; unit < task.u1; ++unit) {
    const bool last = unit + 1 == task.u1;
    ReadAhead ahead;
    if (!last) ahead = ahead_of(p, keys, (unit + 1) / p.units_per_kv_head);
    if (last && next_keys != nullptr) ahead = ahead_of(p, *next_keys, task.u0 / p.units_per_kv_head);
    pack(b, keys, unit / p.units_per_kv_head, ahead);
    attend_unit(b, keys, unit - task.u0, tile, ahead);
  }
}

void attend(const Block& b) {
  const AttentionTask& task = *b.task;
  TileKeys tiles[2];
  long tile = next_tile(b, task.k0);
  if (tile < task.k1) locate(*b.p, *b.span, b.reach, tile, tiles[0]);
  for (long turn = 0; tile < task.k1; turn ^= 1) {
    const TileKeys& keys = tiles[turn];
    const long next = next_tile(b, tile + kKeyTile);
    TileKeys* const next_keys = next < task.k1 ? &tiles[turn ^ 1] : nullptr;
    if (next_keys != nullptr) locate(*b.p, *b.span, b.reach, next, *next_keys);
    const Way way = way_of(b, keys, tile);
    if (way == Way::kPacked) {
      attend_packed(b, tile, keys, next_keys);
    } else {
      attend_in_place(b, way, keys, next_keys);
    }
    tile = next;
  }
}

bool sums_are_finite(const Block& b, long local) {
  const float* const out = b.out + local * b.rows_padded * b.dv;
  Vec all = {};  // NaN if any value is not finite
  for (long i = 0; i < b.rows * b.dv; i += kLanes) all += load(out + i) * 0.0f;
  return sum(all) == 0;
}

// Writes out = row / sum; zeros and -inf if no key was visible. Overwrites `row`.
void write_row(const PagedAttentionParams& p, float* row, float largest, float sum, long token, long head) {
  const float factor = sum == 0 ? 0.0f : p.v_scale / sum;
  for (long d = 0; d < p.v_head_dim; ++d) row[d] *= factor;
  store_row(p.out.data, token * p.out.token_stride + head * p.out.head_stride, row, p.v_head_dim, p.out.type);
  if (p.lse == nullptr) return;
  const float lse = sum == 0 ? -__builtin_inff() : largest + __builtin_logf(sum);
  p.lse[token * p.lse_token_stride + head * p.lse_head_stride] = lse;
}

void finish(const Block& b) {
  const AttentionTask& task = *b.task;
  for (long unit = task.u0; unit < task.u1; ++unit) {
    for (long r = 0; r < b.rows; ++r) {
      const long at = (unit - task.u0) * b.rows_padded + r;
      float* const out = b.out + at * b.dv;
      if (task.partial == kNoPartial) {
        const long token = b.span->q_off + task.t0 + r % b.tokens;
        write_row(*b.p, out, b.largest[at], b.sum[at], token, query_head(b, unit, r));
        continue;
      }
      float* const to = b.p->partials + task.partial + (unit * b.rows + r) * (b.dv + 2);
      for (long d = 0; d < b.dv; d += kLanes) store(to + d, load(out + d));
      to[b.dv] = b.largest[at];
      to[b.dv + 1] = b.sum[at];
    }
  }
}

// Runs after finish(). Repeats units whose sums are not finite without AMX tiles, because there a non-finite value
// makes its neighbour NaN. Each unit is repeated as a task of its own: which units share a task depends on the number
// of threads. It overwrites the first unit's memory, which has already been checked.
void repeat_without_tiles(Block& b, const AttentionTask& task) {
  for (long unit = task.u0; unit < task.u1; ++unit) {
    if (sums_are_finite(b, unit - task.u0)) continue;
    AttentionTask one = task;
    one.u0 = unit, one.u1 = unit + 1;
    begin(b, one, InTiles::kRefused);
    attend(b);
    finish(b);
  }
}

void run_worker(void* context, long, float* scratch) {
  const auto& p = *static_cast<const PagedAttentionParams*>(context);
  Block b = block_in(p, scratch);
  configure_tiles();
  for (long i; (i = __atomic_fetch_add(p.next_task, 1, __ATOMIC_RELAXED)) < p.num_tasks;) {
    begin(b, p.tasks[i], InTiles::kAllowed);
    attend(b);
    finish(b);
    if (b.in_tiles) repeat_without_tiles(b, p.tasks[i]);
  }
  release_tiles();
}

// Merges the partial results of one query row into the first and writes the output.
void merge_row(const PagedAttentionParams& p, const AttentionMerge& m, long unit, long r) {
  const long dv = padded(p.v_head_dim), rows = m.num_tokens * p.heads_per_unit;
  const long split_floats = p.num_units * rows * (dv + 2);
  float* const first = p.partials + m.partial + (unit * rows + r) * (dv + 2);
  float largest = -__builtin_inff();
  for (long s = 0; s < m.num_splits; ++s) {
    const float other = first[s * split_floats + dv];
    largest = largest > other ? largest : other;
  }
  float sum = 0;
  for (long s = 0; s < m.num_splits; ++s) {
    const float* const part = first + s * split_floats;
    const float weight = part[dv + 1] == 0 ? 0.0f : exp(Vec{} + (part[dv] - largest))[0];
    sum += weight * part[dv + 1];
    for (long d = 0; d < dv; d += kLanes) {
      store(first + d, s == 0 ? load(part + d) * weight : load(first + d) + load(part + d) * weight);
    }
  }
  const long token = p.spans[m.request].q_off + r % m.num_tokens;
  write_row(p, first, largest, sum, token, unit * p.heads_per_unit + r / m.num_tokens);
}

void merge_unit(void* context, long i) {
  const auto& p = *static_cast<const PagedAttentionParams*>(context);
  const AttentionMerge& m = p.merges[i / p.num_units];
  for (long r = 0; r < m.num_tokens * p.heads_per_unit; ++r) merge_row(p, m, i % p.num_units, r);
}

}  // namespace

void paged_attention(const PagedAttentionParams& params) {
  auto* const context = const_cast<PagedAttentionParams*>(&params);
  const long workers = least(params.threads, params.num_tasks);
  parallel_for_with_scratch(params.threads, workers, params.scratch_floats, run_worker, context);
  headrace::parallel_for(params.threads, params.num_merges * params.num_units, merge_unit, context);
}

}  // namespace headrace::cpu::HR_ISA
