// Two requests in one batch: their prompts, then a token that one of them decodes beside a block that the other
// denoises. Queries are zeros, so each row's result is the mean of the values that it sees; a value here is its key's
// position.
#include <cstdio>
#include <vector>

#include "headrace/attention/backend_registry.h"

int main() {
  using namespace headrace;
  constexpr int32_t kPage = 16, kDim = 64;
  const KVPool pool({.groups = {{{1, kDim, kDim}, {0}}}, .num_pages = 2, .page_size = kPage, .dtype = DType::kF32});
  const auto backend = make_backend("auto", {}, {.kv_pool = &pool, .context = {.threads = 2}});  // one thread without
  const RadixAttention layer({.num_heads = 1, .head_dim = kDim, .scaling = 0.125f, .num_kv_heads = 1}, *backend);
  const Tensor table = Tensor::zeros(DType::kI32, {2, 1});
  table.data_as<int32_t>()[0] = 1, table.data_as<int32_t>()[1] = 2;  // the request of row r has page 1 + r

  // `spans` tile the batch's rows in order. A row's position is where its key lies; phys0 is that of a request's first
  // row: ctx_len, unless the cache has a hole or holds what the rows do not see.
  const auto run = [&](const std::vector<KeySpan>& spans) {
    const int32_t rows = spans.back().q_off + spans.back().q_len;
    const Tensor q = Tensor::zeros(DType::kF32, {rows, kDim}), k = Tensor::zeros(DType::kF32, {rows, kDim}),
                 v = Tensor::zeros(DType::kF32, {rows, kDim}), out(DType::kF32, {rows, kDim}),
                 slots(DType::kI64, {rows});
    for (const KeySpan& span : spans) {
      for (int32_t i = 0; i < span.q_len; ++i) {
        const int32_t row = span.q_off + i, position = span.phys0 + i;
        set_element(v, int64_t{row} * kDim, position);
        slots.data_as<int64_t>()[row] = span.kind == KeySpan::Kind::kBlock  // not final yet, so not kept
                                            ? kDoNotStore
                                            : int64_t{kPage} * (1 + span.page_row) + position;
      }
    }
    ForwardBatch batch{.mode = ForwardMode::kExtend, .attn_backend = backend.get()};
    batch.attn = {.spans = spans, .page_table = table, .write_slots = slots};
    backend->init_forward_metadata(batch);
    layer.forward(q, k, v, batch, out);
    for (const KeySpan& span : spans) {
      std::printf("request %d:", span.page_row);
      for (int32_t i = 0; i < span.q_len; ++i)
        std::printf(" %.1f", element_as_double(out, (int64_t{span.q_off} + i) * kDim));
      std::printf("\n");
    }
  };
  run({{.q_off = 0, .q_len = 5, .page_row = 0}, {.q_off = 5, .q_len = 4, .page_row = 1}});
  run({{.q_off = 0, .q_len = 1, .ctx_len = 5, .phys0 = 5, .page_row = 0},
       {.q_off = 1,
        .q_len = 4,
        .ctx_len = 4,
        .phys0 = 4,
        .kind = KeySpan::Kind::kBlock,
        .block_size = 4,
        .page_row = 1}});
}
