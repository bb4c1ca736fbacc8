#include "headrace/models/gguf_model_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

struct GgufArchitecture {
  std::string_view class_name, name;
};
constexpr std::array kGgufArchitectures = {
    GgufArchitecture{"LlamaForCausalLM", "llama"},
    GgufArchitecture{"Qwen2ForCausalLM", "qwen2"},
    GgufArchitecture{"Qwen3ForCausalLM", "qwen3"},
    GgufArchitecture{"Qwen3MoeForCausalLM", "qwen3moe"},
    GgufArchitecture{"Qwen3NextForCausalLM", "qwen3next"},
    GgufArchitecture{"Qwen3_5ForCausalLM", "qwen35"},
    GgufArchitecture{"Qwen3_5ForConditionalGeneration", "qwen35"},
    GgufArchitecture{"Qwen3_5MoeForCausalLM", "qwen35moe"},
    GgufArchitecture{"Qwen3_5MoeForConditionalGeneration", "qwen35moe"},
};

std::string_view architecture_of(const ModelConfig& c) {
  const auto* const found = std::ranges::find(kGgufArchitectures, c.architecture, &GgufArchitecture::class_name);
  HR_REQUIRE(found != kGgufArchitectures.end() && !c.diffusion, ErrorCode::kUnsupported, "models of ", c.architecture,
             " have no GGUF file: llama.cpp runs none as headrace does; --quantize at load works for them");
  return found->name;
}

template <class... Parts>
void require_statable(bool holds, const ModelConfig& c, const Parts&... parts) {
  HR_REQUIRE(holds, ErrorCode::kUnsupported, "GGUF files of ", architecture_of(c), " cannot state ", parts...);
}

// Keys of an architecture.
class ModelKeys {
 public:
  explicit ModelKeys(const ModelConfig& config) : c_(config), prefix_(str(architecture_of(config), ".")) {
    keys_.push_back({"general.architecture", std::string(architecture_of(config))});
  }

  std::vector<GgufKey> all() {
    add_sizes();
    add_attention();
    add_rotary();
    add_delta_net();
    add_experts();
    return std::move(keys_);
  }

 private:
  void add(std::string_view name, GgufKeyValue value) {
    keys_.push_back({prefix_ + std::string(name), std::move(value)});
  }
  void add_size(std::string_view name, int64_t size) { add(name, static_cast<uint32_t>(size)); }

  void add_sizes() {
    add_size("block_count", c_.num_layers);
    add_size("context_length", c_.context_length);
    add_size("embedding_length", c_.hidden);
    add_size("vocab_size", c_.vocab);
    if (c_.intermediate > 0) add_size("feed_forward_length", c_.intermediate);
  }

  void add_attention() {
    const SelfAttentionConfig& a = c_.attention;
    add_size("attention.head_count", a.num_heads);
    add_size("attention.head_count_kv", a.num_kv_heads);
    add_size("attention.key_length", a.head_dim);
    add_size("attention.value_length", a.head_dim);
    add("attention.layer_norm_rms_epsilon", c_.eps);
  }

  void add_rotary() {
    const RotaryConfig& r = c_.rotary;
    const double share = r.partial_rotary_factor.value_or(1);
    const auto dims = static_cast<int64_t>(static_cast<double>(c_.attention.head_dim) * share);
    add("rope.freq_base", static_cast<float>(r.theta));
    add_size("rope.dimension_count", dims);
    if (architecture_of(c_).starts_with("qwen35")) {
      // Text has one position on all axes, so that all pairs may be of the first one.
      const RotarySections s = r.sections.value_or(RotarySections{.t = static_cast<int32_t>(dims / 2)});
      add("rope.dimension_sections", std::vector<int32_t>{s.t, s.h, s.w, 0});
    }
    const bool is_scaled = r.type == "linear" || r.type == "yarn";
    require_statable(is_scaled || r.type == "default" || r.type == "llama3" || r.type == "divided", c_,
                     "the rope type '", printable(r.type), "'");
    if (!is_scaled) return;
    add("rope.scaling.type", r.type);
    add("rope.scaling.factor", static_cast<float>(r.factor.value_or(1)));
    if (r.type == "yarn") add_yarn();
  }

  void add_yarn() {
    const RotaryConfig& r = c_.rotary;
    require_statable(!r.attention_factor && !r.mscale && !r.mscale_all_dim && r.ramp == RotaryConfig::Ramp::kWhole, c_,
                     "yarn with a magnitude or a ramp of its own");
    add_size("rope.scaling.original_context_length", static_cast<int64_t>(r.original_max_position.value_or(0)));
    add("rope.scaling.yarn_beta_fast", static_cast<float>(r.beta_fast));
    add("rope.scaling.yarn_beta_slow", static_cast<float>(r.beta_slow));
  }

  // Full attention in each n-th layer, and in no other.
  bool has_interval(int64_t n) const {
    for (size_t i = 0; i < c_.layer_types.size(); ++i) {
      const bool is_full = (static_cast<int64_t>(i) + 1) % n == 0;
      if (is_full != (c_.layer_types[i] == LayerType::kFullAttention)) return false;
    }
    return true;
  }

  void add_delta_net() {
    if (c_.gdn.num_k_heads == 0) return;
    add_size("ssm.conv_kernel", c_.gdn.conv_kernel);
    add_size("ssm.state_size", c_.gdn.head_k_dim);
    add_size("ssm.group_count", c_.gdn.num_k_heads);
    add_size("ssm.time_step_rank", c_.gdn.num_v_heads);
    add_size("ssm.inner_size", c_.gdn.value_dim());
    const auto first = std::ranges::find(c_.layer_types, LayerType::kFullAttention) - c_.layer_types.begin();
    require_statable(has_interval(first + 1), c_, "layers of full attention that do not stand at equal distances");
    add_size("full_attention_interval", first + 1);
  }

  void add_experts() {
    if (c_.moe_layers.empty()) return;
    const ExpertRouterConfig& router = c_.moe.router;
    require_statable(std::ranges::all_of(c_.moe_layers, [](bool has) { return has; }), c_, "layers without experts");
    require_statable(router.norm_topk_prob == ExpertRouterConfig::Renormalise::kYes, c_,
                     "weights of experts that are not renormalised (norm_topk_prob)");
    add_size("expert_count", router.num_experts);
    add_size("expert_used_count", router.experts_per_token);
    add_size("expert_feed_forward_length", c_.moe.intermediate);
    if (c_.moe.shared_intermediate > 0) add_size("expert_shared_feed_forward_length", c_.moe.shared_intermediate);
  }

  const ModelConfig& c_;
  std::string prefix_;
  std::vector<GgufKey> keys_;
};

}  // namespace

GgufSizes gguf_sizes_of(const ModelConfig& c) {
  return {.architecture = architecture_of(c),
          .trunk_layers = c.num_layers,
          .heads = c.attention.num_heads,
          .kv_heads = c.attention.num_kv_heads,
          .num_k_heads = c.gdn.num_k_heads,
          .num_v_heads = c.gdn.num_v_heads,
          .head_k_dim = c.gdn.head_k_dim,
          .head_v_dim = c.gdn.head_v_dim};
}

std::vector<GgufKey> gguf_model_keys(const ModelConfig& config) { return ModelKeys(config).all(); }

std::vector<float> gguf_rope_divisors(const ModelConfig& config) {
  if (config.rotary.type == "divided") return {config.rotary.divisors.begin(), config.rotary.divisors.end()};
  if (config.rotary.type != "llama3") return {};
  RotaryConfig plain = config.rotary;
  plain.type = "default";
  const RotaryEmbedding scaled(config.rotary, config.attention.head_dim), unscaled(plain, config.attention.head_dim);
  std::vector<float> divisors;
  for (int64_t i = 0; i < scaled.inv_freq().numel(); ++i) {
    const double divisor = element_as_double(unscaled.inv_freq(), i) / element_as_double(scaled.inv_freq(), i);
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

}  // namespace headrace
