// The attention library alone: four decode steps over a paged pool, each of which sees one key more.
#include <cstdio>

#include "headrace/attention/backend_registry.h"

int main() {
  using namespace headrace;
  const KVPool pool({.groups = {{{1, 64, 64}, {0}}}, .num_pages = 2, .page_size = 16, .dtype = DType::kF32});
  const auto backend = make_backend("auto", {}, {.kv_pool = &pool});
  const RadixAttention layer({.num_heads = 2, .head_dim = 64, .scaling = 0.125f, .num_kv_heads = 1}, *backend);
  const Tensor table = Tensor::zeros(DType::kI32, {1, 1}), slots = Tensor::zeros(DType::kI64, {1});
  table.data_as<int32_t>()[0] = 1;  // page 1 holds the request's tokens
  for (int32_t position = 0; position < 4; ++position) {
    const Tensor q = Tensor::zeros(DType::kF32, {1, 128}), kv = Tensor::zeros(DType::kF32, {1, 64});
    set_element(kv, 0, position);                 // keys and values are yours
    slots.data_as<int64_t>()[0] = 16 + position;  // page 1, offset `position`
    ForwardBatch batch{.mode = ForwardMode::kDecode, .attn_backend = backend.get()};
    batch.attn = {.spans = {{.ctx_len = position, .phys0 = position}}, .page_table = table, .write_slots = slots};
    backend->init_forward_metadata(batch);  // once per batch; layers follow
    const Tensor out(DType::kF32, {1, 128});
    layer.forward(q, kv, kv, batch, out);  // stores the new key, then attends
    std::printf("%s: mean of %d values = %.2f\n", backend->describe().c_str(), position + 1, element_as_double(out, 0));
  }
}
