#include "headrace/models/model_config.h"

#include <algorithm>

#include "headrace/core/printable.h"

namespace headrace {
namespace {

constexpr int64_t kMaxLayers = 4096, kMaxContext = int64_t{1} << 30;

void read_number(const JsonValue& owner, const char* key, std::optional<double>& number) {
  if (const JsonValue* stated = owner.find(key)) number = stated->as_float();
}

RotaryConfig stated_rotary(const JsonValue& text, double theta) {
  // v5 files keep everything in rope_parameters; v4 files have rope_theta beside a rope_scaling that may be null.
  RotaryConfig c{.theta = text.float_or("rope_theta", theta)};
  read_number(text, "partial_rotary_factor", c.partial_rotary_factor);
  const JsonValue *v5 = text.find("rope_parameters"), *v4 = text.find("rope_scaling");
  if (v5 != nullptr) read_rope(*v5, c);
  const RotaryConfig without = c;
  if (v4 != nullptr) read_rope(*v4, c);
  HR_REQUIRE(v5 == nullptr || c == without, ErrorCode::kModelFile, v4->where(),
             " and rope_parameters differ, expected one of them, or the same in both");
  // takes precedence over the nested one
  read_number(text, "original_max_position_embeddings", c.original_max_position);
  return c;
}

// Drops partial_rotary_factor for a class that rotates whole heads and ignores it; refuses it with scaled frequencies.
void require_whole_heads(const JsonValue& text, RotaryConfig& c) {
  HR_REQUIRE(c.type == "default" || c.partial_rotary_factor.value_or(1) == 1, ErrorCode::kUnsupported, text.where(),
             " has partial_rotary_factor ", c.partial_rotary_factor.value_or(1), " with rope type '", printable(c.type),
             "', which is not built for this family");
  c.partial_rotary_factor.reset();
}

RotaryConfig rotary_of(const JsonValue& text, const ClassDefaults& defaults, int32_t context) {
  RotaryConfig c = stated_rotary(text, defaults.rope_theta);
  if (!defaults.partial_rotary) {
    require_whole_heads(text, c);
  } else if (!c.partial_rotary_factor) {
    c.partial_rotary_factor = defaults.partial_rotary;
  }
  if (!c.original_max_position && (c.type == "yarn" || c.type == "llama3")) c.original_max_position = context;
  return c;
}

// yarn extends the trained context, even if max_position_embeddings does not say so.
int32_t extended_context(int32_t context, const RotaryConfig& c) {
  if (c.type != "yarn") return context;
  const double extended = c.original_max_position.value_or(0) * c.factor.value_or(1);
  return std::max(context, static_cast<int32_t>(std::clamp(extended, 1.0, static_cast<double>(kMaxContext))));
}

std::vector<LayerType> layer_types_of(const JsonValue& text, int32_t layers) {
  std::vector<LayerType> types(static_cast<size_t>(layers), LayerType::kFullAttention);
  const JsonValue* listed = text.find("layer_types");
  if (listed == nullptr) return types;
  const std::vector<std::string> names = listed->as_strings();
  HR_REQUIRE(names.size() == types.size(), ErrorCode::kModelFile, listed->where(), " has ", names.size(),
             " entries, expected one for each of ", layers, " layers");
  for (size_t i = 0; i < names.size(); ++i) {
    HR_REQUIRE(names[i] == "full_attention" || names[i] == "linear_attention", ErrorCode::kUnsupported, listed->where(),
               " names '", printable(names[i]), "'; built are: full_attention, linear_attention");
    if (names[i] == "linear_attention") types[i] = LayerType::kLinearAttention;
  }
  return types;
}

// An explicit null means num_attention_heads; a missing field, the class's default.
std::optional<int32_t> default_kv_heads(const JsonValue& text, const ClassDefaults& defaults) {
  const auto is_null = [](const JsonValue::Member& m) {
    return m.first == "num_key_value_heads" && m.second.is_null();
  };
  return std::ranges::any_of(text.as_object(), is_null) ? std::nullopt : defaults.num_kv_heads;
}

SelfAttentionConfig attention_of(const JsonValue& text, const ModelConfig& c, const ClassDefaults& defaults) {
  const auto heads = static_cast<int32_t>(text.int_or("num_attention_heads", defaults.num_heads, 1, 1 << 16));
  const int64_t fallback = default_kv_heads(text, defaults).value_or(heads);
  const auto kv_heads = static_cast<int32_t>(text.int_or("num_key_value_heads", fallback, 1, 1 << 16));
  HR_REQUIRE(heads % kv_heads == 0, ErrorCode::kModelFile, text.where(), " has num_attention_heads ", heads,
             ", expected a multiple of num_key_value_heads ", kv_heads);
  const bool states_size = defaults.head_dim || text.find("head_dim") != nullptr;
  HR_REQUIRE(states_size || c.hidden % heads == 0, ErrorCode::kModelFile, text.where(), " has hidden_size ", c.hidden,
             ", expected a multiple of ", heads, " heads");
  const int64_t head_dim = text.int_or("head_dim", defaults.head_dim.value_or(c.hidden / heads), 1, 1 << 16);
  return {.hidden = c.hidden,
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = static_cast<int32_t>(head_dim),
          .eps = c.eps};
}

void append_eos(const JsonValue& owner, int64_t vocab, const LogCallback& log, std::vector<int32_t>& ids) {
  const JsonValue* eos = owner.find("eos_token_id");
  if (eos == nullptr) return;
  const auto append = [&](const JsonValue& id) {
    try {
      ids.push_back(static_cast<int32_t>(id.as_int(0, vocab - 1)));
    } catch (const Error& e) {
      if (log) log(LogLevel::kWarning, str(e.what(), "; this end token is ignored"));
    }
  };
  if (!eos->is_array()) return append(*eos);
  for (const JsonValue& id : eos->as_array()) append(id);
}

void read_sections(const JsonValue& rope, RotaryConfig& c) {
  const JsonValue* stated = rope.find("mrope_section");
  if (stated == nullptr) return;
  const std::vector<int64_t> pairs = stated->as_ints(0, kMaxModelDim);
  HR_REQUIRE(pairs.size() == RotarySections::kAxes, ErrorCode::kModelFile, stated->where(), " has ", pairs.size(),
             " entries, expected those of time, height and width");
  using Layout = RotarySections::Layout;
  c.sections =
      RotarySections{.t = static_cast<int32_t>(pairs[0]),
                     .h = static_cast<int32_t>(pairs[1]),
                     .w = static_cast<int32_t>(pairs[2]),
                     .layout = rope.bool_or("mrope_interleaved", false) ? Layout::kInterleaved : Layout::kInRuns};
}

}  // namespace

void read_rope(const JsonValue& rope, RotaryConfig& c) {
  c.type = rope.string_or("rope_type", rope.string_or("type", "default"));
  c.theta = rope.float_or("rope_theta", c.theta);
  read_number(rope, "partial_rotary_factor", c.partial_rotary_factor);
  read_number(rope, "factor", c.factor);
  read_number(rope, "low_freq_factor", c.low_freq_factor);
  read_number(rope, "high_freq_factor", c.high_freq_factor);
  read_number(rope, "original_max_position_embeddings", c.original_max_position);
  c.beta_fast = rope.float_or("beta_fast", c.beta_fast);
  c.beta_slow = rope.float_or("beta_slow", c.beta_slow);
  read_number(rope, "attention_factor", c.attention_factor);
  read_number(rope, "mscale", c.mscale);
  read_number(rope, "mscale_all_dim", c.mscale_all_dim);
  if (!rope.bool_or("truncate", true)) c.ramp = RotaryConfig::Ramp::kExact;
  read_sections(rope, c);
  if (const JsonValue* divisors = rope.find("divisors")) {
    for (const JsonValue& each : divisors->as_array()) c.divisors.push_back(each.as_float());
  }
}

const JsonValue& text_config_of(const JsonValue& root) {
  const JsonValue* text = root.find("text_config");
  return text != nullptr ? *text : root;
}

std::optional<DType> stored_dtype_of(const JsonValue& root) {
  const JsonValue& text = text_config_of(root);
  const std::string name = text.string_or(
      "dtype", text.string_or("torch_dtype", root.string_or("dtype", root.string_or("torch_dtype", ""))));
  if (name.empty()) return std::nullopt;
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  throw Error(ErrorCode::kModelFile,
              str(root.where(), " has dtype '", printable(name), "', expected float32, bfloat16 or float16"));
}

ModelConfig common_config(const JsonValue& root, const ClassDefaults& defaults) {
  const JsonValue& text = text_config_of(root);
  ModelConfig c;
  c.hidden = text.int_or("hidden_size", defaults.hidden, 1, kMaxModelDim);
  c.vocab = text.int_or("vocab_size", defaults.vocab, 1, kMaxModelDim);
  c.num_layers = static_cast<int32_t>(text.int_or("num_hidden_layers", defaults.num_layers, 1, kMaxLayers));
  c.context_length =
      static_cast<int32_t>(text.int_or("max_position_embeddings", defaults.context_length, 1, kMaxContext));
  c.intermediate = text.int_or("intermediate_size", defaults.intermediate, 0, kMaxModelDim);
  c.eps = static_cast<float>(text.float_or("rms_norm_eps", defaults.eps));
  c.tied_head = text.bool_or("tie_word_embeddings", root.bool_or("tie_word_embeddings", false));
  c.attention = attention_of(text, c, defaults);
  const std::string activation = text.string_or("hidden_act", "silu");
  HR_REQUIRE(activation == "silu" || activation == "swish", ErrorCode::kUnsupported, text.where(), " has hidden_act '",
             printable(activation), "'; built are: silu, swish");
  HR_REQUIRE(!text.bool_or("use_sliding_window", false), ErrorCode::kUnsupported, text.where(),
             " has use_sliding_window true; sliding-window layers of this family are not built");
  c.layer_types = layer_types_of(text, c.num_layers);
  c.rotary = rotary_of(text, defaults, c.context_length);
  c.context_length = extended_context(c.context_length, c.rotary);
  c.stored_dtype = stored_dtype_of(root);
  return c;
}

void check(const ModelConfig& c) {
  HR_REQUIRE(c.eps >= 0, ErrorCode::kModelFile, "config.json: rms_norm_eps is ", c.eps, ", expected 0 or more");
  for (size_t i = 0; i < c.layer_types.size(); ++i) {
    HR_REQUIRE(c.layer_types[i] == LayerType::kFullAttention || c.gdn.num_k_heads > 0, ErrorCode::kUnsupported,
               "config.json: layer_types[", i, "] is linear_attention, which ", c.architecture, " does not have");
    const bool moe = !c.moe_layers.empty() && c.moe_layers[i];
    HR_REQUIRE(moe || c.intermediate > 0, ErrorCode::kModelFile,
               "config.json: intermediate_size is 0, expected 1 or more for layer ", i);
  }
}

std::vector<int32_t> eos_ids_of(const ModelDescription& model, int64_t vocab, std::vector<int32_t> ids,
                                const LogCallback& log) {
  append_eos(model.config, vocab, log, ids);
  if (model.config.find("text_config") != nullptr) append_eos(text_config_of(model.config), vocab, log, ids);
  if (const JsonValue* file = model.generation_config()) append_eos(*file, vocab, log, ids);
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

QuantModel quant_model_of(const ModelConfig& config) {
  return {.num_layers = config.num_layers,
          .head = config.tied_head ? QuantModel::Head::kIsEmbedding : QuantModel::Head::kOwn};
}

}  // namespace headrace
