#include "conformance/attention_problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "headrace/attention/op_set_backend.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
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
  for (size_t i = pages.size(); i > 1; --i)
    std::swap(pages[i - 1], pages[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  return pages;
}

// [tokens, heads, dim] in columns `at` on, with `gap` elements behind each head.
TensorView heads_in(const Tensor& rows, int64_t at, int64_t heads, int64_t dim, int64_t gap) {
  const TensorView columns = rows.view().narrow(1, at, at + heads * (dim + gap));
  return columns.reshape({rows.dim(0), heads, dim + gap}).narrow(2, 0, dim);
}

constexpr int64_t kHeadGap = 2, kRowGap = 3;  // of fused rows: odd and even addresses both occur

}  // namespace

std::unique_ptr<AttentionBackend> backend_called(std::string_view name, Device device, const BackendConfig& config) {
  if (!std::ranges::count(kCudaSets, name)) return make_backend(name, device, config);
  return std::make_unique<OpSetBackend>(name, *mirrored_cuda_ops(name), *config.kv_pool, config.context);
}

AttentionProblem::AttentionProblem(const AttentionCase& c, uint64_t seed)
    : case_(c), layer_(layer_config(c)), pages_("kv page", total_pages(c)) {
  Random random(seed);
  const int32_t v_dim = c.v_head_dim.value_or(c.head_dim);
  pool_ = std::make_unique<KVPool>(KVPoolConfig{.groups = {{{c.num_kv_heads, c.head_dim, v_dim}, {kLayerId}}},
                                                .num_pages = total_pages(c),
                                                .page_size = c.page_size,
                                                .dtype = c.pool_dtype,
                                                .layout = c.pool_layout,
                                                .scales = {{kLayerId, c.k_scale, c.v_scale}}});
  const auto rows = static_cast<int32_t>(2 * c.requests.size());
  table_ = std::make_unique<ReqToTokenPool>(rows, longest(c), c.page_size);
  poison(pool_->layer(kLayerId).k);
  poison(pool_->layer(kLayerId).v);
  for (const RequestCase& r : c.requests) add_request(c, r, random);
  const int64_t tokens = batch_.attn.num_tokens();
  make_inputs(random);
  batch_.mode = ForwardMode::kExtend;
  batch_.attn.page_table = table_->page_table();
  batch_.attn.write_slots = TensorView(write_slots_.data(), DType::kI64, {tokens});
  if (c.values == AttentionCase::Values::kInfinite) spoil_values();
  pristine_ = pool_copy();
}

void AttentionProblem::make_inputs(Random& random) {
  const int64_t tokens = batch_.attn.num_tokens();
  const bool fused = case_.rows == AttentionCase::Rows::kFused;
  const int64_t gap = fused ? kHeadGap : 0;
  struct Part {
    TensorView* view;
    int64_t heads, dim;
  };
  const std::array<Part, 3> parts = {Part{&q_, case_.num_heads, case_.head_dim},
                                     Part{&k_, case_.num_kv_heads, case_.head_dim},
                                     Part{&v_, case_.num_kv_heads, layer_.v_head_dim()}};
  int64_t width = kRowGap, at = kRowGap;
  for (const Part& part : parts) width += part.heads * (part.dim + gap);
  if (fused) poison(memory_.emplace_back(case_.dtype, Shape{tokens, width}));
  for (const Part& part : parts) {
    const int64_t columns = part.heads * (part.dim + gap);
    if (!fused) memory_.emplace_back(case_.dtype, Shape{tokens, columns});
    *part.view = heads_in(memory_.back(), fused ? at : 0, part.heads, part.dim, gap);
    for (int64_t i = 0; i < part.view->numel(); ++i) set_element(*part.view, i, random.normal());
    at += columns;
  }
}

void AttentionProblem::spoil_values() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto in_pool = [&](int32_t row, int32_t position) {
    const int64_t slot = table_->slot_of(row, position);
    const TensorView page = pool_->layer(kLayerId).v.select(slot / case_.page_size);
    for (int64_t h = 0; h < page.dim(0); ++h) set_element(page.select(h).select(slot % case_.page_size), 0, kInfinity);
  };
  for (const KeySpan& span : batch_.attn.spans) {
    if (span.q_len == 0) continue;
    const TensorView last = v_.select(span.q_off + span.q_len - 1);
    for (int64_t h = 0; h < last.dim(0); ++h) set_element(last.select(h), 0, kInfinity);
    if (case_.new_keys == AttentionCase::NewKeys::kInPool) in_pool(span.page_row, span.phys0 + span.q_len - 1);
    const int32_t first = span.first_cached(0, layer_.window());
    if (case_.window && first < span.ctx_len && span.sees_cached(first)) in_pool(span.page_row, first);
  }
}

void AttentionProblem::fill_slot(int64_t slot, Random& random) {
  const KVLayerView kv = pool_->layer(kLayerId);
  for (const auto& [side, scale] : {std::pair(kv.k, kv.k_scale), std::pair(kv.v, kv.v_scale)}) {
    const TensorView page = side.select(slot / case_.page_size);
    for (int64_t h = 0; h < page.dim(0); ++h) {
      const TensorView row = page.select(h).select(slot % case_.page_size);
      for (int64_t d = 0; d < row.dim(0); ++d) set_element(row, d, random.normal() / static_cast<double>(scale));
    }
  }
}

void AttentionProblem::add_request(const AttentionCase& c, const RequestCase& r, Random& random) {
  const int32_t row = *table_->alloc(), encoder_row = *table_->alloc();
  const bool cache_only = r.kind == KeySpan::Kind::kNone;
  const int32_t phys0 = r.place == RequestCase::Place::kInHole ? r.hole_begin
                        : cache_only                           ? r.prefix - r.new_tokens
                                                               : r.prefix;
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
  const bool given =
      case_.new_keys == AttentionCase::NewKeys::kGiven && case_.source == RadixAttentionConfig::KeySource::kSelf;
  AttnInputs in{.q = q_, .k = given ? k_ : TensorView(), .v = given ? v_ : TensorView()};
  in.options.save_kv_cache = case_.save;
  return in;
}

void AttentionProblem::restore_pool() {
  const KVLayerView kv = pool_->layer(kLayerId);
  const auto* bytes = pristine_.data_as<uint8_t>();
  std::memcpy(kv.k.data(), bytes, static_cast<size_t>(kv.k.bytes()));
  std::memcpy(kv.v.data(), bytes + kv.k.bytes(), static_cast<size_t>(kv.v.bytes()));
}

Tensor AttentionProblem::pool_copy() const {
  const KVLayerView kv = pool_->layer(kLayerId);
  Tensor copy(DType::kU8, {kv.k.bytes() + kv.v.bytes()});
  auto* bytes = copy.data_as<uint8_t>();
  std::memcpy(bytes, kv.k.data(), static_cast<size_t>(kv.k.bytes()));
  std::memcpy(bytes + kv.k.bytes(), kv.v.data(), static_cast<size_t>(kv.v.bytes()));
  return copy;
}

Tensor AttentionProblem::written_by(int64_t tokens, const std::function<void(const TensorView& out)>& run) const {
  const bool fused = case_.rows == AttentionCase::Rows::kFused;
  const int64_t gap = fused ? kHeadGap : 0, dim = layer_.v_head_dim();
  const Tensor memory(case_.dtype, {tokens, case_.num_heads * (dim + gap) + (fused ? kRowGap : 0)});
  poison(memory);
  const TensorView out = heads_in(memory, 0, case_.num_heads, dim, gap);
  run(out);
  Tensor dense = copy_of(out);
  poison(out);
  int64_t written = 0;
  for (int64_t i = 0; i < memory.numel(); ++i) written += std::isnan(element_as_double(memory, i)) ? 0 : 1;
  EXPECT_EQ(written, 0) << "elements beside the rows of out were written";
  return dense;
}

AttentionProblem::Result AttentionProblem::run_batch(ForwardBatch& batch, const AttnInputs& in, BackendConfig config,
                                                     std::string_view backend) {
  restore_pool();
  config.kv_pool = pool_.get();
  const auto attention = backend_called(backend, {}, config);
  batch.attn_backend = attention.get();
  attention->init_forward_metadata(batch);
  Result result{{}, Tensor(DType::kF32, {batch.num_tokens(), case_.num_heads})};
  poison(result.lse);
  AttnInputs with_lse = in;
  with_lse.options.lse = result.lse;
  result.out =
      written_by(batch.num_tokens(), [&](const TensorView& out) { attention->forward(layer_, with_lse, batch, out); });
  return result;
}

AttentionProblem::Result AttentionProblem::run(std::string_view backend, std::optional<std::string> kernel_set,
                                               OpContext context) {
  return run_batch(batch_, inputs(), {.context = context, .kernel_set = std::move(kernel_set)}, backend);
}

Tensor AttentionProblem::run_alone(size_t request, std::string_view backend, std::optional<std::string> kernel_set,
                                   OpContext context) {
  KeySpan span = batch_.attn.spans[request];
  const int64_t begin = span.q_off, end = begin + span.q_len;
  const auto rows = [&](const TensorView& x) { return x ? x.slice(begin, end) : x; };
  span.q_off = 0;
  ForwardBatch batch{.mode = batch_.mode};
  batch.attn = {.spans = {span}, .page_table = batch_.attn.page_table, .write_slots = rows(batch_.attn.write_slots)};
  const AttnInputs all = inputs();
  const AttnInputs in{.q = rows(all.q), .k = rows(all.k), .v = rows(all.v), .options = all.options};
  return std::move(run_batch(batch, in, {.context = context, .kernel_set = std::move(kernel_set)}, backend).out);
}

AttentionProblem::Result AttentionProblem::run(AttnImpl impl) {
  return run_batch(batch_, inputs(), {.attn_impl = impl}, "cpu");
}

}  // namespace headrace::testing_support
