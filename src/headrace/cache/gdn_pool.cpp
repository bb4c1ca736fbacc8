#include "headrace/cache/gdn_pool.h"

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

GDNPoolConfig checked(const GDNPoolConfig& c) {
  const auto positive = [](const char* name, int64_t value) {
    HR_REQUIRE(value > 0, ErrorCode::kInvalidArgument, "gdn pool: ", name, " is ", value, ", expected 1 or more");
  };
  positive("num_layers", c.num_layers);
  positive("num_k_heads", c.num_k_heads);
  positive("num_v_heads", c.num_v_heads);
  positive("head_k_dim", c.head_k_dim);
  positive("head_v_dim", c.head_v_dim);
  positive("conv_kernel_size", c.conv_kernel_size);
  HR_REQUIRE(c.num_slots >= 0, ErrorCode::kInvalidArgument, "gdn pool: ", c.num_slots, " slots, expected 0 or more");
  HR_REQUIRE(c.num_v_heads % c.num_k_heads == 0, ErrorCode::kInvalidArgument, "gdn pool: ", c.num_v_heads,
             " value heads are not a multiple of ", c.num_k_heads, " key heads");
  return c;
}

Shape recurrent_shape(const GDNPoolConfig& c) {
  return {c.num_layers, int64_t{c.num_slots} + 1, c.num_v_heads, c.head_v_dim, c.head_k_dim};
}
Shape conv_shape(const GDNPoolConfig& c) {
  return {c.num_layers, int64_t{c.num_slots} + 1, c.conv_dim(), c.conv_kernel_size - 1};
}

}  // namespace

GDNPool::GDNPool(const GDNPoolConfig& config, DeviceRuntime& runtime)
    : config_(checked(config)),
      runtime_(runtime),
      recurrent_(Tensor::zeros(DType::kF32, recurrent_shape(config), runtime)),
      conv_(Tensor::zeros(config.conv_dtype, conv_shape(config), runtime)) {}

int64_t GDNPool::bytes_for(const GDNPoolConfig& config) {
  checked(config);
  return recurrent_shape(config).numel() * size_of(DType::kF32) +
         conv_shape(config).numel() * size_of(config.conv_dtype);
}

GDNLayerView GDNPool::layer(int32_t gdn_layer) const {
  HR_REQUIRE(gdn_layer >= 0 && gdn_layer < config_.num_layers, ErrorCode::kInvalidArgument, "gdn pool: layer ",
             gdn_layer, " is outside the ", config_.num_layers, " GDN layers");
  return {.recurrent = recurrent_.view().select(gdn_layer), .conv = conv_.view().select(gdn_layer)};
}

void GDNPool::check_slot(int32_t slot) const {
  HR_REQUIRE(slot >= 1 && slot <= config_.num_slots, ErrorCode::kInvalidArgument, "gdn pool: state slot ", slot,
             " is outside 1..", config_.num_slots);
}

TensorView GDNPool::state_of(const Tensor& states, int32_t layer, int32_t slot) const {
  return states.view().select(layer).select(slot);
}

void GDNPool::reset_states(std::span<const int32_t> slots) {
  for (const int32_t slot : slots) check_slot(slot);
  for (const int32_t slot : slots) {
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (const Tensor* states : {&recurrent_, &conv_}) {
        const TensorView state = state_of(*states, layer, slot);
        runtime_.fill_zero(state.data(), static_cast<size_t>(state.bytes()));
      }
    }
  }
}

void GDNPool::copy_states(int32_t from, int32_t to) {
  check_slot(from);
  check_slot(to);
  if (from == to) return;
  for (const Tensor* states : {&recurrent_, &conv_}) {
    const TensorView source = state_of(*states, 0, from), target = state_of(*states, 0, to);
    const auto layers = static_cast<size_t>(config_.num_layers), stride = static_cast<size_t>(states->bytes()) / layers;
    runtime_.copy_rows_on_device(target.data(), source.data(), static_cast<size_t>(source.bytes()), stride, layers);
  }
}

}  // namespace headrace
