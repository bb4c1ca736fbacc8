#include "headrace/cache/kv_pool.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

constexpr std::array<int32_t, 6> kPageSizes = {1, 16, 32, 64, 128, 256};

void check(const KVPoolConfig& config) {
  KVPool::check_page_size(config.page_size);
  constexpr std::array kDTypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kI8};
  HR_REQUIRE(std::ranges::find(kDTypes, config.dtype) != kDTypes.end(), ErrorCode::kInvalidArgument,
             "kv pool: dtype is ", name_of(config.dtype),
             ", expected float32, bfloat16, float16, float8_e4m3fn or int8");
  HR_REQUIRE(config.num_pages >= 0, ErrorCode::kInvalidArgument, "kv pool: ", config.num_pages,
             " pages, expected 0 or more");
  for (const KVLayerGroup& group : config.groups) {
    const KVLayerShape& shape = group.shape;
    HR_REQUIRE(shape.num_kv_heads > 0 && shape.head_dim > 0 && shape.v_head_dim > 0, ErrorCode::kInvalidArgument,
               "kv pool: ", shape.num_kv_heads, " heads of ", shape.head_dim, " and ", shape.v_head_dim,
               ", expected positive numbers");
  }
}

bool is_scale(float x) { return std::isfinite(x) && x > 0; }

Shape stored_shape(KVLayout layout, int64_t pages, int64_t heads, int64_t slots, int64_t dim) {
  return layout == KVLayout::kHeadMajor ? Shape{pages, heads, slots, dim} : Shape{pages, slots, heads, dim};
}

// View [page, kv head, slot, dim] of memory in either order.
TensorView head_major(KVLayout layout, const TensorView& stored) {
  if (layout == KVLayout::kHeadMajor || !stored) return stored;
  return TensorView(stored.data(), stored.dtype(), {stored.dim(0), stored.dim(2), stored.dim(1), stored.dim(3)},
                    {stored.stride(0), stored.stride(2), stored.stride(1), stored.stride(3)}, stored.device());
}

// View [page, kv head, slot] of [page, kv head, slot, 1], or null.
TensorView without_dim(const TensorView& x) {
  if (!x) return x;
  return TensorView(x.data(), x.dtype(), {x.dim(0), x.dim(1), x.dim(2)}, {x.stride(0), x.stride(1), x.stride(2)},
                    x.device());
}

}  // namespace

KVPool::KVPool(const KVPoolConfig& config, DeviceRuntime& runtime)
    : page_size_(config.page_size), num_pages_(config.num_pages), dtype_(config.dtype), layout_(config.layout) {
  check(config);
  check_dtype_on(runtime.device(), dtype_);
  for (const KVLayerGroup& group : config.groups) {
    const int64_t pages = int64_t{num_pages_} + 1;
    const KVLayerShape& s = group.shape;
    for (const int32_t id : group.layer_ids) {
      const auto side = [&](DType dtype, int32_t dim) {
        return Tensor::zeros(dtype, stored_shape(layout_, pages, s.num_kv_heads, page_size_, dim), runtime);
      };
      layers_.push_back({.layer_id = id, .k = side(dtype_, s.head_dim), .v = side(dtype_, s.v_head_dim)});
      if (dtype_ != DType::kI8) continue;
      layers_.back().k_token_scales = side(DType::kF32, 1);
      layers_.back().v_token_scales = side(DType::kF32, 1);
    }
  }
  for (const auto& shared : config.shared_layers) layers_.push_back({.layer_id = shared.layer_id});
  std::ranges::sort(layers_, {}, &Layer::layer_id);
  for (size_t i = 1; i < layers_.size(); ++i) {
    HR_REQUIRE(layers_[i - 1].layer_id != layers_[i].layer_id, ErrorCode::kInvalidArgument, "kv pool: layer ",
               layers_[i].layer_id, " is listed twice");
  }
  for (const auto& shared : config.shared_layers) {
    const Layer* source = find(shared.source_layer_id);
    HR_REQUIRE(source != nullptr && source->k, ErrorCode::kInvalidArgument, "kv pool: layer ", shared.layer_id,
               " shares layer ", shared.source_layer_id, ", which has no cache of its own");
    const_cast<Layer*>(find(shared.layer_id))->source = source;
  }
  if (dtype_ == DType::kE4M3) set_scales(config.scales);
}

void KVPool::set_scales(const std::vector<KVLayerScales>& scales) {
  for (const KVLayerScales& s : scales) {
    HR_REQUIRE(has_layer(s.layer_id), ErrorCode::kInvalidArgument, "kv pool: layer ", s.layer_id,
               " has scales, but no keys and values");
    HR_REQUIRE(is_scale(s.k_scale) && is_scale(s.v_scale), ErrorCode::kInvalidArgument, "kv pool: layer ", s.layer_id,
               " has scales ", s.k_scale, " and ", s.v_scale, ", expected positive numbers");
    auto* layer = const_cast<Layer*>(find(s.layer_id));
    layer->k_scale = s.k_scale;
    layer->v_scale = s.v_scale;
  }
}

void KVPool::check_page_size(int32_t page_size) {
  HR_REQUIRE(std::ranges::find(kPageSizes, page_size) != kPageSizes.end(), ErrorCode::kInvalidArgument,
             "kv pool: page size is ", page_size, ", expected 1, 16, 32, 64, 128 or 256");
}

void KVPool::check_dtype_on(Device device, DType dtype) {
  HR_REQUIRE(dtype != DType::kI8 || device.type == DeviceType::kCPU, ErrorCode::kUnsupported,
             "keys and values in int8 run on a CPU alone, not on ", to_string(device),
             "; expected float32, bfloat16, float16 or float8_e4m3fn there");
}

int64_t KVPool::bytes_for(const KVPoolConfig& config) {
  const int64_t scales = config.dtype == DType::kI8 ? 2 * size_of(DType::kF32) : 0;  // bytes per token and KV head
  int64_t bytes = 0;                                                                 // per token
  for (const KVLayerGroup& group : config.groups) {
    const KVLayerShape& s = group.shape;
    const int64_t of_head = (int64_t{s.head_dim} + s.v_head_dim) * size_of(config.dtype) + scales;
    bytes += static_cast<int64_t>(group.layer_ids.size()) * s.num_kv_heads * of_head;
  }
  return (int64_t{config.num_pages} + 1) * config.page_size * bytes;
}

int64_t KVPool::mem_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Tensor* part : {&layer.k, &layer.v, &layer.k_token_scales, &layer.v_token_scales}) {
      if (*part) bytes += part->bytes();
    }
  }
  return bytes;
}

KVLayerView KVPool::layer(int32_t layer_id) const {
  const Layer* layer = find(layer_id);
  HR_REQUIRE(layer != nullptr, ErrorCode::kInvalidArgument, "kv pool: layer ", layer_id,
             " has no keys and values; it is not an attention layer of this model");
  const Layer& owner = layer->source != nullptr ? *layer->source : *layer;
  return {.k = head_major(layout_, owner.k),
          .v = head_major(layout_, owner.v),
          .k_scale = owner.k_scale,
          .v_scale = owner.v_scale,
          .k_token_scales = without_dim(head_major(layout_, owner.k_token_scales)),
          .v_token_scales = without_dim(head_major(layout_, owner.v_token_scales))};
}

const KVPool::Layer* KVPool::find(int32_t layer_id) const {
  const auto at = std::ranges::lower_bound(layers_, layer_id, {}, &Layer::layer_id);
  return at != layers_.end() && at->layer_id == layer_id ? &*at : nullptr;
}

}  // namespace headrace
