// Pool of the recurrent states of Gated DeltaNet layers.
#pragma once
#include <span>

#include "headrace/core/tensor.h"

namespace headrace {

// View of one GDN layer's states in a pool's memory.
struct GDNLayerView {
  TensorView recurrent = {};  // float32 [slots, num_v_heads, head_v_dim, head_k_dim], k contiguous
  TensorView conv = {};       // [slots, conv_dim, kernel - 1]: raw inputs of the convolution, newest last
};

struct GDNPoolConfig {
  int32_t num_layers = 0;  // GDN layers of the model
  int32_t num_slots = 0;   // usable states: working and snapshots; one more is reserved
  int32_t num_k_heads = 0, num_v_heads = 0, head_k_dim = 0, head_v_dim = 0;
  int32_t conv_kernel_size = 4;
  DType conv_dtype = DType::kBF16;  // float32, bfloat16 or float16

  // Channels of the convolution: q, k and v concatenated.
  int32_t conv_dim() const { return 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim; }
};

// Owns the recurrent and the convolution state of every GDN layer, zeroed. Slots 1..num_slots are usable; slot 0 is
// reserved for padding. Layers are indexed 0-based among the GDN layers. Not thread-safe.
class GDNPool {
 public:
  static constexpr int32_t kPaddingSlot = 0;

  // Error kInvalidArgument when a size is not positive or v heads are not a multiple of k heads.
  explicit GDNPool(const GDNPoolConfig& config, DeviceRuntime& runtime = cpu_runtime());

  const GDNPoolConfig& config() const { return config_; }
  int64_t mem_bytes() const { return recurrent_.bytes() + conv_.bytes(); }
  // Returns mem_bytes() of a pool with this configuration. Errors as the constructor.
  static int64_t bytes_for(const GDNPoolConfig& config);
  int64_t slot_bytes() const { return mem_bytes() / (int64_t{config_.num_slots} + 1); }

  // Error kInvalidArgument outside [0, num_layers).
  GDNLayerView layer(int32_t gdn_layer) const;
  // Zeroes both states of every layer. Error kInvalidArgument for a slot out of 1..num_slots.
  void reset_states(std::span<const int32_t> slots);
  // Copies both states of every layer. Errors as reset_states.
  void copy_states(int32_t from, int32_t to);

 private:
  void check_slot(int32_t slot) const;
  TensorView state_of(const Tensor& states, int32_t layer, int32_t slot) const;

  GDNPoolConfig config_;
  DeviceRuntime& runtime_;  // not owned
  Tensor recurrent_;        // [layers, slots + 1, v heads, v dim, k dim]
  Tensor conv_;             // [layers, slots + 1, conv_dim, kernel - 1]
};

}  // namespace headrace
