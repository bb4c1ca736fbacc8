// paged_attention and store_kv.
#include <nanobind/stl/optional.h>

#include <bit>
#include <cmath>
#include <optional>
#include <tuple>

#include "headrace/core/error.h"
#include "headrace/ops/paged_attention.h"
#include "headrace/ops/store_kv.h"
#include "op_requests.h"
#include "ops.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

// Numbers are of a pool of float8_e4m3fn, token scales of a pool of int8.
struct PoolArguments {
  nb::handle k_cache, v_cache, k_token_scales, v_token_scales;
  float k_scale = 1, v_scale = 1;
};

void check_scales(const OpCall& call, const KVLayerView& kv) {
  const bool fp8 = kv.k.dtype() == DType::kE4M3, int8 = kv.k.dtype() == DType::kI8;
  for (const auto& [name, scale, tokens] :
       {std::tuple("k_scale", kv.k_scale, kv.k_token_scales), std::tuple("v_scale", kv.v_scale, kv.v_token_scales)}) {
    HR_REQUIRE(int8 == static_cast<bool>(tokens), ErrorCode::kInvalidArgument, call.op(), ": ", name, " is a ",
               tokens ? "tensor" : "number", ", expected for a pool of ", name_of(kv.k.dtype()), " a ",
               int8 ? "float32 tensor [pages, kv_heads, page_size]" : "number");
    HR_REQUIRE(fp8 ? std::isfinite(scale) && scale > 0 : scale == 1, ErrorCode::kInvalidArgument, call.op(), ": ", name,
               " is ", scale, ", expected ",
               fp8 ? "a positive number" : str("1 for a pool of ", name_of(kv.k.dtype())));
    call.expect_shape(name, tokens, {kv.num_pages(), kv.num_kv_heads(), kv.page_size()});
  }
}

KVLayerView pool_of(OpCall& call, const PoolArguments& given, Access access) {
  const auto take = [&](nb::handle tensor, const char* name, DTypes dtypes, int rank) {
    if (tensor.is_none()) return TensorView();
    return access == Access::kWrite ? call.write(tensor, name, dtypes, rank) : call.read(tensor, name, dtypes, rank);
  };
  KVLayerView kv{.k = take(given.k_cache, "k_cache", DTypes::kPool, 4),
                 .v = take(given.v_cache, "v_cache", DTypes::kPool, 4),
                 .k_scale = given.k_scale,
                 .v_scale = given.v_scale,
                 .k_token_scales = take(given.k_token_scales, "k_scale", DTypes::kF32, 3),
                 .v_token_scales = take(given.v_token_scales, "v_scale", DTypes::kF32, 3)};
  call.expect_shape("k_cache", kv.k, {kAnySize, kAnySize, kAnySize, kAnySize});
  call.expect_shape("v_cache", kv.v, {kv.num_pages(), kv.num_kv_heads(), kv.page_size(), kAnySize});
  call.expect_dtype("v_cache", kv.v, kv.k.dtype());
  HR_REQUIRE(kv.page_size() > 0, ErrorCode::kInvalidArgument, call.op(), ": k_cache: shape is ", kv.k.shape(),
             ", expected pages of 1 token or more");
  check_scales(call, kv);
  return kv;
}

// Kernels read these pages of the host's table without a look at their numbers.
void check_pages(const OpCall& call, const PagedAttentionArgs& a, size_t request, int64_t row, int64_t begin,
                 int64_t end) {
  if (end <= begin) return;
  const int64_t page_size = a.kv.page_size(), first = begin / page_size, last = (end + page_size - 1) / page_size;
  HR_REQUIRE(a.page_table && row >= 0 && row < a.page_table.dim(0) && last <= a.page_table.dim(1),
             ErrorCode::kInvalidArgument, call.op(), ": request ", request, " needs ", last, " pages of row ", row,
             ", page_table is ", a.page_table ? str(a.page_table.shape()) : "None");
  const auto table = a.page_table.as<const int32_t, 2>("page_table");
  const int64_t pages = a.kv.num_pages();
  for (int64_t i = first; i < last; ++i) {
    HR_REQUIRE(table(row, i) >= 0 && table(row, i) < pages, ErrorCode::kInvalidArgument, call.op(), ": page_table: [",
               row, ", ", i, "] is ", table(row, i), ", expected 0 to ", pages - 1, ", the pages of k_cache");
  }
}

void check_pages(const OpCall& call, const PagedAttentionArgs& a) {
  for (size_t r = 0; r < a.spans.size(); ++r) {
    const KeySpan span = folded(a.spans[r], a.type);
    const bool encoder = a.keys == PagedAttentionArgs::Keys::kEncoder;
    const int64_t cached = encoder ? span.encoder_len : span.ctx_len;
    const bool reads_new = !encoder && !a.k_new && span.kind != KeySpan::Kind::kNone;
    HR_REQUIRE(a.kv || (cached == 0 && !reads_new), ErrorCode::kInvalidArgument, call.op(), ": request ", r, " reads ",
               cached, " cached keys, expected k_cache and v_cache");
    check_pages(call, a, r, encoder ? span.encoder_page_row : span.page_row, 0, cached);
    if (reads_new) check_pages(call, a, r, span.page_row, span.phys0, int64_t{span.phys0} + span.q_len);
  }
}

// Reads what the op's tensors are; q comes first.
PagedAttentionArgs tensors_of(OpCall& call, nb::handle q, const PoolArguments& pool, nb::handle page_table,
                              nb::handle k_new, nb::handle v_new, nb::handle out, nb::handle lse) {
  PagedAttentionArgs a{.q = call.read(q, "q", DTypes::kFloat, 3)};
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1), dim = a.q.dim(2);
  call.expect_shape("q", a.q, {tokens, heads, dim});
  HR_REQUIRE(pool.k_cache.is_none() == pool.v_cache.is_none(), ErrorCode::kInvalidArgument, call.op(),
             ": one of k_cache and v_cache is None, expected both or neither");
  HR_REQUIRE(k_new.is_none() == v_new.is_none(), ErrorCode::kInvalidArgument, call.op(),
             ": one of k_new and v_new is None, expected both or neither");
  HR_REQUIRE(!pool.k_cache.is_none() || !k_new.is_none(), ErrorCode::kInvalidArgument, call.op(),
             ": neither k_cache nor k_new is given, expected one of them");
  if (!pool.k_cache.is_none()) a.kv = pool_of(call, pool, Access::kRead);
  call.expect_shape("k_cache", a.kv.k, {kAnySize, kAnySize, kAnySize, dim});
  a.k_new = call.read_if(k_new, "k_new", DTypes::kFloat, 3);
  a.v_new = call.read_if(v_new, "v_new", DTypes::kFloat, 3);
  const int64_t kv_heads = a.num_kv_heads(), v_dim = a.kv ? a.kv.v_head_dim() : a.v_new.dim(2);
  call.expect_shape("k_new", a.k_new, {tokens, kv_heads, dim});
  call.expect_shape("v_new", a.v_new, {tokens, kv_heads, v_dim});
  call.expect_dtype("v_new", a.v_new, a.k_new.dtype());
  HR_REQUIRE(kv_heads > 0 && heads % kv_heads == 0, ErrorCode::kInvalidArgument, call.op(), ": q has ", heads,
             " heads, expected a multiple of the ", kv_heads, " heads of ", a.kv ? "k_cache" : "k_new");
  a.page_table = call.read_if(page_table, "page_table", DTypes::kI32, 2);
  a.out = call.write(out, "out", DTypes::kFloat, 3);
  call.expect_shape("out", a.out, {tokens, heads, v_dim});
  call.expect_dtype("out", a.out, a.q.dtype());
  a.lse = call.write_if(lse, "lse", DTypes::kF32, 2);
  call.expect_shape("lse", a.lse, {tokens, heads});
  return a;
}

// The GPU's kernels find a token's page by a shift. Its page table is not looked at.
void check_device_pool(const OpCall& call, const PagedAttentionArgs& a) {
  const auto is_power = [](int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); };
  HR_REQUIRE(!a.kv || is_power(a.kv.page_size()), ErrorCode::kUnsupported, call.op(), ": k_cache has pages of ",
             a.kv.page_size(), " tokens, expected a power of two on a GPU");
  call.expect_shape("page_table", a.page_table, {kAnySize, kAnySize});
}

SpanBounds bounds_of(const PagedAttentionArgs& a, int max_q_len, int max_kv_len, int keys) {
  if (max_q_len == 0 || max_kv_len == 0) return {};
  const int64_t pool_len = a.kv && a.page_table ? a.page_table.dim(1) * a.kv.page_size() : 0;
  return {.max_q_len = max_q_len, .max_kv_len = max_kv_len, .pool_len = pool_len, .encoder = keys != 0};
}

void paged_attention(nb::handle q, nb::handle k_cache, nb::handle v_cache, nb::handle page_table, nb::handle spans,
                     nb::handle k_new, nb::handle v_new, nb::handle k_token_scales, nb::handle v_token_scales,
                     nb::handle out, nb::handle lse, std::optional<float> scale, float logit_cap, int window, int type,
                     int keys, bool grouped, float k_scale, float v_scale, int max_q_len, int max_kv_len, bool strict) {
  OpCall call("paged_attention", strict ? Determinism::kStrict : Determinism::kFast);
  PagedAttentionArgs args = tensors_of(call, q, {k_cache, v_cache, k_token_scales, v_token_scales, k_scale, v_scale},
                                       page_table, k_new, v_new, out, lse);
  const OpRequests requests(call, spans, args.q.dim(0), bounds_of(args, max_q_len, max_kv_len, keys));
  args.spans = requests.spans(), args.on_device = requests.on_device();
  args.scale = scale.value_or(1 / std::sqrt(static_cast<float>(args.q.dim(2))));
  args.logit_cap = logit_cap, args.window = window;
  for (const auto& [name, value] : {std::pair("scale", args.scale), std::pair("logit_cap", logit_cap)}) {
    HR_REQUIRE(std::isfinite(value), ErrorCode::kInvalidArgument, call.op(), ": ", name, " is ", value,
               ", expected a finite number");
  }
  args.type = static_cast<AttentionType>(type), args.keys = static_cast<PagedAttentionArgs::Keys>(keys);
  args.grouping = grouped ? HeadGrouping::kGrouped : HeadGrouping::kPerHead;
  call.device().type == DeviceType::kCPU ? check_pages(call, args) : check_device_pool(call, args);
  call.run(&OpSet::paged_attention, args);
}

void store_kv(nb::handle k, nb::handle v, nb::handle slots, nb::handle k_cache, nb::handle v_cache,
              nb::handle k_token_scales, nb::handle v_token_scales, float k_scale, float v_scale) {
  OpCall call("store_kv");
  StoreKVArgs args{
      .k = call.read(k, "k", DTypes::kFloat, 3),
      .v = call.read(v, "v", DTypes::kFloat, 3),
      .slots = call.read(slots, "slots", DTypes::kI64, 1),
      .kv = pool_of(call, {k_cache, v_cache, k_token_scales, v_token_scales, k_scale, v_scale}, Access::kWrite)};
  const int64_t tokens = args.k.dim(0);
  call.expect_shape("k", args.k, {tokens, args.kv.num_kv_heads(), args.kv.head_dim()});
  call.expect_shape("v", args.v, {tokens, args.kv.num_kv_heads(), args.kv.v_head_dim()});
  call.expect_dtype("v", args.v, args.k.dtype());
  call.expect_shape("slots", args.slots, {tokens});
  call.run(&OpSet::store_kv, args);
}

}  // namespace

void add_attention_ops(nb::module_& module) {
  using namespace nb::literals;
  module.def("paged_attention", paged_attention, "q"_a.none(), "k_cache"_a.none(), "v_cache"_a.none(),
             "page_table"_a.none(), "spans"_a.none(), "k_new"_a.none(), "v_new"_a.none(), "k_token_scales"_a.none(),
             "v_token_scales"_a.none(), "out"_a.none(), "lse"_a.none(), "scale"_a.none(), "logit_cap"_a, "window"_a,
             "type"_a, "keys"_a, "grouped"_a, "k_scale"_a, "v_scale"_a, "max_q_len"_a, "max_kv_len"_a, "strict"_a);
  module.def("store_kv", store_kv, "k"_a.none(), "v"_a.none(), "slots"_a.none(), "k_cache"_a.none(), "v_cache"_a.none(),
             "k_token_scales"_a.none(), "v_token_scales"_a.none(), "k_scale"_a, "v_scale"_a);
}

}  // namespace headrace::python
