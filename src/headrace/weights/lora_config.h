// adapter_config.json of a LoRA adapter, as PEFT reads it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/weights/config_file.h"
#include "headrace/weights/lora_targets.h"
#include "headrace/weights/module_pattern.h"

namespace headrace {

// Immutable: threads may share it.
class LoraConfig {
 public:
  // Error kModelFile: a field is missing or has another type, or an alpha is 0. Error kUnsupported, by name: another
  // method than LoRA, another task than a causal language model's, biases of the factors, token indices, parameters
  // that are no module's, replicated layers.
  explicit LoraConfig(const JsonValue& config);

  // The rank of a module's factors, and by what their product is multiplied: alpha / r, or alpha / sqrt(r)
  // (Kalajdzievski 2023). rank_pattern and alpha_pattern go before r and lora_alpha.
  struct Factors {
    int64_t rank;
    double scale;
  };
  Factors factors_of(std::string_view module) const;

  const LoraTargets& targets() const { return targets_; }
  bool has_magnitudes() const { return has_magnitudes_; }  // DoRA
  const std::vector<std::string>& modules_to_save() const { return modules_to_save_; }

 private:
  // Numbers for modules whose name ends like an expression; the first in the file that fits counts.
  class Overrides {
   public:
    explicit Overrides(const JsonValue* stated);
    double value_or(std::string_view module, double fallback) const;

   private:
    std::vector<std::pair<ModulePattern, double>> list_;
  };

  LoraTargets targets_;
  Overrides ranks_, alphas_;
  int64_t rank_;
  double alpha_;
  bool by_root_, has_magnitudes_;
  std::vector<std::string> modules_to_save_;
};

}  // namespace headrace
