// A Gated DeltaNet layer without a model: a request of eight tokens at once, then another one whose first five are a
// prompt and whose last three come one by one. Both must get the same results, from states in slots of their own.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "headrace/attention/backend_registry.h"

int main() {
  using namespace headrace;
  constexpr int32_t kHeads = 2, kDim = 64, kTokens = 8, kWidth = kHeads * kDim, kChannels = 3 * kWidth;  // q | k | v
  const GDNPool pool({.num_layers = 1,
                      .num_slots = 2,
                      .num_k_heads = kHeads,
                      .num_v_heads = kHeads,
                      .head_k_dim = kDim,
                      .head_v_dim = kDim,
                      .conv_dtype = DType::kF32});
  const auto backend = make_backend("auto", {}, {.gdn_pool = &pool, .context = {.threads = 2}});  // one thread without
  const auto numbers = [](const Shape& shape) {
    Tensor x(DType::kF32, shape);
    for (int64_t i = 0; i < x.numel(); ++i) set_element(x, i, std::sin(0.37 * static_cast<double>(i * i % 1009)));
    return x;
  };
  const Tensor conv_weight = numbers({kChannels, 4}), a_log = numbers({kHeads}), dt_bias = numbers({kHeads}),
               qkv = numbers({kTokens, kChannels}), a = numbers({kTokens, kHeads}), b = numbers({kTokens, kHeads});
  const RadixLinearAttention layer({.num_k_heads = kHeads,
                                    .num_v_heads = kHeads,
                                    .head_k_dim = kDim,
                                    .head_v_dim = kDim,
                                    .conv_weight = conv_weight,
                                    .a_log = a_log,
                                    .dt_bias = dt_bias},
                                   *backend);
  // Tokens [begin, end) of a request whose state lies in `slot`; its first ones read no state.
  const auto run = [&](int32_t slot, int32_t begin, int32_t end, const Tensor& out) {
    ForwardBatch batch{.attn_backend = backend.get()};
    batch.attn.spans = {{.q_len = end - begin, .ctx_len = begin, .phys0 = begin}};
    batch.attn.state_slots = {{.read = begin == 0 ? kNoState : slot, .write = slot}};
    if (end - begin == 1) batch.mode = ForwardMode::kDecode;
    backend->init_forward_metadata(batch);
    const auto rows = [&](const Tensor& x) { return x.view().slice(begin, end); };
    layer.forward(batch, {.mixed_qkv = rows(qkv), .a = rows(a), .b = rows(b)}, rows(out));
  };
  const Tensor whole(DType::kF32, {kTokens, kWidth}), pieces(DType::kF32, {kTokens, kWidth});
  run(1, 0, kTokens, whole);
  run(2, 0, 5, pieces), run(2, 5, 6, pieces), run(2, 6, 7, pieces), run(2, 7, 8, pieces);
  double apart = 0, largest = 0;
  for (int64_t i = 0; i < whole.numel(); ++i) {
    apart = std::max(apart, std::abs(element_as_double(whole, i) - element_as_double(pieces, i)));
    largest = std::max(largest, std::abs(element_as_double(whole, i)));
  }
  std::printf("%s: results up to %.3g, at most %.1e apart\n", backend->describe().c_str(), largest, apart);
  return largest > 0 && apart <= 1e-5 * largest ? 0 : 1;
}
