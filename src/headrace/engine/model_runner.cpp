#include "headrace/engine/model_runner.h"

namespace headrace {

ModelRunner::ModelRunner(const Model& model, const RunnerConfig& config)
    : model_(model),
      kv_(std::make_unique<KVPool>(KVPoolConfig{.groups = model.info().kv_groups,
                                                .num_pages = config.num_pages,
                                                .page_size = config.page_size,
                                                .dtype = model.info().dtype})) {
  if (model.info().num_gdn_layers > 0) {
    GDNPoolConfig gdn = model.info().gdn;
    gdn.num_slots = config.num_states;
    gdn_ = std::make_unique<GDNPool>(gdn);
  }
  backend_ = make_backend(config.backend, {},
                          {.kv_pool = kv_.get(),
                           .gdn_pool = gdn_.get(),
                           .full_attn_layer_ids = model.info().full_attn_layer_ids,
                           .max_tokens = config.max_tokens,
                           .context = config.context,
                           .kernel_set = config.kernel_set});
}

Tensor ModelRunner::run(const ForwardBatch& batch) {
  source_.set_fetch_fn_for_attn_metadata([&batch]() -> const AttnMetadata& { return batch.attn; });
  backend_->init_forward_metadata(batch);
  return model_.forward(batch);
}

}  // namespace headrace
