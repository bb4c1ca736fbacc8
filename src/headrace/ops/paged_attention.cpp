#include "headrace/ops/paged_attention.h"

#include <algorithm>

#include "headrace/ops/checks.h"

namespace headrace {
namespace {

void check_keys(const PagedAttentionArgs& a) {
  const int64_t tokens = a.q.dim(0);
  HR_REQUIRE(a.k_new || a.kv, ErrorCode::kInvalidArgument, "paged_attention: neither new keys nor a pool is given");
  HR_REQUIRE(static_cast<bool>(a.k_new) == static_cast<bool>(a.v_new), ErrorCode::kInvalidArgument,
             "paged_attention: ", a.k_new ? "k is given without v" : "v is given without k");
  const int64_t v_head_dim = a.kv ? a.kv.v_head_dim() : a.v_new.dim(2);
  if (a.k_new) {
    check_shape("paged_attention: k", a.k_new, {tokens, a.num_kv_heads(), a.q.dim(2)});
    check_shape("paged_attention: v", a.v_new, {tokens, a.num_kv_heads(), v_head_dim});
    check_float("paged_attention: k", a.k_new);
    check_dtype("paged_attention: v", a.v_new, a.k_new.dtype());
  }
  if (a.kv) {
    HR_REQUIRE(a.kv.head_dim() == a.q.dim(2), ErrorCode::kInvalidArgument, "paged_attention: q has head_dim ",
               a.q.dim(2), ", the pool has ", a.kv.head_dim());
    check_kv_layer("paged_attention", a.kv);
    check_rows_contiguous("paged_attention: pool k", a.kv.k);
    check_rows_contiguous("paged_attention: pool v", a.kv.v);
  }
  check_shape("paged_attention: out", a.out, {tokens, a.q.dim(1), v_head_dim});
}

void check_span(const PagedAttentionArgs& a, const KeySpan& folded_span, size_t request) {
  const KeySpan& s = folded_span;
  const bool encoder = a.keys == PagedAttentionArgs::Keys::kEncoder;
  const int64_t from_pool = encoder   ? s.encoder_len
                            : a.k_new ? s.ctx_len
                                      : std::max(s.ctx_len, s.kind == KeySpan::Kind::kNone ? 0 : s.phys0 + s.q_len);
  const int64_t row = encoder ? s.encoder_page_row : s.page_row;
  HR_REQUIRE(s.q_off >= 0 && s.q_len >= 0 && s.q_off + int64_t{s.q_len} <= a.q.dim(0), ErrorCode::kInvalidArgument,
             "paged_attention: request ", request, " has rows [", s.q_off, ", ", s.q_off + s.q_len, ") of ",
             a.q.dim(0));
  if (from_pool <= 0) return;
  HR_REQUIRE(a.kv, ErrorCode::kInvalidArgument, "paged_attention: request ", request, " reads ", from_pool,
             " cached keys, but no pool is given");
  const int64_t pages = (from_pool + a.kv.page_size() - 1) / a.kv.page_size();
  HR_REQUIRE(a.page_table && row >= 0 && row < a.page_table.dim(0) && pages <= a.page_table.dim(1),
             ErrorCode::kInvalidArgument, "paged_attention: request ", request, " needs ", pages, " pages of row ", row,
             ", the page table is ", a.page_table.shape());
}

}  // namespace

void check(const PagedAttentionArgs& a) {
  check_rank("paged_attention: q", a.q, 3);
  check_float("paged_attention: q", a.q);
  check_rows_contiguous("paged_attention: q", a.q);
  check_keys(a);
  check_dtype("paged_attention: out", a.out, a.q.dtype());
  HR_REQUIRE(a.num_kv_heads() > 0 && a.q.dim(1) % a.num_kv_heads() == 0, ErrorCode::kInvalidArgument,
             "paged_attention: ", a.q.dim(1), " query heads are not a multiple of ", a.num_kv_heads(), " kv heads");
  HR_REQUIRE(a.window > 0, ErrorCode::kInvalidArgument, "paged_attention: window is ", a.window,
             ", expected 1 or more (it counts the query's own key)");
  HR_REQUIRE(a.logit_cap >= 0, ErrorCode::kInvalidArgument, "paged_attention: logit_cap is ", a.logit_cap,
             ", expected 0 (none) or more");
  if (a.lse) {
    check_shape("paged_attention: lse", a.lse, {a.q.dim(0), a.q.dim(1)});
    check_dtype("paged_attention: lse", a.lse, DType::kF32);
  }
  if (a.page_table) {
    check_rank("paged_attention: page_table", a.page_table, 2);
    check_dtype("paged_attention: page_table", a.page_table, DType::kI32);
  }
  for (size_t r = 0; r < a.spans.size(); ++r) check_span(a, folded(a.spans[r], a.type), r);
}

}  // namespace headrace
