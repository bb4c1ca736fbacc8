#include "headrace/models/model_config.h"

#include <algorithm>

#include "headrace/base/file_exists.h"

namespace headrace {
namespace {

constexpr int64_t kMaxLayers = 4096;

void read_number(const JsonValue& owner, const char* key, std::optional<double>& number) {
  if (const JsonValue* stated = owner.find(key)) number = stated->as_float();
}

RotaryConfig rotary_of(const JsonValue& text) {
  // v5 files keep everything in rope_parameters; v4 files have rope_theta beside a rope_scaling that may be null.
  RotaryConfig c{.theta = text.float_or("rope_theta", 0)};
  read_number(text, "partial_rotary_factor", c.partial_rotary_factor);
  const JsonValue *v5 = text.find("rope_parameters"), *v4 = text.find("rope_scaling");
  if (v5 != nullptr) read_rope(*v5, c);
  const RotaryConfig without = c;
  if (v4 != nullptr) read_rope(*v4, c);
  HR_REQUIRE(v5 == nullptr || c == without, ErrorCode::kModelFile, v4->where(),
             " and rope_parameters differ, expected one of them, or the same in both");
  read_number(text, "original_max_position_embeddings", c.original_max_position);  // goes before the one inside
  return c;
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
               " names '", names[i], "'; built are: full_attention, linear_attention");
    if (names[i] == "linear_attention") types[i] = LayerType::kLinearAttention;
  }
  return types;
}

void append_eos(const JsonValue& owner, int64_t vocab, std::vector<int32_t>& ids) {
  const JsonValue* eos = owner.find("eos_token_id");
  if (eos == nullptr) return;
  const auto found = eos->is_array() ? eos->as_ints(0, vocab - 1) : std::vector<int64_t>{eos->as_int(0, vocab - 1)};
  for (const int64_t id : found) ids.push_back(static_cast<int32_t>(id));
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
  read_sections(rope, c);
  for (const char* key : {"mscale", "mscale_all_dim", "truncate"}) {
    HR_REQUIRE(c.type != "yarn" || rope.find(key) == nullptr, ErrorCode::kUnsupported, rope.where(), " has ", key,
               ", which is not built");
  }
}

const JsonValue& text_config_of(const JsonValue& root) {
  const JsonValue* text = root.find("text_config");
  return text != nullptr ? *text : root;
}

DType stored_dtype_of(const JsonValue& root) {
  const JsonValue& text = text_config_of(root);
  const std::string name = text.string_or(
      "dtype", text.string_or("torch_dtype", root.string_or("dtype", root.string_or("torch_dtype", "bfloat16"))));
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  throw Error(ErrorCode::kModelFile,
              str(root.where(), " has dtype '", name, "', expected float32, bfloat16 or float16"));
}

ModelConfig common_config(const JsonValue& root) {
  const JsonValue& text = text_config_of(root);
  ModelConfig c;
  c.hidden = text.at("hidden_size").as_int(1, kMaxModelDim);
  c.vocab = text.at("vocab_size").as_int(1, kMaxModelDim);
  c.num_layers = static_cast<int32_t>(text.at("num_hidden_layers").as_int(1, kMaxLayers));
  c.context_length = static_cast<int32_t>(text.int_or("max_position_embeddings", 4096, 1, int64_t{1} << 30));
  c.intermediate = text.int_or("intermediate_size", 0, 0, kMaxModelDim);
  c.eps = static_cast<float>(text.float_or("rms_norm_eps", 1e-6));
  c.tied_head = text.bool_or("tie_word_embeddings", root.bool_or("tie_word_embeddings", false));
  const auto heads = static_cast<int32_t>(text.at("num_attention_heads").as_int(1, 1 << 16));
  const auto kv_heads = static_cast<int32_t>(text.int_or("num_key_value_heads", heads, 1, 1 << 16));
  HR_REQUIRE(heads % kv_heads == 0, ErrorCode::kModelFile, text.at("num_attention_heads").where(), " is ", heads,
             ", expected a multiple of num_key_value_heads ", kv_heads);
  HR_REQUIRE(text.find("head_dim") != nullptr || c.hidden % heads == 0, ErrorCode::kModelFile,
             text.at("hidden_size").where(), " is ", c.hidden, ", expected a multiple of ", heads, " heads");
  c.attention = {.hidden = c.hidden,
                 .num_heads = heads,
                 .num_kv_heads = kv_heads,
                 .head_dim = static_cast<int32_t>(text.int_or("head_dim", c.hidden / heads, 1, 1 << 16)),
                 .eps = c.eps};
  const std::string activation = text.string_or("hidden_act", "silu");
  HR_REQUIRE(activation == "silu" || activation == "swish", ErrorCode::kUnsupported, text.where(), " has hidden_act '",
             activation, "'; built are: silu, swish");
  HR_REQUIRE(!text.bool_or("use_sliding_window", false), ErrorCode::kUnsupported, text.at("use_sliding_window").where(),
             " is true; sliding-window layers of this family are not built");
  c.layer_types = layer_types_of(text, c.num_layers);
  c.rotary = rotary_of(text);
  c.stored_dtype = stored_dtype_of(root);
  return c;
}

void check(const ModelConfig& c) {
  HR_REQUIRE(c.eps >= 0, ErrorCode::kModelFile, "config.json: rms_norm_eps is ", c.eps, ", expected 0 or more");
  for (size_t i = 0; i < c.layer_types.size(); ++i) {
    HR_REQUIRE(c.layer_types[i] == LayerType::kFullAttention || c.gdn.num_k_heads > 0, ErrorCode::kUnsupported,
               "config.json: layer_types[", i, "] is linear_attention, which ", c.architecture, " does not have");
    const bool moe = !c.moe_layers.empty() && c.moe_layers[i];
    HR_REQUIRE(moe || c.intermediate > 0, ErrorCode::kModelFile, "config.json has no intermediate_size, which layer ",
               i, " needs");
  }
}

std::vector<int32_t> eos_ids_of(const JsonValue& root, const std::filesystem::path& directory, int64_t vocab,
                                std::vector<int32_t> ids) {
  append_eos(root, vocab, ids);
  if (root.find("text_config") != nullptr) append_eos(text_config_of(root), vocab, ids);
  const std::filesystem::path generation = directory / "generation_config.json";
  if (file_exists(generation)) append_eos(read_json_file(generation), vocab, ids);
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

}  // namespace headrace
