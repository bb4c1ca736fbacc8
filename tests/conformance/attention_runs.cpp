// How an attention problem runs: whole, in parts, cut into several batches, and row by row by the oracle.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "conformance/attention_problem.h"
#include "headrace/attention/hybrid_attn_backend.h"
#include "headrace/attention/op_set_backend.h"
#include "headrace/ops/reference/reference_ops.h"
#include "support/device_mirror.h"

namespace headrace::testing_support {
namespace {

// What Attention runs to let the oracle find single rows: those whose log-sum-exp is not NaN.
void attend_marked_rows(const PagedAttentionArgs& a, const OpContext&) {
  check(a);
  for (size_t r = 0; r < a.spans.size(); ++r) {
    for (int32_t row = 0; row < a.spans[r].q_len; ++row) {
      const TensorView marks = a.lse.select(a.spans[r].q_off + row);
      for (int64_t h = 0; h < marks.dim(0); ++h) {
        if (!std::isnan(element_as_double(marks, h))) reference::paged_attention_row(a, r, row, h);
      }
    }
  }
}

}  // namespace

std::unique_ptr<AttentionBackend> backend_called(std::string_view name, Device device, const BackendConfig& config) {
  if (!name.starts_with("cuda")) return make_backend(name, device, config);
  const AttnImpl impl = config.attn_impl.value_or(AttnImpl::kGrouped);
  const OpSet& ops = *mirrored_cuda_ops(impl == AttnImpl::kReference ? "cuda_reference" : name);
  auto full = std::make_unique<OpSetBackend>(name, ops, *config.kv_pool, config.context, impl);
  if (config.gdn_pool == nullptr) return full;
  auto gdn = std::make_unique<GDNAttnBackend>(*config.gdn_pool, ops, config.context, config.max_tokens);
  return std::make_unique<HybridAttnBackend>(std::move(full), std::move(gdn), config.full_attn_layer_ids);
}

std::vector<std::string_view> all_backends() {
  std::vector<std::string_view> names = backend_names(Device());
  names.insert(names.end(), kCudaSets.begin(), kCudaSets.end());
  return names;
}

bool is_here(std::string_view backend) { return !backend.starts_with("cuda") || mirrored_cuda_ops() != nullptr; }

AttentionProblem::Result AttentionProblem::run_by(AttentionBackend& attention, ForwardBatch& batch,
                                                  const AttnInputs& in, Tensor lse) {
  batch.attn_backend = &attention;
  attention.init_forward_metadata(batch);
  Result result{{}, std::move(lse)};
  AttnInputs with_lse = in;
  with_lse.options.lse = result.lse;
  result.out =
      written_by(batch.num_tokens(), [&](const TensorView& out) { attention.forward(layer_, with_lse, batch, out); });
  return result;
}

Tensor AttentionProblem::unknown_lse(int64_t tokens) const {
  Tensor lse(DType::kF32, {tokens, case_.num_heads});
  poison(lse);
  return lse;
}

AttentionProblem::Result AttentionProblem::run_batch(ForwardBatch& batch, const AttnInputs& in, BackendConfig config,
                                                     std::string_view backend) {
  config.kv_pool = pool_.get();
  const auto attention = backend_called(backend, {}, config);
  return run_by(*attention, batch, in, unknown_lse(batch.num_tokens()));
}

AttentionProblem::Result AttentionProblem::run(std::string_view backend, std::optional<std::string> kernel_set,
                                               OpContext context) {
  restore_pool();
  return run_batch(batch_, inputs(), {.context = context, .kernel_set = std::move(kernel_set)}, backend);
}

AttentionProblem::Result AttentionProblem::run_rows(std::vector<KeySpan> spans, int64_t begin, std::string_view backend,
                                                    BackendConfig config) {
  ForwardBatch batch{.mode = batch_.mode};
  batch.attn = {.spans = std::move(spans), .page_table = batch_.attn.page_table};
  const int64_t end = begin + batch.num_tokens();
  const auto rows = [&](const TensorView& x) { return x ? x.slice(begin, end) : x; };
  batch.attn.write_slots = rows(batch_.attn.write_slots);
  const AttnInputs all = inputs();
  const AttnInputs in{.q = rows(all.q), .k = rows(all.k), .v = rows(all.v), .options = all.options};
  return run_batch(batch, in, std::move(config), backend);
}

AttentionProblem::Result AttentionProblem::run_part(Part part, std::string_view backend,
                                                    std::optional<std::string> kernel_set, OpContext context) {
  std::vector<KeySpan> spans(batch_.attn.spans.begin() + static_cast<int64_t>(part.first),
                             batch_.attn.spans.begin() + static_cast<int64_t>(part.last));
  const int32_t begin = spans.front().q_off;
  for (KeySpan& span : spans) span.q_off -= begin;
  restore_pool();
  return run_rows(std::move(spans), begin, backend, {.context = context, .kernel_set = std::move(kernel_set)});
}

bool AttentionProblem::can_cut(size_t request, int32_t row) const {
  const KeySpan& span = batch_.attn.spans[request];
  if (layer_.is_cross_attention()) return true;
  const bool in_pool = case_.new_keys == AttentionCase::NewKeys::kInPool;
  const bool there = in_pool || case_.save == SaveKV::kYes;
  const bool windows = layer_.window() == kNoWindow || span.window_from == KeySpan::WindowFrom::kRow;
  if (!there || !windows || case_.type != AttentionType::kDecoder) return false;
  if (span.kind == KeySpan::Kind::kNone) return in_pool;
  if (span.phys0 != span.ctx_len) return false;
  return span.kind == KeySpan::Kind::kCausal ||
         (span.kind == KeySpan::Kind::kBlock && (span.phys0 + row) % span.block_size == 0);
}

AttentionProblem::Result AttentionProblem::run_cut(size_t request, const std::vector<int32_t>& cuts,
                                                   std::string_view backend,
                                                   const std::optional<std::string>& kernel_set, OpContext context) {
  const KeySpan whole = batch_.attn.spans[request];
  const bool moves = whole.kind != KeySpan::Kind::kNone && !layer_.is_cross_attention();
  Result all{Tensor(case_.dtype, {whole.q_len, case_.num_heads, layer_.v_head_dim()}), unknown_lse(whole.q_len)};
  restore_pool();
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const int32_t begin = i == 0 ? 0 : cuts[i - 1], end = i == cuts.size() ? whole.q_len : cuts[i];
    KeySpan span = whole;
    span.q_off = 0, span.q_len = end - begin, span.phys0 += begin;
    if (moves) span.ctx_len += begin;
    const Result part = run_rows({span}, whole.q_off + begin, backend, {.context = context, .kernel_set = kernel_set});
    for (const auto& [from, to] : {std::pair(&part.out, &all.out), std::pair(&part.lse, &all.lse)})
      std::memcpy(to->view().slice(begin, end).data(), from->data(), static_cast<size_t>(from->bytes()));
  }
  return all;
}

AttentionProblem::Result AttentionProblem::run_oracle(const std::vector<OneRow>& rows) {
  OpSet marked = reference::ops();
  marked.paged_attention = attend_marked_rows;
  OpSetBackend oracle("oracle", marked, *pool_, {});
  Tensor marks = unknown_lse(batch_.num_tokens());
  for (const OneRow& one : rows)
    set_element(marks.view().select(batch_.attn.spans[one.request].q_off + one.row), one.head, 0);
  restore_pool();
  return run_by(oracle, batch_, inputs(), std::move(marks));
}

AttentionProblem::Result AttentionProblem::run(std::string_view backend, AttnImpl impl) {
  restore_pool();
  return run_batch(batch_, inputs(), {.attn_impl = impl}, backend);
}

}  // namespace headrace::testing_support
