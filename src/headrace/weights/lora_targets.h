// Which linear layers an adapter's config says that it changes, as PEFT reads it.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/weights/config_file.h"
#include "headrace/weights/module_pattern.h"

namespace headrace {

// Immutable: threads may share it.
class LoraTargets {
 public:
  // target_modules, exclude_modules, layers_to_transform and layers_pattern of adapter_config.json. Error kModelFile:
  // another type, or a regular expression that does not compile.
  explicit LoraTargets(const JsonValue& config);

  // Returns true if `module` ("model.layers.0.mlp.up_proj") is a target. No module is, if the config names none.
  bool contains(std::string_view module) const;

 private:
  // A list of the last parts of names, or a regular expression of whole names.
  class Names {
   public:
    explicit Names(const JsonValue* value);  // null: no name
    bool match(std::string_view module) const;

   private:
    std::vector<std::string> ends_;
    std::optional<ModulePattern> pattern_;
  };
  bool in_layers(std::string_view module) const;

  bool all_linear_;  // "all-linear": those of the layers, but not their routers
  Names targets_, excluded_;
  std::set<int64_t> layers_;           // empty: all
  std::vector<std::string> patterns_;  // what stands in front of a layer's number; empty: anything
};

}  // namespace headrace
