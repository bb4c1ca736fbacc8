// Copies each new token's K and V rows to its pool slot. Tokens are independent and are divided among tasks.
// Memory-bound: num_tokens * heads * (head_dim + v_head_dim) elements are read and written once.
#include "headrace/ops/cpu/store_kv.h"

#include <string.h>

#include "headrace/core/parallel.h"
#include "headrace/ops/cpu/e4m3.h"
#include "headrace/ops/cpu/int8_row.h"

namespace headrace::cpu::HR_ISA {
namespace {

constexpr long kTokensPerTask = 64, kChunk = 64;

// Rounds a row to FP8, kChunk values at a time.
void store_e4m3(const StoreRows& rows, FloatType type, long from, uint8_t* to) {
  float chunk[kChunk];
  for (long d = 0; d < rows.dim; d += kChunk) {
    const long n = rows.dim - d < kChunk ? rows.dim - d : kChunk;
    load_row(chunk, rows.from, from + d, n, type);
    store_e4m3_row(to + d, chunk, n, rows.scale);
  }
}

// Writes codes and returns their scale. Reads the row twice, kChunk values at a time.
float store_int8(const StoreRows& rows, FloatType type, long from, int8_t* to) {
  float chunk[kChunk];
  int32_t largest = 0;
  for (long d = 0; d < rows.dim; d += kChunk) {
    const long n = rows.dim - d < kChunk ? rows.dim - d : kChunk;
    load_row(chunk, rows.from, from + d, n, type);
    largest = largest_bits(chunk, n, largest);
  }
  const Int8Scale scale = int8_scale(largest);
  for (long d = 0; d < rows.dim; d += kChunk) {
    const long n = rows.dim - d < kChunk ? rows.dim - d : kChunk;
    load_row(chunk, rows.from, from + d, n, type);
    store_int8_row(to + d, chunk, n, scale);
  }
  return scale.scale;
}

void store_row(const StoreRows& rows, const StoreKVParams& p, long token, long slot, long head) {
  const long from = token * rows.from_token_stride + head * rows.from_head_stride;
  const long page = slot / p.page_size, offset = slot % p.page_size;
  const long to = page * rows.page_stride + head * rows.head_stride + offset * rows.slot_stride;
  if (p.from_type == p.pool_type) {
    const long size = p.from_type == FloatType::kF32 ? 4 : 2;
    memcpy(static_cast<char*>(rows.pool) + to * size, static_cast<const char*>(rows.from) + from * size,
           static_cast<unsigned long>(rows.dim * size));
    return;
  }
  if (p.pool_type == FloatType::kE4M3)
    return store_e4m3(rows, p.from_type, from, static_cast<uint8_t*>(rows.pool) + to);
  if (p.pool_type == FloatType::kI8) {
    const TokenScales& s = rows.token_scales;
    s.data[page * s.page_stride + head * s.head_stride + offset * s.slot_stride] =
        store_int8(rows, p.from_type, from, static_cast<int8_t*>(rows.pool) + to);
    return;
  }
  for (long d = 0; d < rows.dim; ++d) {
    store_float(rows.pool, to + d, p.pool_type, load_float(rows.from, from + d, p.from_type));
  }
}

void store_tokens(void* context, long task) {
  const auto& p = *static_cast<const StoreKVParams*>(context);
  const long begin = task * kTokensPerTask;
  const long end = begin + kTokensPerTask < p.num_tokens ? begin + kTokensPerTask : p.num_tokens;
  for (long token = begin; token < end; ++token) {
    const long slot = p.slots[token];
    if (slot < 0) continue;  // kDoNotStore
    for (long head = 0; head < p.num_heads; ++head) {
      store_row(p.k, p, token, slot, head);
      store_row(p.v, p, token, slot, head);
    }
  }
}

}  // namespace

void store_kv(const StoreKVParams& params) {
  const long tasks = (params.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  headrace::parallel_for(params.threads, tasks, store_tokens, const_cast<StoreKVParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
