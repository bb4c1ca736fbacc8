// Rotary position embedding. Frequencies are computed once per model.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "headrace/layers/layer_context.h"
#include "headrace/ops/rotary_embedding.h"

namespace headrace {

// The parameters in config.json. Types: "default", "linear", "llama3", "yarn", "proportional", and of a GGUF file
// "divided".
struct RotaryConfig {
  std::string type = "default";
  double theta = 0;                             // 0: neither stated nor a default of the class; refused
  std::optional<double> partial_rotary_factor;  // in (0, 1]; absent: 1
  // Absent: not stated; refused if the type needs the number.
  std::optional<double> factor;                             // all but default; absent: 1 for proportional alone
  std::optional<double> low_freq_factor, high_freq_factor;  // llama3
  std::optional<double> original_max_position;              // llama3, yarn
  double beta_fast = 32, beta_slow = 1;                     // yarn
  // yarn; absent: 0.1 ln(factor) + 1, at least 1, or the ratio of these for mscale and mscale_all_dim if both are
  // stated.
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  std::vector<double> divisors;  // divided: of each pair's frequency
  enum class Ramp : uint8_t {
    kWhole,
    kExact
  } ramp = Ramp::kWhole;  // yarn: the ramp ends at whole pairs, unless truncate is false
  // Only validated: text tokens have one position on all axes, so the rotation equals the plain one.
  std::optional<RotarySections> sections;

  bool operator==(const RotaryConfig&) const = default;
};

// Immutable; callable from any thread.
class RotaryEmbedding {
 public:
  RotaryEmbedding() = default;
  // Error kModelFile for a missing or invalid number and for an odd size; kUnsupported for another type, by name.
  RotaryEmbedding(const RotaryConfig& config, int64_t head_dim, DeviceRuntime& runtime = cpu_runtime());

  // Rotates x [tokens, heads, head_dim] in place.
  void forward(const LayerContext& context, const TensorView& x, const TensorView& positions) const {
    context.ops->rotary_embedding({.x = x, .positions = positions, .inv_freq = inv_freq_, .magnitude = magnitude_},
                                  context.op);
  }
  TensorView inv_freq() const { return inv_freq_; }
  float magnitude() const { return magnitude_; }

 private:
  Tensor inv_freq_;  // float32 [R / 2]
  float magnitude_ = 1;
};

}  // namespace headrace
