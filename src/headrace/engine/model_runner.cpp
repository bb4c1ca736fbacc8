#include "headrace/engine/model_runner.h"

namespace headrace {

ModelRunner::ModelRunner(const Model& model, const RunnerConfig& config)
    : model_(model),
      runtime_(config.runtime != nullptr ? *config.runtime : cpu_runtime()),
      max_tokens_(config.max_tokens),
      kv_(std::make_unique<KVPool>(KVPoolConfig{.groups = model.info().kv_groups,
                                                .num_pages = config.num_pages,
                                                .page_size = config.page_size,
                                                .dtype = model.info().dtype},
                                   runtime_)) {
  if (model.info().num_gdn_layers > 0) {
    GDNPoolConfig gdn = model.info().gdn;
    gdn.num_slots = config.num_states;
    gdn_ = std::make_unique<GDNPool>(gdn, runtime_);
  }
  backend_ = make_backend(config.backend, runtime_.device(),
                          {.kv_pool = kv_.get(),
                           .gdn_pool = gdn_.get(),
                           .full_attn_layer_ids = model.info().full_attn_layer_ids,
                           .max_tokens = config.max_tokens,
                           .runtime = &runtime_,
                           .context = config.context,
                           .kernel_set = config.kernel_set});
}

const ForwardBatch& ModelRunner::on_device(const ForwardBatch& batch) {
  if (runtime_.device().type == DeviceType::kCPU) return batch;
  if (!device_batch_) {
    const TensorView& table = batch.attn.page_table;
    device_batch_ = std::make_unique<DeviceBatch>(DeviceBatchConfig{.max_requests = table.dim(0),
                                                                    .max_tokens = max_tokens_,
                                                                    .table_rows = table.dim(0),
                                                                    .table_pages = table.dim(1),
                                                                    .page_size = kv_->page_size(),
                                                                    .max_snapshots = table.dim(0)},
                                                  runtime_);
  }
  return device_batch_->upload(batch);
}

Tensor ModelRunner::run(const ForwardBatch& host_batch) {
  const ForwardBatch& batch = on_device(host_batch);
  source_.set_fetch_fn_for_attn_metadata([&batch]() -> const AttnMetadata& { return batch.attn; });
  backend_->init_forward_metadata(batch);
  Tensor logits = model_.forward(batch);
  if (runtime_.device().type == DeviceType::kCPU) return logits;
  Tensor on_host(logits.dtype(), logits.shape());
  runtime_.copy_to_host(on_host.data(), logits.data(), static_cast<size_t>(logits.bytes()));
  return on_host;
}

}  // namespace headrace
