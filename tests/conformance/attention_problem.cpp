#include "conformance/attention_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
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

int32_t first_new(const RequestCase& r) {
  if (r.place == RequestCase::Place::kInHole) return r.hole_begin;
  return r.kind == KeySpan::Kind::kNone ? r.prefix - r.new_tokens : r.prefix + r.gap;
}

// Positions that have a page.
int32_t tokens_of(const RequestCase& r) { return std::max(r.prefix, first_new(r) + r.new_tokens); }

int32_t total_pages(const AttentionCase& c) {
  int32_t pages = 2;  // at least one stays unused
  for (const RequestCase& r : c.requests) {
    pages += pages_for(tokens_of(r), c.page_size) + pages_for(r.encoder_len, c.page_size);
  }
  return pages + 1;
}

int32_t longest(const AttentionCase& c) {
  int32_t tokens = 1;
  for (const RequestCase& r : c.requests) tokens = std::max({tokens, tokens_of(r), r.encoder_len});
  return tokens;
}

// Pages in a shuffled order, so that nothing relies on neighbours.
std::vector<int32_t> take_pages(SlotAllocator& allocator, int32_t count, Random& random) {
  std::vector<int32_t> pages = *allocator.alloc(count);
  for (size_t i = pages.size(); i > 1; --i)
    std::swap(pages[i - 1], pages[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  return pages;
}

double unread_number(const AttentionCase& c) {
  using Unread = AttentionCase::Unread;
  if (c.unread == Unread::kNaN) return std::numeric_limits<double>::quiet_NaN();
  const bool infinite = c.unread == Unread::kInfinite && c.pool_dtype != DType::kE4M3;
  if (infinite) return std::numeric_limits<double>::infinity();
  return c.pool_dtype == DType::kE4M3 ? 448 : c.pool_dtype == DType::kF16 ? 6e4 : 1e38;
}

// [tokens, heads, dim] in columns `at` on, with `gap` elements behind each head.
TensorView heads_in(const Tensor& rows, int64_t at, int64_t heads, int64_t dim, int64_t gap) {
  const TensorView columns = rows.view().narrow(1, at, at + heads * (dim + gap));
  return columns.reshape({rows.dim(0), heads, dim + gap}).narrow(2, 0, dim);
}

// Elements behind a head and in front of a row: of fused rows odd and even addresses both occur.
struct Gaps {
  int64_t head = 0, row = 0;
};

Gaps gaps_of(const AttentionCase& c) {
  switch (c.rows) {
    case AttentionCase::Rows::kDense: return {};
    case AttentionCase::Rows::kFused: return {2, 3};
    case AttentionCase::Rows::kFusedAligned: return {8, 16};
  }
  return {};
}

}  // namespace

AttentionProblem::AttentionProblem(const AttentionCase& c, uint64_t seed)
    : case_(c), page_order_(seed ^ ~c.page_order), layer_(layer_config(c)), pages_("kv page", total_pages(c)) {
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
  fill_unread();
  make_numbers(random);
  for (const RequestCase& r : c.requests) add_request(c, r, random);
  if (c.padding_rows > 0) add_padding();
  const int64_t tokens = batch_.attn.num_tokens();
  make_inputs(random);
  batch_.mode = ForwardMode::kExtend;
  batch_.attn.page_table = table_->page_table();
  batch_.attn.write_slots = TensorView(write_slots_.data(), DType::kI64, {tokens});
  if (c.values == AttentionCase::Values::kInfinite) spoil_values();
  pristine_ = pool_copy();
}

std::vector<TensorView> AttentionProblem::pool_sides() const {
  const KVLayerView kv = pool_->layer(kLayerId);
  if (case_.pool_dtype != DType::kI8) return {kv.k, kv.v};
  return {kv.k, kv.v, kv.k_token_scales, kv.v_token_scales};
}

void AttentionProblem::fill_unread() {
  for (const TensorView& side : pool_sides()) {
    const double number = side.dtype() == DType::kI8 ? 127 : unread_number(case_);
    const TensorView first(side.data(), side.dtype(), {1});  // the pool's memory is dense in either order
    set_element(first, 0, number);
    auto* bytes = static_cast<std::byte*>(side.data());
    for (int64_t done = first.bytes(); done < side.bytes(); done *= 2)
      std::memcpy(bytes + done, bytes, static_cast<size_t>(std::min(done, side.bytes() - done)));
  }
}

void AttentionProblem::make_inputs(Random& random) {
  const int64_t tokens = batch_.attn.num_tokens();
  const bool fused = case_.rows != AttentionCase::Rows::kDense;
  const auto [gap, row_gap] = gaps_of(case_);
  struct Input {
    TensorView* view;
    int64_t heads, dim;
  };
  const std::array<Input, 3> parts = {Input{&q_, case_.num_heads, case_.head_dim},
                                      Input{&k_, case_.num_kv_heads, case_.head_dim},
                                      Input{&v_, case_.num_kv_heads, layer_.v_head_dim()}};
  int64_t width = row_gap, at = row_gap;
  for (const Input& part : parts) width += part.heads * (part.dim + gap);
  if (fused) poison(memory_.emplace_back(case_.dtype, Shape{tokens, width}));
  for (const Input& part : parts) {
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
    if (span.q_len == 0 || span.page_row == 0) continue;  // of padding
    const TensorView last = v_.select(span.q_off + span.q_len - 1);
    for (int64_t h = 0; h < last.dim(0); ++h) set_element(last.select(h), 0, kInfinity);
    if (case_.new_keys == AttentionCase::NewKeys::kInPool) in_pool(span.page_row, span.phys0 + span.q_len - 1);
    const int32_t first = span.first_cached(0, layer_.window());
    if (case_.window && first < span.ctx_len && span.sees_cached(first)) in_pool(span.page_row, first);
  }
}

void AttentionProblem::make_numbers(Random& random) {
  constexpr int64_t kNumbers = 8192;
  const KVLayerView kv = pool_->layer(kLayerId);
  for (const auto& [numbers, dim, scale] :
       {std::tuple(&k_numbers_, kv.head_dim(), kv.k_scale), std::tuple(&v_numbers_, kv.v_head_dim(), kv.v_scale)}) {
    if (kv.k.dtype() == DType::kI8) {
      *numbers = Tensor(DType::kI8, {kNumbers + dim});
      for (int64_t i = 0; i < numbers->numel(); ++i) set_element(*numbers, i, between(random, -127, 127));
      continue;
    }
    *numbers = random_tensor(random, kv.k.dtype(), {kNumbers + dim}, 1 / static_cast<double>(scale));
  }
}

void AttentionProblem::fill_slot(int64_t slot, Random& random) {
  const KVLayerView kv = pool_->layer(kLayerId);
  for (const auto& [side, numbers] : {std::pair(kv.k, &k_numbers_), std::pair(kv.v, &v_numbers_)}) {
    const TensorView page = side.select(slot / case_.page_size);
    for (int64_t h = 0; h < page.dim(0); ++h) {
      const TensorView row = page.select(h).select(slot % case_.page_size);
      const int64_t from = random.below(numbers->numel() - row.dim(0));
      std::memcpy(row.data(), numbers->view().slice(from, from + row.dim(0)).data(), static_cast<size_t>(row.bytes()));
    }
  }
  if (case_.pool_dtype != DType::kI8) return;
  for (const TensorView& scales : {kv.k_token_scales, kv.v_token_scales}) {  // so that numbers are up to 0.1 to 3
    const TensorView page = scales.select(slot / case_.page_size);
    for (int64_t h = 0; h < page.dim(0); ++h) {
      set_element(page.select(h), slot % case_.page_size, std::pow(30, random.uniform()) / 1270);
    }
  }
}

int32_t AttentionProblem::shared_pages(const RequestCase& r) const {
  if (!r.shares_with) return 0;
  const RequestCase& donor = case_.requests[*r.shares_with];
  return std::min({donor.prefix, first_new(donor), r.prefix, first_new(r)}) / case_.page_size;  // never written
}

std::vector<int32_t> AttentionProblem::pages_of(const RequestCase& r) {
  std::vector<int32_t> pages;
  for (int32_t p = 0; p < shared_pages(r); ++p) {
    const int32_t row = batch_.attn.spans[*r.shares_with].page_row;
    pages.push_back(static_cast<int32_t>(table_->slot_of(row, p * case_.page_size) / case_.page_size));
  }
  const int32_t own = pages_for(tokens_of(r), case_.page_size) - shared_pages(r);
  for (const int32_t page : take_pages(pages_, own, page_order_)) pages.push_back(page);
  return pages;
}

// As BatchPadding does it: rows of a request that sees nothing, and whose keys are not stored.
void AttentionProblem::add_padding() {
  batch_.attn.spans.push_back({.q_off = static_cast<int32_t>(batch_.attn.num_tokens()),
                               .q_len = case_.padding_rows,
                               .kind = KeySpan::Kind::kNone});
  batch_.attn.padding_rows = case_.padding_rows;
  write_slots_.insert(write_slots_.end(), static_cast<size_t>(case_.padding_rows), kDoNotStore);
}

void AttentionProblem::add_request(const AttentionCase& c, const RequestCase& r, Random& random) {
  const int32_t row = *table_->alloc(), encoder_row = *table_->alloc();
  const int32_t phys0 = first_new(r), end = phys0 + r.new_tokens;
  table_->write(row, 0, pages_of(r));
  table_->write(encoder_row, 0, take_pages(pages_, pages_for(r.encoder_len, c.page_size), page_order_));
  for (int32_t p = shared_pages(r) * c.page_size; p < r.prefix; ++p) {
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
  const auto* bytes = pristine_.data_as<uint8_t>();
  for (const TensorView& side : pool_sides()) {
    std::memcpy(side.data(), bytes, static_cast<size_t>(side.bytes()));
    bytes += side.bytes();
  }
}

Tensor AttentionProblem::pool_copy() const {
  Tensor copy(DType::kU8, {pool_->mem_bytes()});
  auto* bytes = copy.data_as<uint8_t>();
  for (const TensorView& side : pool_sides()) {
    std::memcpy(bytes, side.data(), static_cast<size_t>(side.bytes()));
    bytes += side.bytes();
  }
  return copy;
}

Tensor AttentionProblem::written_by(int64_t tokens, const std::function<void(const TensorView& out)>& run) const {
  const auto [gap, row_gap] = gaps_of(case_);
  const int64_t dim = layer_.v_head_dim();
  const Tensor memory(case_.dtype, {tokens, case_.num_heads * (dim + gap) + row_gap});
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

}  // namespace headrace::testing_support
