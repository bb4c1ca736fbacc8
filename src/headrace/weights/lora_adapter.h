// A low-rank adapter in PEFT's format: for some weights W [out, in] of a checkpoint, factors A [rank, in] and
// B [out, rank] with W' = W + scale B A.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/tensor.h"
#include "headrace/weights/lora_targets.h"
#include "headrace/weights/safetensors_file.h"

namespace headrace {

// Owns its mapping. Immutable: threads may share it.
class LoraAdapter {
 public:
  // Reads adapter_config.json and adapter_model.safetensors. Error kModelFile: a file or a field is missing, a factor
  // without its partner, ranks that disagree with the config; kUnsupported, by name: another method than LoRA, another
  // task than a causal language model's, DoRA, biases, whole modules that were saved, ranks or alphas by pattern,
  // pickle files.
  static LoraAdapter open(const std::filesystem::path& directory, SigbusGuard* guard = nullptr);

  // The names of the weights that it changes, as checkpoints store them ("model.layers.0.self_attn.q_proj.weight").
  std::vector<std::string> weights() const;
  bool adapts(std::string_view weight) const { return factors_.contains(weight); }

  // Error kModelFile unless `weight` of this shape can take its factors: both shapes are named.
  void require_fits(std::string_view weight, const Shape& shape) const;
  // Error kModelFile for a weight that the config says is adapted, and that has no factors. Experts may lie together in
  // the network that it was trained on, where none of them is a linear layer: then the adapter has factors of none.
  void require_adapts_what_it_names(std::string_view weight, const Shape& shape) const;
  // W' in the dtype of `base` [out, in], from sums in double. `weight` is one of weights(), and fits. Error kModelFile:
  // a factor holds NaN or an infinity, or finite ones make one.
  Tensor merged(std::string_view weight, const TensorView& base, int threads) const;

  const std::string& name() const { return file_.name(); }
  int64_t rank() const { return factors_.begin()->second.rank(); }

 private:
  struct Factors {
    const SafetensorsEntry *a = nullptr, *b = nullptr;  // not owned: entries of file_
    int64_t rank() const { return static_cast<int64_t>(a->shape[0]); }
  };
  LoraAdapter(SafetensorsFile file, LoraTargets targets, double scale, int64_t rank);
  void add(const SafetensorsEntry& entry);
  void check(const std::string& weight, const Factors& factors, int64_t rank) const;
  std::vector<double> values(const SafetensorsEntry& entry) const;

  SafetensorsFile file_;
  LoraTargets targets_;
  double scale_;
  std::map<std::string, Factors, std::less<>> factors_;  // by weight
  bool adapts_experts_ = false;
};

}  // namespace headrace
