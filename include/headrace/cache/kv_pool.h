// The paged KV cache.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "headrace/core/tensor.h"

namespace headrace {

// View of one layer's K and V, in a pool's memory or another engine's. Strides give the order, so token-major pools
// fit, too. The last dimension is contiguous.
struct KVLayerView {
  TensorView k = {};  // [pages, num_kv_heads, page_size, head_dim]
  TensorView v = {};  // [pages, num_kv_heads, page_size, v_head_dim]
  // Dequantisation factors: value = stored * scale. New values are divided by it before rounding. Positive; 1 unless
  // the dtype is float8_e4m3fn.
  float k_scale = 1, v_scale = 1;
  // Dequantisation factors of an int8 layer, written with its tokens: value = stored * scale. Null for other dtypes.
  TensorView k_token_scales = {}, v_token_scales = {};  // float32 [pages, num_kv_heads, page_size]

  explicit operator bool() const { return static_cast<bool>(k); }
  int64_t num_pages() const { return k.dim(0); }
  int64_t num_kv_heads() const { return k.dim(1); }
  int64_t page_size() const { return k.dim(2); }
  int64_t head_dim() const { return k.dim(3); }
  int64_t v_head_dim() const { return v.dim(3); }
};

struct KVLayerShape {
  int32_t num_kv_heads = 0, head_dim = 0, v_head_dim = 0;
  bool operator==(const KVLayerShape&) const = default;
};

// Layers of one shape, by global layer ids. Layers without attention have no entry, so a hybrid model pays for its
// full-attention layers only.
struct KVLayerGroup {
  KVLayerShape shape;
  std::vector<int32_t> layer_ids = {};
};

// Memory order of a pool. Its views have the same shape either way.
enum class KVLayout : uint8_t {
  kHeadMajor,   // [page, kv head, slot, dim]: a head's tokens are contiguous
  kTokenMajor,  // [page, slot, kv head, dim]: the order of other engines
};

// The scales of one layer of an FP8 pool; see KVLayerView.
struct KVLayerScales {
  int32_t layer_id = 0;
  float k_scale = 1, v_scale = 1;
};

struct KVPoolConfig {
  std::vector<KVLayerGroup> groups = {};
  int32_t num_pages = 0;       // usable pages; one more is reserved
  int32_t page_size = 64;      // tokens: 1, 16, 32, 64, 128 or 256
  DType dtype = DType::kBF16;  // float32, bfloat16, float16, float8_e4m3fn, or on a CPU int8
  KVLayout layout = KVLayout::kHeadMajor;
  struct SharedLayer {
    int32_t layer_id = 0, source_layer_id = 0;
  };
  std::vector<SharedLayer> shared_layers = {};  // layers that read another layer's K and V
  std::vector<KVLayerScales> scales = {};       // used only with float8_e4m3fn; 1 for unlisted layers
};

// Owns K and V of every attention layer, and the token scales of int8 layers, zeroed. Pages 1..num_pages are usable;
// page 0 is reserved for padding and never allocated. A token's slot is page * page_size + offset. Not thread-safe.
class KVPool {
 public:
  static constexpr int64_t kPaddingSlot = 0;

  // Error kInvalidArgument for a page size, dtype, shape or scale that is not supported, kUnsupported for a dtype that
  // the device does not run.
  explicit KVPool(const KVPoolConfig& config, DeviceRuntime& runtime = cpu_runtime());

  int32_t page_size() const { return page_size_; }
  int32_t num_pages() const { return num_pages_; }
  DType dtype() const { return dtype_; }
  int64_t mem_bytes() const;
  // Error kInvalidArgument for a page size that KVPoolConfig does not allow.
  static void check_page_size(int32_t page_size);
  // Error kUnsupported for keys and values that the device does not run: int8 is for a CPU.
  static void check_dtype_on(Device device, DType dtype);
  // Returns mem_bytes() of a pool with this configuration.
  static int64_t bytes_for(const KVPoolConfig& config);

  bool empty() const { return layers_.empty(); }  // no layer has a cache
  bool has_layer(int32_t layer_id) const { return find(layer_id) != nullptr; }
  // Returns the K and V of a global layer id (of its source, if shared). Error kInvalidArgument if the layer has no
  // cache (a GDN layer, or none of this model).
  KVLayerView layer(int32_t layer_id) const;

 private:
  struct Layer {
    int32_t layer_id = 0;
    const Layer* source = nullptr;  // not owned: another element of layers_, which does not grow after construction
    Tensor k, v;                    // dense, in layout_ order
    Tensor k_token_scales, v_token_scales;
    float k_scale = 1, v_scale = 1;
  };
  const Layer* find(int32_t layer_id) const;
  void set_scales(const std::vector<KVLayerScales>& scales);

  int32_t page_size_, num_pages_;
  DType dtype_;
  KVLayout layout_;
  std::vector<Layer> layers_;  // sorted by layer_id
};

}  // namespace headrace
