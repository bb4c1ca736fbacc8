#include "headrace/weights/lora_config.h"

#include <cmath>

#include "headrace/core/printable.h"

namespace headrace {
namespace {

constexpr int64_t kMaxRank = 1 << 16;

// Set when it is neither absent, null, false nor empty.
bool is_set(const JsonValue* value) {
  if (value == nullptr) return false;
  if (value->kind() == JsonValue::Kind::kBool) return value->as_bool();
  if (value->is_array()) return !value->as_array().empty();
  if (value->is_object()) return !value->as_object().empty();
  return true;
}

// A classifier's adapter belongs to a head that the model here does not have.
void refuse_other_tasks(const JsonValue& config) {
  const std::string task = config.string_or("task_type", "CAUSAL_LM");
  HR_REQUIRE(task == "CAUSAL_LM", ErrorCode::kUnsupported, config.where(), " has task_type '", printable(task),
             "'; built are: CAUSAL_LM, null");
}

void refuse_other_methods(const JsonValue& config) {
  const std::string method = config.string_or("peft_type", "LORA"), bias = config.string_or("bias", "none");
  HR_REQUIRE(method == "LORA", ErrorCode::kUnsupported, config.where(), " has peft_type '", printable(method),
             "'; built are: LORA");
  HR_REQUIRE(bias == "none" || bias == "lora_only" || bias == "all", ErrorCode::kUnsupported, config.where(),
             " has bias '", printable(bias), "'; built are: none, lora_only, all");
  const JsonValue* init = config.find("init_lora_weights");  // some ways to begin change the base weights too
  HR_REQUIRE(init == nullptr || !init->is_string() || init->as_string() == "gaussian", ErrorCode::kUnsupported,
             config.where(), " has init_lora_weights '",
             init != nullptr && init->is_string() ? printable(init->as_string()) : "",
             "'; built are: true, false, gaussian");
  for (const char* key :
       {"use_qalora", "use_bdlora", "fan_in_fan_out", "lora_bias", "megatron_config", "trainable_token_indices",
        "target_parameters", "layer_replication", "corda_config", "eva_config", "kasa_config", "velora_config",
        "monteclora_config", "arrow_config", "lora_ga_config", "loftq_config", "alora_invocation_tokens"}) {
    HR_REQUIRE(!is_set(config.find(key)), ErrorCode::kUnsupported, config.where(), " sets ", key,
               ", which is not supported");
  }
}

const JsonValue& checked(const JsonValue& config) {
  refuse_other_methods(config);
  refuse_other_tasks(config);
  return config;
}

std::vector<std::string> names_of(const JsonValue* list) {
  return list != nullptr ? list->as_strings() : std::vector<std::string>();
}

void require_adds(const JsonValue& alpha) {
  HR_REQUIRE(alpha.as_float() != 0, ErrorCode::kModelFile, alpha.where(), " is 0, with which the adapter adds nothing");
}

}  // namespace

LoraConfig::Overrides::Overrides(const JsonValue* stated) {
  if (stated == nullptr) return;
  for (const auto& [key, value] : stated->as_object()) {
    list_.emplace_back(ModulePattern("(.*\\.)?(" + key + ")", stated->where()), value.as_float());
  }
}

double LoraConfig::Overrides::value_or(std::string_view module, double fallback) const {
  for (const auto& [pattern, value] : list_) {
    if (pattern.match(module)) return value;
  }
  return fallback;
}

LoraConfig::LoraConfig(const JsonValue& config)
    : targets_(checked(config)),
      ranks_(config.find("rank_pattern")),
      alphas_(config.find("alpha_pattern")),
      rank_(config.at("r").as_int(1, kMaxRank)),
      alpha_(config.at("lora_alpha").as_float()),
      by_root_(config.bool_or("use_rslora", false)),
      has_magnitudes_(config.bool_or("use_dora", false)),
      modules_to_save_(names_of(config.find("modules_to_save"))) {
  require_adds(config.at("lora_alpha"));
  if (const JsonValue* alphas = config.find("alpha_pattern"); alphas != nullptr) {
    for (const auto& [key, alpha] : alphas->as_object()) require_adds(alpha);
  }
  if (const JsonValue* ranks = config.find("rank_pattern"); ranks != nullptr) {
    for (const auto& [key, rank] : ranks->as_object()) rank.as_int(1, kMaxRank);
  }
}

LoraConfig::Factors LoraConfig::factors_of(std::string_view module) const {
  const double rank = ranks_.value_or(module, static_cast<double>(rank_)), alpha = alphas_.value_or(module, alpha_);
  return {static_cast<int64_t>(rank), alpha / (by_root_ ? std::sqrt(rank) : rank)};
}

}  // namespace headrace
