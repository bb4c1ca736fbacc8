#include "conformance/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kLayerId = 3;

RadixAttentionConfig layer_config(const AttentionCase& c) {
  return {.num_heads = c.num_heads,
          .head_dim = c.head_dim,
          .scaling = 1.3f / std::sqrt(static_cast<float>(c.head_dim)),
          .num_kv_heads = c.num_kv_heads,
          .layer_id = kLayerId,
          .logit_cap = c.logit_cap,
          .v_head_dim = c.v_head_dim,
          .sliding_window_size = c.window,
          .is_cross_attention = c.source,
          .attn_type = c.type};
}

int32_t pages_for(int32_t tokens, int32_t page_size) { return (tokens + page_size - 1) / page_size; }

int32_t total_pages(const AttentionCase& c) {
  int32_t pages = 2;
  for (const RequestCase& r : c.requests) {
    pages += pages_for(r.prefix + r.new_tokens, c.page_size) + pages_for(r.encoder_len, c.page_size);
  }
  return pages + 1;
}

int32_t longest(const AttentionCase& c) {
  int32_t tokens = 1;
  for (const RequestCase& r : c.requests) tokens = std::max({tokens, r.prefix + r.new_tokens, r.encoder_len});
  return tokens;
}

// Pages in a shuffled order, so that nothing relies on neighbours.
std::vector<int32_t> take_pages(SlotAllocator& allocator, int32_t count, Random& random) {
  std::vector<int32_t> pages = *allocator.alloc(count);
  for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  return pages;
}

}  // namespace

AttentionProblem::AttentionProblem(const AttentionCase& c, uint64_t seed)
    : case_(c), layer_(layer_config(c)), pages_("kv page", total_pages(c)) {
  Random random(seed);
  const int32_t v_dim = c.v_head_dim.value_or(c.head_dim);
  pool_ = std::make_unique<KVPool>(KVPoolConfig{.groups = {{{c.num_kv_heads, c.head_dim, v_dim}, {kLayerId}}},
                                                .num_pages = total_pages(c),
                                                .page_size = c.page_size,
                                                .dtype = c.pool_dtype});
  const auto rows = static_cast<int32_t>(2 * c.requests.size());
  table_ = std::make_unique<ReqToTokenPool>(rows, longest(c), c.page_size);
  poison(pool_->layer(kLayerId).k);
  poison(pool_->layer(kLayerId).v);
  for (const RequestCase& r : c.requests) add_request(c, r, random);
  const int64_t tokens = batch_.attn.num_tokens();
  q_ = random_tensor(random, c.dtype, {tokens, c.num_heads, c.head_dim});
  k_ = random_tensor(random, c.dtype, {tokens, c.num_kv_heads, c.head_dim});
  v_ = random_tensor(random, c.dtype, {tokens, c.num_kv_heads, v_dim});
  batch_.mode = ForwardMode::kExtend;
  batch_.attn.page_table = table_->page_table();
  batch_.attn.write_slots = TensorView(write_slots_.data(), DType::kI64, {tokens});
  pristine_k_ = copy_of(pool_->layer(kLayerId).k);
  pristine_v_ = copy_of(pool_->layer(kLayerId).v);
}

void AttentionProblem::fill_slot(int64_t slot, Random& random) {
  const KVLayerView kv = pool_->layer(kLayerId);
  for (const TensorView& side : {kv.k, kv.v}) {
    const TensorView page = side.select(slot / case_.page_size);
    for (int64_t h = 0; h < page.dim(0); ++h) {
      const TensorView row = page.select(h).select(slot % case_.page_size);
      for (int64_t d = 0; d < row.dim(0); ++d) set_element(row, d, random.normal());
    }
  }
}

void AttentionProblem::add_request(const AttentionCase& c, const RequestCase& r, Random& random) {
  const int32_t row = *table_->alloc(), encoder_row = *table_->alloc();
  const bool cache_only = r.kind == KeySpan::Kind::kNone;
  const int32_t phys0 = cache_only ? r.prefix - r.new_tokens : r.prefix;
  const int32_t end = phys0 + r.new_tokens;
  table_->write(row, 0, take_pages(pages_, pages_for(std::max(end, r.prefix), c.page_size), random));
  table_->write(encoder_row, 0, take_pages(pages_, pages_for(r.encoder_len, c.page_size), random));
  for (int32_t p = 0; p < r.prefix; ++p) {
    if (p < r.hole_begin || p >= r.hole_end) fill_slot(table_->slot_of(row, p), random);
  }
  for (int32_t p = 0; p < r.encoder_len; ++p) fill_slot(table_->slot_of(encoder_row, p), random);
  const bool in_pool = c.new_keys == AttentionCase::NewKeys::kInPool;
  for (int32_t p = phys0; p < end; ++p) {
    if (in_pool) fill_slot(table_->slot_of(row, p), random);
    write_slots_.push_back(table_->slot_of(row, p));
  }
  batch_.attn.spans.push_back({.q_off = static_cast<int32_t>(batch_.attn.num_tokens()),
                               .q_len = r.new_tokens,
                               .ctx_len = r.prefix,
                               .phys0 = phys0,
                               .log_shift = r.log_shift,
                               .hole_begin = r.hole_begin,
                               .hole_end = r.hole_end,
                               .kind = r.kind,
                               .block_size = r.block_size,
                               .prompt_len = r.prompt_len,
                               .padded_prompt_len = r.padded_prompt_len,
                               .window_from = r.window_from,
                               .page_row = row,
                               .encoder_len = r.encoder_len,
                               .encoder_page_row = encoder_row});
}

AttnInputs AttentionProblem::inputs() const {
  const bool given = case_.new_keys == AttentionCase::NewKeys::kGiven &&
                     case_.source == RadixAttentionConfig::KeySource::kSelf;
  AttnInputs in{.q = q_, .k = given ? k_.view() : TensorView(), .v = given ? v_.view() : TensorView()};
  in.options.save_kv_cache = case_.save;
  return in;
}

void AttentionProblem::restore_pool() {
  const KVLayerView kv = pool_->layer(kLayerId);
  std::memcpy(kv.k.data(), pristine_k_.data(), static_cast<size_t>(pristine_k_.bytes()));
  std::memcpy(kv.v.data(), pristine_v_.data(), static_cast<size_t>(pristine_v_.bytes()));
}

Tensor AttentionProblem::pool_copy() const {
  const KVLayerView kv = pool_->layer(kLayerId);
  Tensor copy(DType::kU8, {kv.k.bytes() + kv.v.bytes()});
  auto* bytes = copy.data_as<uint8_t>();
  std::memcpy(bytes, kv.k.data(), static_cast<size_t>(kv.k.bytes()));
  std::memcpy(bytes + kv.k.bytes(), kv.v.data(), static_cast<size_t>(kv.v.bytes()));
  return copy;
}

AttentionProblem::Result AttentionProblem::run(std::string_view backend, std::optional<std::string> kernel_set,
                                               OpContext context) {
  restore_pool();
  const auto attention = make_backend(
      backend, {}, {.kv_pool = pool_.get(), .context = context, .kernel_set = std::move(kernel_set)});
  batch_.attn_backend = attention.get();
  attention->init_forward_metadata(batch_);
  Result result{Tensor(case_.dtype, {batch_.num_tokens(), case_.num_heads, layer_.v_head_dim()}),
                Tensor(DType::kF32, {batch_.num_tokens(), case_.num_heads})};
  poison(result.out);
  poison(result.lse);
  AttnInputs in = inputs();
  in.options.lse = result.lse;
  attention->forward(layer_, in, batch_, result.out);
  return result;
}

AttentionProblem::Result AttentionProblem::run(AttnImpl impl) {
  restore_pool();
  AttnMetadataSource source;
  source.set_fetch_fn_for_attn_metadata([this]() -> const AttnMetadata& { return batch_.attn; });
  Attention attention({.num_heads = case_.num_heads,
                       .head_dim = case_.head_dim,
                       .scale = layer_.config().scaling,
                       .num_kv_heads = case_.num_kv_heads,
                       .attn_impl = impl,
                       .sliding_window = case_.window},
                      source);
  attention.bind_kv_cache(pool_->layer(kLayerId));
  Result result{Tensor(case_.dtype, {batch_.num_tokens(), case_.num_heads, layer_.v_head_dim()}), {}};
  poison(result.out);
  const AttnInputs in = inputs();
  attention.forward(in.q, in.k, in.v, result.out);
  return result;
}

}  // namespace headrace::testing_support
