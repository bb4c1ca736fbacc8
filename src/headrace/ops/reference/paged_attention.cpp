// Reference of paged_attention: one query row at a time, sums in double, no tiling. Keep it simple, not fast.
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "headrace/ops/reference/int8_row.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

// A key visible to a row: in the pool, or a new key of the batch.
struct Key {
  int64_t page = -1, offset = 0;  // in the pool if page >= 0
  int64_t token = 0;              // else the token of k_new and v_new
};

Key pool_key(const PagedAttentionArgs& a, int64_t page_row, int64_t position) {
  const auto table = a.page_table.as<const int32_t, 2>("page_table");
  return {.page = table(page_row, position / a.kv.page_size()), .offset = position % a.kv.page_size()};
}

std::vector<Key> visible_keys(const PagedAttentionArgs& a, const KeySpan& span, int32_t row) {
  std::vector<Key> keys;
  if (a.keys == PagedAttentionArgs::Keys::kEncoder) {
    for (int32_t j = 0; j < span.encoder_len; ++j) keys.push_back(pool_key(a, span.encoder_page_row, j));
    return keys;
  }
  for (int32_t j = span.first_cached(row, a.window); j < span.ctx_len; ++j) {
    if (span.sees_cached(j)) keys.push_back(pool_key(a, span.page_row, j));
  }
  for (int32_t j = span.first_new(row, a.window); j < span.new_keys(row); ++j) {
    keys.push_back(a.k_new ? Key{.token = span.q_off + j} : pool_key(a, span.page_row, span.phys0 + j));
  }
  return keys;
}

// K or V: of the pool, and new rows.
struct Side {
  const TensorView &pool, &fresh;
  double scale;
  const TensorView& token_scales;
  DType dtype;
};

Side keys_of(const PagedAttentionArgs& a) {
  return {a.kv.k, a.k_new, a.kv.k_scale, a.kv.k_token_scales, a.key_dtype()};
}
Side values_of(const PagedAttentionArgs& a) {
  return {a.kv.v, a.v_new, a.kv.v_scale, a.kv.v_token_scales, a.key_dtype()};
}

// Returns one head's row of a key or value, as stored in the pool and read back.
std::vector<double> stored_row(const Side& side, const Key& key, int64_t head) {
  const bool in_pool = key.page >= 0, int8 = side.dtype == DType::kI8;
  std::vector<double> row(static_cast<size_t>(in_pool ? side.pool.dim(3) : side.fresh.dim(2)));
  std::optional<Int8Row> fresh;
  if (int8 && !in_pool) fresh.emplace(side.fresh, key.token, head);
  const double scale = !int8     ? side.scale
                       : in_pool ? get(side.token_scales, key.page, head, key.offset)
                                 : static_cast<double>(fresh->scale);
  for (int64_t d = 0; d < std::ssize(row); ++d) {
    double& x = row[static_cast<size_t>(d)];
    x = in_pool ? get(side.pool, key.page, head, key.offset, d) : get(side.fresh, key.token, head, d);
    if (!in_pool) x = int8 ? fresh->code(x) : rounded_to(side.dtype, x / scale);
    x *= scale;
  }
  return row;
}

// Computes one output row and returns its log-sum-exp.
double attend(const PagedAttentionArgs& a, const std::vector<Key>& keys, int64_t token, int64_t head) {
  const int64_t kv_head = head / (a.q.dim(1) / a.num_kv_heads());
  std::vector<double> scores;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const Key& key : keys) {
    double score = 0;
    const std::vector<double> row = stored_row(keys_of(a), key, kv_head);
    for (int64_t d = 0; d < a.q.dim(2); ++d) score += get(a.q, token, head, d) * row[static_cast<size_t>(d)];
    score *= static_cast<double>(a.scale);
    if (a.logit_cap > 0) score = static_cast<double>(a.logit_cap) * std::tanh(score / static_cast<double>(a.logit_cap));
    scores.push_back(score);
    largest = std::max(largest, score);
  }
  for (double& score : scores) sum += (score = std::exp(score - largest));
  std::vector<double> totals(static_cast<size_t>(a.out.dim(2)));
  for (size_t j = 0; j < keys.size(); ++j) {
    const std::vector<double> row = stored_row(values_of(a), keys[j], kv_head);
    for (size_t d = 0; d < totals.size(); ++d) totals[d] += scores[j] * row[d];
  }
  for (int64_t d = 0; d < a.out.dim(2); ++d) {
    set(a.out, keys.empty() ? 0 : totals[static_cast<size_t>(d)] / sum, token, head, d);
  }
  return keys.empty() ? -std::numeric_limits<double>::infinity() : largest + std::log(sum);
}

}  // namespace

void paged_attention_row(const PagedAttentionArgs& a, size_t request, int32_t row, int64_t head) {
  const KeySpan span = folded(a.spans[request], a.type);
  const double lse = attend(a, visible_keys(a, span, row), span.q_off + row, head);
  if (a.lse) set(a.lse, lse, span.q_off + row, head);
}

void paged_attention(const PagedAttentionArgs& a, const OpContext&) {
  check(a);
  for (size_t request = 0; request < a.spans.size(); ++request) {
    for (int32_t row = 0; row < a.spans[request].q_len; ++row) {
      for (int64_t head = 0; head < a.q.dim(1); ++head) paged_attention_row(a, request, row, head);
    }
  }
}

}  // namespace headrace::reference
