#include "headrace/layers/moe_layer.h"

#include <cstring>

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

std::vector<GatedMLP> stacked_experts(const WeightScope& scope, const MoEConfig& c) {
  const int64_t count = c.router.num_experts, hidden = c.router.hidden;
  const TensorView gate_up = scope.tensor("gate_up_proj", {count, 2 * c.intermediate, hidden});
  const TensorView down = scope.tensor("down_proj", {count, hidden, c.intermediate});
  std::vector<GatedMLP> experts;
  for (int64_t e = 0; e < count; ++e) {
    const TensorView both = gate_up.select(e);
    experts.emplace_back(Linear(both.slice(0, c.intermediate), {}),
                         Linear(both.slice(c.intermediate, 2 * c.intermediate), {}), Linear(down.select(e), {}),
                         c.activation);
  }
  return experts;
}

std::vector<GatedMLP> load_experts(const WeightScope& scope, const MoEConfig& c) {
  if (scope.has("gate_up_proj")) return stacked_experts(scope, c);
  std::vector<GatedMLP> experts;
  for (int64_t e = 0; e < c.router.num_experts; ++e) {
    experts.emplace_back(scope.scope(std::to_string(e)), c.router.hidden, c.intermediate, c.activation);
  }
  return experts;
}

bool like(const TensorView& weight, const TensorView& other) {
  return weight.dtype() == other.dtype() && weight.shape() == other.shape() && weight.is_contiguous();
}

bool like(const GatedMLP& expert, const GatedMLP& other) {
  return like(expert.gate().weight(), other.gate().weight()) && like(expert.up().weight(), other.up().weight()) &&
         like(expert.down().weight(), other.down().weight());
}

// Returns the device addresses of each expert's weights. Error kUnsupported unless all are dense and of one dtype.
Tensor addresses_of(const std::vector<const GatedMLP*>& experts, DeviceRuntime& device) {
  Tensor host(DType::kI64, {static_cast<int64_t>(experts.size()), 3});
  auto* address = host.data_as<int64_t>();
  for (const GatedMLP* expert : experts) {
    HR_REQUIRE(like(*expert, *experts.front()), ErrorCode::kUnsupported, "experts of ",
               name_of(expert->gate().weight().dtype()), " beside ", name_of(experts.front()->gate().weight().dtype()),
               " ones, or with rows apart, do not run on ", to_string(device.device()));
    for (const Linear* part : {&expert->gate(), &expert->up(), &expert->down()}) {
      *address++ = reinterpret_cast<int64_t>(part->weight().data());
    }
  }
  return copied_to(device, std::move(host));
}

void copy_row(const TensorView& from, int64_t i, const TensorView& to, int64_t j) {
  const TensorView source = from.select(i), target = to.select(j);
  std::memcpy(target.data(), source.data(), static_cast<size_t>(source.bytes()));
}

}  // namespace

MoELayer::MoELayer(const WeightScope& scope, const MoEConfig& config)
    : config_(config), router_(scope, config.router), experts_(load_experts(scope.scope("experts"), config)) {
  if (config.shared_intermediate > 0) {
    shared_.emplace(scope.scope("shared_expert"), config.router.hidden, config.shared_intermediate);
    if (config.shared_gate == MoEConfig::SharedGate::kSigmoid) {
      shared_gate_ = Linear(scope, "shared_expert_gate", 1, config.router.hidden);
    }
  }
  if (scope.runtime().device().type == DeviceType::kCPU) return;
  std::vector<const GatedMLP*> all;
  for (const GatedMLP& expert : experts_) all.push_back(&expert);
  if (shared_ && config.activation == Activation::kSilu && like(*shared_, experts_.front())) all.push_back(&*shared_);
  addresses_ = addresses_of(all, scope.runtime());
}

int64_t MoELayer::expert_bytes() const {
  int64_t bytes = 0;
  for (const GatedMLP& expert : experts_) {
    for (const Linear* part : {&expert.gate(), &expert.up(), &expert.down()}) bytes += part->weight().bytes();
  }
  return bytes;
}

void MoELayer::run_expert(const LayerContext& context, int64_t expert, const TensorView& x,
                          const std::vector<Choice>& choices, const TensorView& results) const {
  std::vector<int64_t> places;  // indices of this expert's choices
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].expert == expert) places.push_back(static_cast<int64_t>(i));
  }
  if (places.empty()) return;
  const auto rows = static_cast<int64_t>(places.size());
  const Tensor in(x.dtype(), {rows, x.dim(1)}), out(DType::kF32, {rows, x.dim(1)});
  for (int64_t r = 0; r < rows; ++r) {
    copy_row(x, places[static_cast<size_t>(r)] / config_.router.experts_per_token, in, r);
  }
  experts_[static_cast<size_t>(expert)].forward(context, in, out);
  for (int64_t r = 0; r < rows; ++r) copy_row(out, r, results, places[static_cast<size_t>(r)]);
}

bool MoELayer::shared_is_chosen(const Rows& rows) const {
  const bool same_rows = rows.routed_by.data() == rows.x.data();  // router and shared gate read the same input
  return shared_ && same_rows && addresses_ && addresses_.view().dim(0) > config_.router.num_experts;
}

void MoELayer::run_on_device(const LayerContext& context, const Rows& rows, const TensorView& residual,
                             const TensorView& y) const {
  HR_REQUIRE(addresses_, ErrorCode::kInvalidArgument, "experts: the weights lie on the cpu, expected on ",
             to_string(context.runtime->device()));
  using Shared = ExpertRoutingArgs::Shared;
  ExpertRouter::OnDevice of{.x = rows.routed_by, .num_rows = rows.num_rows};
  if (shared_is_chosen(rows)) {
    const bool gated = config_.shared_gate == MoEConfig::SharedGate::kSigmoid;
    of.shared = gated ? Shared::kGated : Shared::kFull, of.shared_gate = gated ? &shared_gate_ : nullptr;
  }
  const ExpertRouter::Choices choices = router_.on_device(context, of);
  context.ops->expert_mlp({.x = rows.x,
                           .experts = choices.experts,
                           .weights = choices.weights,
                           .addresses = addresses_,
                           .weight_type = experts_.front().gate().weight().dtype(),
                           .intermediate = config_.intermediate,
                           .activation = config_.activation,
                           .residual = residual,
                           .y = y},
                          context.op);
}

Tensor MoELayer::routed(const LayerContext& context, const Rows& rows) const {
  if (!context.on_cpu()) {
    Tensor sum = context.make(DType::kF32, rows.x.shape());
    run_on_device(context, rows, {}, sum);
    return sum;
  }
  const TensorView& x = rows.x;
  const int64_t tokens = x.dim(0), k = config_.router.experts_per_token, hidden = config_.router.hidden;
  const std::vector<Choice> choices = router_(context, rows.routed_by);
  const Tensor results(DType::kF32, {tokens * k, hidden});
  for (int64_t e = 0; e < config_.router.num_experts; ++e) run_expert(context, e, x, choices, results);
  Tensor sum = Tensor::zeros(DType::kF32, {tokens, hidden});
  for (int64_t i = 0; i < tokens * k; ++i) {  // in the order of each token's choices
    float* to = sum.data_as<float>() + i / k * hidden;
    const float* from = results.data_as<float>() + i * hidden;
    for (int64_t d = 0; d < hidden; ++d) to[d] += choices[static_cast<size_t>(i)].weight * from[d];
  }
  return sum;
}

void MoELayer::run(const LayerContext& context, const Rows& given, const TensorView& residual,
                   const TensorView& y) const {
  Rows rows = given;
  if (!rows.routed_by) rows.routed_by = rows.x;
  if (!context.on_cpu() && (!shared_ || shared_is_chosen(rows))) return run_on_device(context, rows, residual, y);
  const Tensor sum = routed(context, rows);
  if (shared_) add_shared(context, rows.x, sum);
  const Tensor zeros = residual ? Tensor() : Tensor::zeros(DType::kF32, {y.dim(0), 1}, *context.runtime);
  context.ops->pointwise({.kind = PointwiseKind::kAdd, .x = residual ? residual : zeros.view(), .y = sum, .out = y},
                         context.op);
}

// sum += shared expert of x
void MoELayer::add_shared(const LayerContext& context, const TensorView& x, const TensorView& sum) const {
  const Tensor out = context.make(DType::kF32, sum.shape());
  shared_->forward(context, x, out);
  if (config_.shared_gate == MoEConfig::SharedGate::kSigmoid) {
    const Tensor gate = context.make(DType::kF32, {x.dim(0), 1});
    shared_gate_.forward(context, x, gate);
    context.ops->pointwise({.kind = PointwiseKind::kSigmoidMul, .x = gate, .y = out, .out = out}, context.op);
  }
  context.ops->pointwise({.kind = PointwiseKind::kAdd, .x = sum, .y = out, .out = sum}, context.op);
}

}  // namespace headrace
