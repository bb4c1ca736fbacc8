#include "headrace/models/model_gemms.h"

#include <algorithm>
#include <numeric>

namespace headrace {
namespace {

using cuda::GemmProblem;
using Operand = GemmProblem::Operand;
using Product = GemmProblem::Product;

// Columns of a tensor that begins at a multiple of 16 bytes: the first column, and the columns of a row.
Operand operand(DType dtype, int64_t first, int64_t stride) {
  const int64_t size = size_of(dtype);
  return {.dtype = dtype, .align = static_cast<int>(std::gcd(int64_t{16}, std::gcd(first * size, stride * size)))};
}

class Gemms {
 public:
  explicit Gemms(DType dtype) : dtype_(dtype) {}

  GemmProblem of(int64_t k) const { return {.k = k, .num_products = 0, .x = operand(dtype_, 0, k)}; }
  GemmProblem normed(int64_t k) const {
    GemmProblem p = of(k);
    p.norm = Operand{.dtype = dtype_};
    return p;
  }
  // Appends a product whose result is columns [first, first + n) of rows of `stride`.
  void append(GemmProblem& p, int64_t n, int64_t first, int64_t stride, DType y) const {
    p.products[static_cast<size_t>(p.num_products++)] = {
        .n = n, .weight = operand(dtype_, 0, p.k), .y = operand(y, first, stride)};
  }
  GemmProblem single(GemmProblem p, int64_t n, DType y) const {
    append(p, n, 0, n, y);
    return p;
  }
  GemmProblem single(GemmProblem p, int64_t n) const { return single(p, n, dtype_); }
  // Two products of results of their own.
  GemmProblem pair(GemmProblem p, int64_t n) const {
    append(p, n, 0, n, dtype_), append(p, n, 0, n, dtype_);
    return p;
  }
  GemmProblem swiglu(GemmProblem p, int64_t n) const {
    p = pair(p, n);
    p.swiglu = true;
    return p;
  }
  GemmProblem added(GemmProblem p, int64_t n) const {
    p = single(p, n);
    p.residual = p.products[0].y;
    return p;
  }
  DType dtype() const { return dtype_; }

 private:
  DType dtype_;
};

// As SelfAttention::add_to calls it: one result for all, or one for gated queries and one for keys and values.
GemmProblem attention_qkv(const Gemms& gemms, const SelfAttentionConfig& c) {
  const bool gated = c.output_gate == SelfAttentionConfig::OutputGate::kYes;
  const int64_t q = c.q_rows(), kv = c.kv_rows(), all = (gated ? 0 : q) + 2 * kv;
  GemmProblem p = gemms.normed(c.hidden);
  gemms.append(p, q, 0, gated ? q : all, gemms.dtype());
  gemms.append(p, kv, all - 2 * kv, all, gemms.dtype()), gemms.append(p, kv, all - kv, all, gemms.dtype());
  p.products[1].continues = !gated, p.products[2].continues = true;
  if (c.qkv_bias == HasBias::kNo) return p;
  int64_t first = 0;
  for (Product& product : p.products) {
    if (product.n > 0) product.bias = operand(gemms.dtype(), first, 0);
    first += product.n;
  }
  return p;
}

GemmProblem attention_out(const Gemms& gemms, const SelfAttentionConfig& c) {
  GemmProblem p = gemms.added(gemms.of(int64_t{c.num_heads} * c.head_dim), c.hidden);
  if (c.o_bias == HasBias::kYes) p.products[0].bias = Operand{.dtype = gemms.dtype()};
  return p;
}

// As GatedDeltaNet::add_to calls it.
GemmProblem gdn_in(const Gemms& gemms, const GatedDeltaNetConfig& c) {
  const int64_t heads = c.num_v_heads, stride = (c.conv_dim() + c.value_dim() + 2 * heads + 7) / 8 * 8;
  GemmProblem p = gemms.normed(c.hidden);
  int64_t first = 0;
  for (const int64_t n : {c.conv_dim(), c.value_dim(), heads, heads}) {
    gemms.append(p, n, first, stride, gemms.dtype());
    p.products[static_cast<size_t>(p.num_products) - 1].continues = first > 0;
    first += n;
  }
  return p;
}

// The router's GEMM, beside the gate of a shared expert that runs as one more chosen expert, or that expert's own.
void append_moe(const Gemms& gemms, const MoEConfig& c, std::vector<ModelGemm>& all) {
  const bool gated = c.shared_intermediate > 0 && c.shared_gate == MoEConfig::SharedGate::kSigmoid;
  const bool chosen = c.shared_intermediate == c.intermediate && c.activation == Activation::kSilu;
  GemmProblem router = gemms.single(gemms.of(c.router.hidden), c.router.num_experts, DType::kF32);
  if (gated && chosen) gemms.append(router, 1, 0, 1, DType::kF32);
  all.push_back({"moe router", router});
  if (c.shared_intermediate == 0 || chosen) return;
  all.push_back({"shared expert gate and up", gemms.swiglu(gemms.of(c.router.hidden), c.shared_intermediate)});
  all.push_back({"shared expert down", gemms.single(gemms.of(c.shared_intermediate), c.router.hidden, DType::kF32)});
  if (gated) all.push_back({"shared expert gate", gemms.single(gemms.of(c.router.hidden), 1, DType::kF32)});
}

}  // namespace

std::vector<ModelGemm> causal_lm_gemms(const ModelConfig& c, DType dtype) {
  const Gemms gemms(dtype);
  std::vector<ModelGemm> all;
  if (std::ranges::count(c.layer_types, LayerType::kFullAttention) > 0) {
    all.push_back({"attention qkv", attention_qkv(gemms, c.attention)});
    all.push_back({"attention out", attention_out(gemms, c.attention)});
  }
  if (std::ranges::count(c.layer_types, LayerType::kLinearAttention) > 0) {
    all.push_back({"gdn in", gdn_in(gemms, c.gdn)});
    all.push_back({"gdn out", gemms.added(gemms.of(c.gdn.value_dim()), c.hidden)});
  }
  if (c.moe_layers.empty() || std::ranges::count(c.moe_layers, false) > 0) {
    all.push_back({"mlp gate and up", gemms.swiglu(gemms.normed(c.hidden), c.intermediate)});
    all.push_back({"mlp down", gemms.added(gemms.of(c.intermediate), c.hidden)});
  }
  if (std::ranges::count(c.moe_layers, true) > 0) append_moe(gemms, c.moe, all);
  all.push_back({"head", gemms.single(gemms.normed(c.hidden), c.vocab, DType::kF32)});
  return all;
}

std::vector<ModelGemm> diffusion_gemma_gemms(const ModelConfig& c, const DiffusionGemmaConfig& gemma, DType dtype) {
  const Gemms gemms(dtype);
  std::vector<ModelGemm> all;
  const auto add = [&](const std::string& name, int64_t n, int64_t k) {
    const auto is_it = [&](const ModelGemm& g) { return g.problem.products[0].n == n && g.problem.k == k; };
    if (std::ranges::none_of(all, is_it)) all.push_back({name, gemms.single(gemms.of(k), n)});
  };
  for (const DiffusionGemmaConfig::Layer& layer : gemma.layers) {
    const GemmaAttentionConfig& a = layer.attention;
    add("attention q", int64_t{a.num_heads} * a.head_dim, c.hidden);
    add("attention k or v", int64_t{a.num_kv_heads} * a.head_dim, c.hidden);
    add("attention out", c.hidden, int64_t{a.num_heads} * a.head_dim);
  }
  all.push_back({"mlp gate and up", gemms.pair(gemms.of(c.hidden), c.intermediate)});
  add("mlp down", c.hidden, c.intermediate);
  append_moe(gemms, gemma.moe, all);
  all.push_back({"head", gemms.single(gemms.of(c.hidden), c.vocab, DType::kF32)});
  return all;
}

}  // namespace headrace
