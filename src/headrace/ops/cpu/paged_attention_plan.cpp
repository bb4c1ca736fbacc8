#include "headrace/ops/cpu/paged_attention_plan.h"

#include <algorithm>

#include "headrace/ops/cpu/params.h"

namespace headrace::cpu {
namespace {

constexpr long kRowsPerBlock = 512;   // query rows that share a packed K and V tile in prefill: Q and O stay in L2
constexpr long kRowsToSplit = 32;     // requests of at most this many rows per KV head are split over their keys
constexpr long kKeysPerSplit = 2048;  // fixed: a row's KV splits depend only on its own length
constexpr long kTasksPerThread = 4;

void require_dense_rows(const char* name, const TensorView& tensor) {
  if (!tensor) return;
  const int last = tensor.rank() - 1;
  HR_REQUIRE(tensor.dim(last) <= 1 || tensor.stride(last) == 1, ErrorCode::kUnsupported, "paged_attention: ", name,
             " has an inner stride of ", tensor.stride(last), ", expected 1");
}

AttentionRows attention_rows_of(const char* name, const TensorView& tensor) {
  if (!tensor) return {};
  require_dense_rows(name, tensor);
  return {.data = tensor.data(),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .type = float_type(tensor)};
}

AttentionPages pages_of(const char* name, const TensorView& tensor, const TensorView& token_scales) {
  if (!tensor) return {};
  require_dense_rows(name, tensor);
  return {.data = tensor.data(),
          .page_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .slot_stride = tensor.stride(2),
          .type = pool_type(tensor),
          .scales = token_scales_of(token_scales)};
}

PagedAttentionParams params_of(const PagedAttentionArgs& a, const OpContext& context) {
  PagedAttentionParams p = {.q = attention_rows_of("q", a.q),
                            .k_new = attention_rows_of("k", a.k_new),
                            .v_new = attention_rows_of("v", a.v_new),
                            .out = attention_rows_of("out", a.out),
                            .k = pages_of("pool k", a.kv.k, a.kv.k_token_scales),
                            .v = pages_of("pool v", a.kv.v, a.kv.v_token_scales)};
  const long group = a.q.dim(1) / a.num_kv_heads();
  p.heads_per_unit = a.grouping == HeadGrouping::kGrouped ? group : 1;
  p.units_per_kv_head = group / p.heads_per_unit;
  p.num_units = a.q.dim(1) / p.heads_per_unit;
  p.head_dim = a.q.dim(2);
  p.v_head_dim = a.out.dim(2);
  p.scale = a.scale * a.kv.k_scale;
  p.k_scale = a.kv.k_scale;
  p.v_scale = a.kv.v_scale;
  p.logit_cap = a.logit_cap;
  const bool encoder = a.keys == PagedAttentionArgs::Keys::kEncoder;
  p.window = encoder ? kNoWindow : a.window;
  p.key_type = a.kv ? p.k.type : p.k_new.type;
  p.any_order = context.determinism == Determinism::kFast;
  p.threads = std::max(1, context.threads);
  if (a.lse) {
    p.lse = static_cast<float*>(a.lse.data());
    p.lse_token_stride = a.lse.stride(0);
    p.lse_head_stride = a.lse.stride(1);
  }
  if (a.page_table) {
    p.page_table = static_cast<const int*>(a.page_table.data());
    p.table_row_stride = a.page_table.stride(0);
    p.table_page_stride = a.page_table.stride(1);
  }
  if (a.kv) p.page_size = a.kv.page_size();
  return p;
}

KeySpan span_of(const PagedAttentionArgs& a, const KeySpan& request) {
  KeySpan span = folded(request, a.type);
  if (a.keys == PagedAttentionArgs::Keys::kEncoder) {
    span = {.q_off = span.q_off,
            .q_len = span.q_len,
            .ctx_len = span.encoder_len,
            .phys0 = span.encoder_len,
            .kind = KeySpan::Kind::kNone,
            .page_row = span.encoder_page_row};
  }
  return span;
}

}  // namespace

PagedAttentionPlan::PagedAttentionPlan(const PagedAttentionArgs& args, const OpContext& context)
    : params_(params_of(args, context)) {
  for (const KeySpan& request : args.spans) spans_.push_back(span_of(args, request));
  const auto requests = static_cast<long>(std::max<size_t>(1, spans_.size()));
  tasks_per_request_ = (kTasksPerThread * params_.threads + requests - 1) / requests;
  for (size_t r = 0; r < spans_.size(); ++r) add_request(static_cast<long>(r), context);
  finish();
}

void PagedAttentionPlan::add_request(long request, const OpContext& context) {
  const KeySpan& span = spans_[static_cast<size_t>(request)];
  const long tokens = span.q_len;
  const long keys = std::max<long>(span.ctx_len, span.phys0) + tokens;
  const bool few_rows = tokens * params_.heads_per_unit <= kRowsToSplit;
  if (few_rows && context.determinism == Determinism::kFast && keys > kKeysPerSplit) {
    add_split_request(request, keys);
    return;
  }
  // Longest keys first, so that the last task to finish is a short one.
  const long block = std::max(1L, kRowsPerBlock / params_.heads_per_unit);
  for (long t1 = tokens; t1 > 0; t1 -= std::min(t1, (t1 - 1) % block + 1)) {
    const long t0 = (t1 - 1) / block * block;
    const AttentionTask task = {.request = request,
                                .t0 = t0,
                                .t1 = t1,
                                .u0 = 0,
                                .u1 = params_.num_units,
                                .k0 = 0,
                                .k1 = keys,
                                .partial = kNoPartial};
    add_tasks(task, /*splits=*/1);
  }
}

void PagedAttentionPlan::add_split_request(long request, long keys) {
  const long tokens = spans_[static_cast<size_t>(request)].q_len;
  if (tokens == 0) return;
  const long floats = params_.num_units * tokens * params_.heads_per_unit * (padded(params_.v_head_dim) + 2);
  const long splits = (keys + kKeysPerSplit - 1) / kKeysPerSplit;
  merges_.push_back({.request = request, .num_tokens = tokens, .partial = partial_floats_, .num_splits = splits});
  for (long s = 0; s < splits; ++s, partial_floats_ += floats) {
    add_tasks({.request = request,
               .t0 = 0,
               .t1 = tokens,
               .u0 = 0,
               .u1 = params_.num_units,
               .k0 = s * kKeysPerSplit,
               .k1 = std::min(keys, (s + 1) * kKeysPerSplit),
               .partial = partial_floats_},
              splits);
  }
}

// Prefill blocks take one unit per task, to keep their scratch memory small. Requests of few rows take as many units
// per task as leave enough tasks, so that a page is read completely before the next one.
void PagedAttentionPlan::add_tasks(AttentionTask task, long splits) {
  const long rows = (task.t1 - task.t0) * params_.heads_per_unit, units = task.u1;
  const long pieces = (tasks_per_request_ + splits - 1) / splits;
  const long step = rows <= kRowsToSplit ? std::max(1L, units / pieces) : 1;
  for (long u = 0; u < units; u += step) {
    task.u0 = u;
    task.u1 = std::min(units, u + step);
    params_.max_units = std::max(params_.max_units, task.u1 - task.u0);
    tasks_.push_back(task);
  }
  params_.max_rows = std::max(params_.max_rows, rows);
}

void PagedAttentionPlan::finish() {
  partials_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(partial_floats_));
  PagedAttentionParams& p = params_;
  p.spans = spans_.data();
  p.tasks = tasks_.data();
  p.num_tasks = static_cast<long>(tasks_.size());
  p.next_task = &next_task_;
  p.merges = merges_.data();
  p.num_merges = static_cast<long>(merges_.size());
  p.partials = partials_.get();
  const long rows = padded(p.max_rows), d = padded(p.head_dim), dv = padded(p.v_head_dim);
  const long per_unit = rows * (d + dv + 2);
  // Scores and their bf16 copy, K and V packed, K and V staged, a row of zeros, a row, scales of K and V.
  const long per_tile = kScoreRows * kKeyTile * 2 + 2 * kKeyTile * (d + dv) + 2 * (d + dv) + 2 * kKeyTile;
  const long reach = rows * static_cast<long>(12);  // a Reach per token
  p.scratch_floats = p.max_units * per_unit + per_tile + reach;
}

}  // namespace headrace::cpu
