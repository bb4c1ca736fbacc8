#include "headrace/weights/lora_adapter.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "headrace/base/file_exists.h"
#include "headrace/base/parallel.h"
#include "headrace/weights/config_file.h"

namespace headrace {
namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";  // of every module that PEFT wraps
constexpr std::string_view kWeight = ".weight";            // of the tensor of a module

// One of several networks of a layer.
bool is_expert(std::string_view weight) { return weight.find(".experts.") != weight.npos; }

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
  HR_REQUIRE(bias == "none", ErrorCode::kUnsupported, config.where(), " has bias '", printable(bias),
             "'; built are: none");
  const JsonValue* init = config.find("init_lora_weights");  // some ways to begin change the base weights too
  HR_REQUIRE(init == nullptr || !init->is_string() || init->as_string() == "gaussian", ErrorCode::kUnsupported,
             config.where(), " has init_lora_weights '", init != nullptr && init->is_string() ? init->as_string() : "",
             "'; built are: true, false, gaussian");
  for (const char* key : {"use_dora",
                          "use_qalora",
                          "use_bdlora",
                          "modules_to_save",
                          "rank_pattern",
                          "alpha_pattern",
                          "fan_in_fan_out",
                          "lora_bias",
                          "megatron_config",
                          "trainable_token_indices",
                          "target_parameters",
                          "layer_replication",
                          "corda_config",
                          "eva_config",
                          "kasa_config",
                          "velora_config",
                          "monteclora_config",
                          "arrow_config",
                          "lora_ga_config",
                          "loftq_config",
                          "alora_invocation_tokens"}) {
    HR_REQUIRE(!is_set(config.find(key)), ErrorCode::kUnsupported, config.where(), " sets ", key,
               ", which is not supported");
  }
}

}  // namespace

LoraAdapter LoraAdapter::open(const std::filesystem::path& directory, SigbusGuard* guard) {
  const JsonValue config = read_json_file(directory / kConfigFile);
  refuse_other_methods(config);
  refuse_other_tasks(config);
  const int64_t rank = config.at("r").as_int(1, 1 << 16);
  const double alpha = config.at("lora_alpha").as_float();
  HR_REQUIRE(alpha != 0, ErrorCode::kModelFile, config.where(),
             " has lora_alpha 0, with which the adapter adds nothing");
  const bool by_root = config.bool_or("use_rslora", false);  // Kalajdzievski 2023: alpha / sqrt(r)
  HR_REQUIRE(file_exists(directory / kWeightsFile) || !file_exists(directory / "adapter_model.bin"),
             ErrorCode::kUnsupported, directory.string(), ": adapter_model.bin is a pickle file; supported is ",
             kWeightsFile);
  const double divisor = by_root ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank);
  return LoraAdapter(SafetensorsFile(directory / kWeightsFile, guard), LoraTargets(config), alpha / divisor, rank);
}

LoraAdapter::LoraAdapter(SafetensorsFile file, LoraTargets targets, double scale, int64_t rank)
    : file_(std::move(file)), targets_(std::move(targets)), scale_(scale) {
  for (const SafetensorsEntry& entry : file_.entries()) add(entry);
  HR_REQUIRE(!factors_.empty(), ErrorCode::kModelFile, name(), ": has no factors");
  for (const auto& [weight, factors] : factors_) check(weight, factors, rank);
  adapts_experts_ = std::ranges::any_of(factors_, [](const auto& each) { return is_expert(each.first); });
}

// "base_model.model.<module>.lora_A.weight", or ".lora_A.<adapter's name>.weight" from before it was saved.
void LoraAdapter::add(const SafetensorsEntry& entry) {
  const std::string_view stored = entry.name;
  const size_t at = stored.rfind(".lora_");
  const bool named =
      stored.starts_with(kPrefix) && stored.ends_with(kWeight) && at != stored.npos && at > kPrefix.size();
  const std::string_view kind = named ? stored.substr(at + 6, 2) : std::string_view();
  HR_REQUIRE(kind == "A." || kind == "B.", ErrorCode::kUnsupported, name(), ": tensor '", printable(entry.name),
             "' is no factor of a linear layer, expected ", kPrefix, "<module>.lora_A.weight or lora_B");
  HR_REQUIRE(entry.shape.size() == 2 && entry.dtype->dtype, ErrorCode::kModelFile, name(), ": tensor '",
             printable(entry.name), "' is no matrix of floats");
  const std::string_view module = stored.substr(kPrefix.size(), at - kPrefix.size());
  Factors& factors = factors_[str(module, kWeight)];
  const SafetensorsEntry*& slot = kind == "A." ? factors.a : factors.b;
  HR_REQUIRE(slot == nullptr, ErrorCode::kModelFile, name(), ": tensor '", printable(entry.name),
             "' is there under a second name");
  slot = &entry;
}

void LoraAdapter::check(const std::string& weight, const Factors& f, int64_t rank) const {
  HR_REQUIRE(f.a != nullptr && f.b != nullptr, ErrorCode::kModelFile, name(), ": '", printable(weight),
             "' has no lora_", f.a == nullptr ? "A" : "B");
  HR_REQUIRE(f.rank() == rank && static_cast<int64_t>(f.b->shape[1]) == rank, ErrorCode::kModelFile, name(), ": '",
             printable(weight), "' has ranks ", f.rank(), " and ", f.b->shape[1], ", expected ", rank, " as in ",
             kConfigFile);
}

std::vector<std::string> LoraAdapter::weights() const {
  std::vector<std::string> names;
  for (const auto& [weight, factors] : factors_) names.push_back(weight);
  return names;
}

void LoraAdapter::require_fits(std::string_view weight, const Shape& shape) const {
  const Factors& f = factors_.find(weight)->second;
  const Shape own{static_cast<int64_t>(f.b->shape[0]), static_cast<int64_t>(f.a->shape[1])};
  HR_REQUIRE(own == shape, ErrorCode::kModelFile, name(), ": the factors of '", printable(weight), "' make ", own,
             ", expected ", shape);
}

void LoraAdapter::require_adapts_what_it_names(std::string_view weight, const Shape& shape) const {
  if (adapts(weight) || shape.rank() != 2 || !weight.ends_with(kWeight)) return;
  if (is_expert(weight) && !adapts_experts_) return;
  HR_REQUIRE(!targets_.contains(weight.substr(0, weight.size() - kWeight.size())), ErrorCode::kModelFile, name(),
             ": has no factors of '", printable(weight), "', which target_modules in ", kConfigFile, " names");
}

std::vector<double> LoraAdapter::values(const SafetensorsEntry& entry) const {
  const Tensor copy(*entry.dtype->dtype, {static_cast<int64_t>(entry.shape[0]), static_cast<int64_t>(entry.shape[1])});
  std::memcpy(copy.data(), file_.data(entry), entry.end - entry.begin);  // not always aligned where it lies
  std::vector<double> out(static_cast<size_t>(copy.numel()));
  for (int64_t i = 0; i < copy.numel(); ++i) {
    const double value = element_as_double(copy, i);
    HR_REQUIRE(std::isfinite(value), ErrorCode::kModelFile, name(), ": tensor '", printable(entry.name), "' holds ",
               value, " at element ", i, ", expected finite numbers");
    out[static_cast<size_t>(i)] = value;
  }
  return out;
}

// Source: Hu et al. 2021, LoRA.
Tensor LoraAdapter::merged(std::string_view weight, const TensorView& base, int threads) const {
  const Factors& f = factors_.find(weight)->second;
  const std::vector<double> a = values(*f.a), b = values(*f.b);
  const auto in = static_cast<size_t>(base.dim(1)), rank = static_cast<size_t>(f.rank());
  Tensor result(base.dtype(), base.shape());
  std::atomic<bool> overflows = false;
  parallel_for(threads, base.dim(0), [&](int64_t o) {
    std::vector<double> delta(in);
    for (size_t r = 0; r < rank; ++r) {
      const double factor = scale_ * b[static_cast<size_t>(o) * rank + r];
      for (size_t i = 0; i < in; ++i) delta[i] += factor * a[r * in + i];
    }
    for (size_t i = 0; i < in; ++i) {
      const int64_t at = o * base.dim(1) + static_cast<int64_t>(i);
      const double before = element_as_double(base, at);
      set_element(result, at, before + delta[i]);
      if (std::isfinite(before) && !std::isfinite(element_as_double(result, at))) overflows = true;
    }
  });
  HR_REQUIRE(!overflows, ErrorCode::kModelFile, name(), ": the factors of '", printable(weight), "' add more than ",
             name_of(base.dtype()), " holds");
  return result;
}

}  // namespace headrace
