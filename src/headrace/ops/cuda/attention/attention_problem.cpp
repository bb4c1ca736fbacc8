#include "headrace/ops/cuda/attention/attention_problem.h"

#include <algorithm>
#include <bit>

#include "headrace/core/dtype.h"
#include "headrace/ops/checks.h"

namespace headrace::cuda {
namespace {

PagedSide pool_side(const TensorView& x) {
  if (!x) return {};
  return {.data = x.data(),
          .type = x.dtype(),
          .pages = x.dim(0),
          .page_stride = x.stride(0),
          .head_stride = x.stride(1),
          .slot_stride = x.stride(2)};
}

PagedSide new_side(const TensorView& x) {
  if (!x) return {};
  return {.data = x.data(), .type = x.dtype(), .page_stride = x.stride(0), .head_stride = x.stride(1)};
}

}  // namespace

AttentionParams params_of(const PagedAttentionArgs& a) {
  refuse_int8_pool("paged_attention", a.kv);
  return {.q = a.q.data(),
          .out = a.out.data(),
          .q_type = a.q.dtype(),
          .key_type = a.key_dtype(),
          .q_token_stride = a.q.stride(0),
          .q_head_stride = a.q.stride(1),
          .out_token_stride = a.out.stride(0),
          .out_head_stride = a.out.stride(1),
          .k = pool_side(a.kv.k),
          .v = pool_side(a.kv.v),
          .k_new = new_side(a.k_new),
          .v_new = new_side(a.v_new),
          .page_table = static_cast<const int32_t*>(a.page_table.data()),
          .table_stride = a.page_table ? a.page_table.stride(0) : 0,
          .page_size = a.kv ? static_cast<int>(a.kv.page_size()) : 1,
          .page_shift = a.kv ? std::countr_zero(static_cast<unsigned>(a.kv.page_size())) : 0,
          .spans = a.on_device->spans,
          .lse = static_cast<float*>(a.lse.data()),
          .lse_stride = a.lse ? a.lse.stride(0) : 0,
          .requests = static_cast<int>(a.spans.size()),
          .tokens = static_cast<int>(a.q.dim(0)),
          .heads = static_cast<int>(a.q.dim(1)),
          .kv_heads = static_cast<int>(a.num_kv_heads()),
          .head_dim = static_cast<int>(a.q.dim(2)),
          .v_head_dim = static_cast<int>(a.out.dim(2)),
          .scale = a.scale * a.kv.k_scale,
          .cap = a.logit_cap,
          .k_scale = a.kv.k_scale,
          .v_scale = a.kv.v_scale,
          .window = a.window,
          .type = a.type,
          .encoder = a.keys == PagedAttentionArgs::Keys::kEncoder};
}

AttentionShape shape_of(std::span<const KeySpan> spans, int group, Determinism determinism) {
  AttentionShape shape{.determinism = determinism};
  for (const KeySpan& s : spans) {
    const int rows = s.q_len * group;
    shape.requests += rows > 0 ? 1 : 0;
    shape.min_rows = std::min(shape.min_rows, rows);
    shape.max_rows = std::max(shape.max_rows, rows);
    shape.tiles16 += (rows + 15) / 16;
    shape.tiles64 += (rows + 63) / 64;
    shape.tiles128 += (rows + 127) / 128;
    shape.tiles192 += (rows + 191) / 192;
    shape.seen_keys = std::max(shape.seen_keys, s.ctx_len + s.q_len);
  }
  shape.max_keys = shape.seen_keys;
  return shape;
}

namespace {

// Makes the row counts of `shape` hold for any split of the rows: each request may end with a partial tile.
void allow_any_split(AttentionShape& shape, const PagedAttentionArgs& a, int group) {
  const int most = a.on_device->most_rows;
  const int64_t tokens = a.q.dim(0), rows = tokens * group, requests = static_cast<int64_t>(a.spans.size());
  shape.min_rows = group, shape.max_rows = most * group;
  // Assumes half of `most` rows per request. One of the spans belongs to the padding.
  shape.requests = std::clamp<int64_t>(2 * tokens / most, 1, std::max<int64_t>(requests - 1, 1));
  shape.tiles16 = rows / 16 + std::min(requests, tokens), shape.tiles64 = rows / 64 + requests;
  shape.tiles128 = rows / 128 + requests, shape.tiles192 = rows / 192 + requests;
  shape.seen_keys = a.on_device->most_keys;
}

int32_t longest_encoder(std::span<const KeySpan> spans) {
  int32_t keys = 0;
  for (const KeySpan& s : spans) keys = std::max(keys, s.encoder_len);
  return keys;
}

}  // namespace

AttentionShape shape_of(const PagedAttentionArgs& a, Determinism determinism) {
  const int group = static_cast<int>(a.q.dim(1) / a.num_kv_heads());
  AttentionShape shape = shape_of(a.spans, group, determinism);
  int longest = shape.max_rows / group;
  if (a.keys == PagedAttentionArgs::Keys::kEncoder) shape.seen_keys = longest_encoder(a.spans);
  if (a.on_device->most_rows > 0) {
    allow_any_split(shape, a, group);
    longest = a.on_device->most_rows;
  }
  const int64_t pool = a.page_table ? a.page_table.dim(1) * a.kv.page_size() : 0;
  shape.max_keys = static_cast<int>(std::min<int64_t>(pool + longest, INT32_MAX));
  if (shape.seen_keys == 0) shape.seen_keys = shape.max_keys;
  return shape;
}

namespace {

// Returns true if base and strides are multiples of 16 bytes.
bool is_vec16(const PagedSide& side) {
  const int64_t each = 16 / static_cast<int64_t>(size_of(side.type));
  return reinterpret_cast<uintptr_t>(side.data) % 16 == 0 && side.page_stride % each == 0 &&
         side.head_stride % each == 0 && side.slot_stride % each == 0;
}

bool rows_are_multiples(const void* data, int64_t token_stride, int64_t head_stride, int elements) {
  return reinterpret_cast<uintptr_t>(data) % (2 * static_cast<size_t>(elements)) == 0 && token_stride % elements == 0 &&
         head_stride % elements == 0;
}

// Returns true if 32 bits count a side's rows, and the units of 16 bytes between any two of them.
bool is_in_reach(const PagedSide& side, int64_t places, int page_size) {
  constexpr int64_t kMostElements = (int64_t{1} << 36) / 2 / 2;  // of 2 bytes; pages and slots add up
  return side.data == nullptr || (side.page_stride >= 0 && side.slot_stride >= 0 && places <= INT32_MAX / page_size &&
                                  side.page_stride <= kMostElements / std::max<int64_t>(places, 1) &&
                                  side.slot_stride <= kMostElements / page_size);
}

// Returns the layout of a call with 16-bit queries.
AttentionProblem::Layout layout_of(const AttentionParams& p) {
  using enum AttentionProblem::Layout;
  const DType pool_type = p.key_type == DType::kE4M3 ? DType::kE4M3 : p.q_type;
  const auto fits = [](const PagedSide& side, DType type) {
    return side.data == nullptr || (side.type == type && is_vec16(side));
  };
  const bool sides = fits(p.k, pool_type) && fits(p.v, pool_type) && fits(p.k_new, p.q_type) && fits(p.v_new, p.q_type);
  if (!sides || !rows_are_multiples(p.q, p.q_token_stride, p.q_head_stride, 8)) return kAny;
  if (!rows_are_multiples(p.out, p.out_token_stride, p.out_head_stride, 2)) return kAny;
  return rows_are_multiples(p.out, p.out_token_stride, p.out_head_stride, 8) ? kTma : kVec16;
}

}  // namespace

AttentionProblem problem_of(const AttentionParams& p, const AttentionShape& shape) {
  return {.q_dtype = p.q_type,
          .kv_dtype = p.key_type,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .v_head_dim = p.v_head_dim,
          .page_size = p.page_size,
          .window = p.window != kNoWindow,
          .soft_cap = p.cap > 0,
          .encoder = p.encoder,
          .positive_scale = p.scale > 0,
          .layout = layout_of(p),
          .pool = p.k.data != nullptr && p.v.data != nullptr,
          .in_reach = is_in_reach(p.k, p.k.pages, p.page_size) && is_in_reach(p.v, p.v.pages, p.page_size) &&
                      is_in_reach(p.k_new, p.tokens, 1) && is_in_reach(p.v_new, p.tokens, 1),
          .new_tokens = p.k_new.data == nullptr ? 0 : shape.max_rows / (p.heads / p.kv_heads),
          .shape = shape};
}

}  // namespace headrace::cuda
