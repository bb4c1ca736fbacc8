#include "empty_engine.h"

#include <cstring>
#include <utility>

namespace headrace::app {
namespace {

void choose_token_0(const TokenConfidenceArgs& args, const OpContext& /*context*/) {
  for (const TensorView& out : {args.best, args.stats}) std::memset(out.data(), 0, static_cast<size_t>(out.bytes()));
}

void keep_ids(const TakeTokensArgs& /*args*/, const OpContext& /*context*/) {}  // the model reads none

const OpSet& empty_kernels() {
  static constexpr OpSet kKernels = {.name = "empty", .token_confidence = choose_token_0, .take_tokens = keep_ids};
  return kKernels;
}

std::optional<bench::FakeDevice> device_of(EmptyEngineKind kind) {
  if (kind.path == EmptyEngineKind::Path::kCpu) return std::nullopt;
  return std::optional<bench::FakeDevice>(std::in_place, empty_kernels());
}

}  // namespace

std::string EmptyEngineKind::name() const {
  return std::string(layers == Layers::kDense ? "dense" : "hybrid") + (path == Path::kCpu ? " cpu" : " fake device");
}

EmptyModel::EmptyModel(EmptyEngineKind::Layers layers, DeviceRuntime& runtime) : runtime_(runtime) {
  info_ = {.architecture = "empty",
           .vocab_size = 16,
           .context_length = 1 << 30,
           .num_layers = 1,
           .kv_groups = {{.shape = {.num_kv_heads = 1, .head_dim = 4, .v_head_dim = 4}, .layer_ids = {0}}},
           .full_attn_layer_ids = {0},
           .dtype = DType::kBF16};
  if (layers == EmptyEngineKind::Layers::kDense) return;
  info_.num_layers = 2, info_.num_gdn_layers = 1;
  info_.gdn = {.num_layers = 1, .num_k_heads = 1, .num_v_heads = 1, .head_k_dim = 4, .head_v_dim = 4};
}

Tensor EmptyModel::forward(const ForwardBatch& batch) const {
  return Tensor::zeros(DType::kF32, {std::ssize(batch.logits_rows), info_.vocab_size}, runtime_);
}

EmptyEngine::EmptyEngine(EmptyEngineKind kind, EngineConfig config)
    : device_(device_of(kind)),
      model_(kind.layers, device_ ? static_cast<DeviceRuntime&>(*device_) : cpu_runtime()),
      engine_(model_, placed(std::move(config))) {}

EngineConfig EmptyEngine::placed(EngineConfig config) {
  config.runner.backend = device_ ? "cuda" : "cpu";
  if (!device_) return config;
  config.runner.runtime = &*device_, config.runner.ops = &device_->ops();
  config.runner.context.stream = device_->stream();
  config.runner.graphs = RunnerConfig::Graphs::kRequired;
  return config;
}

}  // namespace headrace::app
