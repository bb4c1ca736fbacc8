#include "headrace/weights/gguf_config.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "headrace/core/printable.h"
#include "headrace/weights/gguf_generation.h"
#include "headrace/weights/gguf_keys.h"
#include "headrace/weights/gguf_parts.h"
#include "headrace/weights/gguf_rotary.h"
#include "headrace/weights/json_members.h"

namespace headrace {
namespace {

enum class Experts : uint8_t { kNone, kRouted, kShared };  // kShared: routed ones and one that every token goes through
enum class Mixer : uint8_t { kAttention, kHybrid };        // kHybrid: with layers of Gated DeltaNet

struct Family {
  std::string_view name, class_name;  // in the file; in config.json
  Mixer mixer = Mixer::kAttention;
  Experts experts = Experts::kNone;
};

constexpr std::array kFamilies = {
    Family{"llama", "LlamaForCausalLM"},
    Family{"qwen2", "Qwen2ForCausalLM"},
    Family{"qwen3", "Qwen3ForCausalLM"},
    Family{"qwen3moe", "Qwen3MoeForCausalLM", Mixer::kAttention, Experts::kRouted},
    Family{"qwen3next", "Qwen3NextForCausalLM", Mixer::kHybrid, Experts::kShared},
    Family{"qwen35", "Qwen3_5ForCausalLM", Mixer::kHybrid},
    Family{"qwen35moe", "Qwen3_5MoeForCausalLM", Mixer::kHybrid, Experts::kShared},
};

// Architectures of which there is more to say than that they are not built.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOthers = {{
    {"dream", "its checkpoints in safetensors run"},
    {"llada", "its checkpoints in safetensors run"},
    {"llada-moe", "its checkpoints in safetensors run"},
    {"qwen4exp", "n-gram embeddings and sparse attention are not built"},
    {"clip", "this is the part of a model that reads images: name the file of the language model"},
}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kOtherTypes = {{
    {"adapter", "a LoRA adapter, expected a model; adapters are read in PEFT's format (--adapter DIR)"},
    {"mmproj", "the part of a model that reads images, expected the language model: prompts are text"},
    {"imatrix", "the statistics of a quantisation, expected a model"},
}};

// Keys that are read below.
constexpr std::array<std::string_view, 22> kRead = {
    "block_count", "nextn_predict_layers", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.causal", "attention.sliding_window", "rope.freq_base",
    "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    // Facts that change nothing here.
    "vocab_size", "tensor_data_layout", "rope.scaling.finetuned"};
constexpr std::array<std::string_view, 8> kReadOfHybrids = {
    "rope.dimension_sections", "full_attention_interval", "attention.recurrent_layers", "ssm.conv_kernel",
    "ssm.state_size",          "ssm.group_count",         "ssm.time_step_rank",         "ssm.inner_size"};
constexpr std::array<std::string_view, 5> kReadOfExperts = {"expert_count", "expert_used_count",
                                                            "expert_feed_forward_length",
                                                            "expert_shared_feed_forward_length", "expert_weights_norm"};
// Other keys change nothing when they are 0; these when they are 1, too.
constexpr std::array<std::string_view, 13> kNeutralAtOne = {"logit_scale",
                                                            "residual_scale",
                                                            "embedding_scale",
                                                            "attention.output_scale",
                                                            "expert_weights_scale",
                                                            "expert_gating_func",  // 1: softmax
                                                            "expert_group_count",
                                                            "expert_group_used_count",
                                                            "moe_every_n_layers",
                                                            "interleave_moe_layer_step",
                                                            "rope.scaling.attn_factor",
                                                            "rope.scaling.yarn_attn_factor",
                                                            "rope.scaling.yarn_ext_factor"};

template <size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
  return std::ranges::find(words, word) != words.end();
}

template <size_t N>
std::string_view said_of(std::string_view word,
                         const std::array<std::pair<std::string_view, std::string_view>, N>& table) {
  const auto* const found = std::ranges::find(table, word, &std::pair<std::string_view, std::string_view>::first);
  return found == table.end() ? std::string_view() : found->second;
}

void require_model(const GgufHeader& header) {
  const std::string_view type = header.text("general.type").value_or("model"), what = said_of(type, kOtherTypes);
  HR_REQUIRE(what.empty(), ErrorCode::kUnsupported, header.file(), ": is ", what);
  HR_REQUIRE(type == "model", ErrorCode::kUnsupported, header.file(), ": key 'general.type': is '", printable(type),
             "', expected 'model'");
}

const Family& family_of(const GgufHeader& header) {
  require_model(header);
  const auto name = header.text("general.architecture");
  HR_REQUIRE(name, ErrorCode::kModelFile, header.file(), ": has no key 'general.architecture'");
  const auto* const found = std::ranges::find(kFamilies, *name, &Family::name);
  if (found != kFamilies.end()) return *found;
  std::string built;
  for (const Family& family : kFamilies) built += str(built.empty() ? "" : ", ", family.name);
  const std::string_view said = said_of(*name, kOthers);
  throw Error(ErrorCode::kUnsupported,
              str(header.file(), ": the architecture '", printable(*name), "' is not built for GGUF files",
                  said.empty() ? "" : str(" (", said, ")"), "; built are: ", built));
}

bool is_neutral(double value, bool at_one) { return value == 0 || (at_one && value == 1); }

// Returns true if a key of this value leaves the arithmetic as it is.
bool is_neutral(const GgufValue& value, bool at_one) {
  if (const auto* const integer = std::get_if<int64_t>(&value))
    return is_neutral(static_cast<double>(*integer), at_one);
  if (const auto* const number = std::get_if<double>(&value)) return is_neutral(*number, at_one);
  if (const auto* const flag = std::get_if<bool>(&value)) return !*flag;
  if (const auto* const text = std::get_if<std::string_view>(&value)) return text->empty();
  const auto* const array = std::get_if<GgufArray>(&value);
  const auto* const integers = array == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(array);
  return integers != nullptr && std::ranges::all_of(*integers, [](int64_t each) { return each == 0; });
}

void refuse_unread_keys(const GgufKeys& keys, const Family& family) {
  for (const std::string& name : keys.names()) {
    const bool is_read = is_one_of(name, kRead) ||
                         (family.mixer == Mixer::kHybrid && is_one_of(name, kReadOfHybrids)) ||
                         (family.experts != Experts::kNone && is_one_of(name, kReadOfExperts));
    if (is_read || is_neutral(*keys.header().value(keys.key(name)), is_one_of(name, kNeutralAtOne))) continue;
    throw Error(ErrorCode::kUnsupported, str(keys.header().file(), ": key '", printable(keys.key(name)),
                                             "': its value is not built for the architecture '", family.name, "'"));
  }
}

// A model's sizes, and the object that states them.
struct Config {
  const GgufParts& parts;
  const Family& family;
  GgufKeys keys;
  int64_t num_layers = 0, num_all_layers = 0;  // all: with those that draft tokens
  int64_t hidden = 0, context = 0, head_dim = 0;
  std::vector<bool> attends = {};  // [num_layers]
  JsonMembers json = {};
};

void read_layers(Config& c) {
  c.num_all_layers = c.keys.required("block_count", 1, 1024);
  c.num_layers = c.num_all_layers - c.keys.integer("nextn_predict_layers", 0, c.num_all_layers - 1).value_or(0);
  c.json.add("num_hidden_layers", c.num_layers);
  c.attends.assign(static_cast<size_t>(c.num_layers), true);
  if (c.family.mixer == Mixer::kAttention) return;
  const auto* const recurrent = c.keys.header().integers(c.keys.key("attention.recurrent_layers"));
  const int64_t interval = c.keys.integer("full_attention_interval", 1, 1024).value_or(4);
  c.keys.require(recurrent == nullptr || std::cmp_equal(recurrent->size(), c.num_all_layers),
                 "attention.recurrent_layers", "expected one entry for each of ", c.num_all_layers, " layers");
  for (size_t i = 0; i < c.attends.size(); ++i)
    c.attends[i] = recurrent != nullptr ? (*recurrent)[i] == 0 : (static_cast<int64_t>(i) + 1) % interval == 0;
  c.json.add_array("layer_types", c.attends,
                   [](bool attends) { return attends ? "\"full_attention\"" : "\"linear_attention\""; });
}

void read_sizes(Config& c) {
  c.hidden = c.keys.required("embedding_length", 1, 1 << 17);
  c.context = c.keys.required("context_length", 1, 1 << 30);
  const GgufTensor& embedding = c.parts.tensor("token_embd.weight");
  HR_REQUIRE(embedding.dims.size() == 2 && std::cmp_equal(embedding.dims[0], c.hidden), ErrorCode::kModelFile,
             c.keys.header().file(), ": tensor 'token_embd.weight': expected rows of ", c.hidden, " elements");
  HR_REQUIRE(embedding.dims[1] <= uint64_t{1} << 22, ErrorCode::kModelFile, c.keys.header().file(),
             ": tensor 'token_embd.weight': has ", embedding.dims[1], " rows, expected at most ", 1 << 22);
  const auto* const tokens = c.keys.header().texts("tokenizer.ggml.tokens");
  HR_REQUIRE(tokens == nullptr || tokens->size() <= embedding.dims[1], ErrorCode::kModelFile, c.keys.header().file(),
             ": key 'tokenizer.ggml.tokens': has ", tokens->size(), " tokens, and token_embd.weight ",
             embedding.dims[1], " rows");
  c.json.add("hidden_size", c.hidden);
  c.json.add("vocab_size", static_cast<int64_t>(embedding.dims[1]));
  c.json.add("max_position_embeddings", c.context);
  if (const auto width = c.keys.of_layers("feed_forward_length", std::vector<bool>(c.attends.size(), true),
                                          c.num_all_layers, 0, 1 << 24))
    c.json.add("intermediate_size", *width);
  c.json.add_flag("tie_word_embeddings", !c.parts.has("output.weight"));
  const auto eps = c.keys.number("attention.layer_norm_rms_epsilon");
  c.keys.require(eps && *eps > 0 && *eps < 1, "attention.layer_norm_rms_epsilon", "expected a number from 0 to 1");
  c.json.add_number("rms_norm_eps", *eps);
}

void read_attention(Config& c) {
  const auto heads = c.keys.of_layers("attention.head_count", c.attends, c.num_all_layers, 1, 1024);
  c.keys.require(heads.has_value(), "attention.head_count", "is missing");
  const int64_t kv_heads =
      c.keys.of_layers("attention.head_count_kv", c.attends, c.num_all_layers, 1, 1024).value_or(*heads);
  c.keys.require(*heads % kv_heads == 0, "attention.head_count_kv", "is ", kv_heads, ", expected a divisor of ", *heads,
                 " heads");
  const auto stated = c.keys.integer("attention.key_length", 1, 4096);
  c.keys.require(stated || c.hidden % *heads == 0, "attention.key_length", "is missing");
  c.head_dim = stated.value_or(c.hidden / *heads);
  const int64_t value_dim = c.keys.integer("attention.value_length", 1, 4096).value_or(c.head_dim);
  c.keys.require(value_dim == c.head_dim, "attention.value_length", "is ", value_dim, ", expected ", c.head_dim,
                 " as of keys");
  const int64_t window = c.keys.integer("attention.sliding_window", 0, int64_t{1} << 40).value_or(0);
  HR_REQUIRE(window == 0 || window >= c.context, ErrorCode::kUnsupported, c.keys.header().file(), ": key '",
             c.keys.key("attention.sliding_window"), "': is ", window, "; sliding windows are not built for the ",
             "architecture '", c.family.name, "'");
  c.json.add("num_attention_heads", *heads);
  c.json.add("num_key_value_heads", kv_heads);
  c.json.add("head_dim", c.head_dim);
  if (const auto causal = c.keys.header().boolean(c.keys.key("attention.causal")))
    c.json.add_flag("is_causal", *causal);
}

// Biases of the first layer; those of Qwen2 are part of its architecture.
void read_biases(Config& c) {
  if (c.family.name == "qwen2") return;
  const auto has = [&c](const char* name) { return c.parts.has(str("blk.0.", name, ".bias")); };
  const bool of_inputs = has("attn_q"), of_output = has("attn_output");
  HR_REQUIRE(of_inputs == of_output, ErrorCode::kUnsupported, c.keys.header().file(), ": has biases for ",
             of_inputs ? "queries and not for the output" : "the output and not for queries",
             " of attention, which is not built for the architecture '", c.family.name, "'");
  if (of_inputs) c.json.add_flag("attention_bias", true);
  if (has("ffn_up")) c.json.add_flag("mlp_bias", true);
}

void read_delta_net(Config& c) {
  if (c.family.mixer == Mixer::kAttention) return;
  HR_REQUIRE(!c.parts.has("blk.0.ssm_in.weight"), ErrorCode::kUnsupported, c.keys.header().file(),
             ": tensor 'blk.0.ssm_in.weight' is of an older layout, which is not read: convert the model again");
  const int64_t key_heads = c.keys.required("ssm.group_count", 1, 1024);
  const int64_t value_heads = c.keys.required("ssm.time_step_rank", 1, 1024);
  const int64_t values = c.keys.required("ssm.inner_size", 1, 1 << 22);
  c.keys.require(value_heads % key_heads == 0, "ssm.time_step_rank", "is ", value_heads, ", expected a multiple of ",
                 key_heads, " (", c.keys.key("ssm.group_count"), ")");
  c.keys.require(values % value_heads == 0, "ssm.inner_size", "is ", values, ", expected a multiple of ", value_heads,
                 " (", c.keys.key("ssm.time_step_rank"), ")");
  c.json.add("linear_num_key_heads", key_heads);
  c.json.add("linear_num_value_heads", value_heads);
  c.json.add("linear_key_head_dim", c.keys.required("ssm.state_size", 1, 4096));
  c.json.add("linear_value_head_dim", values / value_heads);
  c.json.add("linear_conv_kernel_dim", c.keys.required("ssm.conv_kernel", 1, 16));
  if (c.family.name == "qwen3next") c.json.add("linear_projections", "separate");
}

void read_experts(Config& c) {
  if (c.family.experts == Experts::kNone) return;
  const int64_t experts = c.keys.required("expert_count", 1, 4096);
  c.json.add("num_experts", experts);
  c.json.add("num_experts_per_tok", c.keys.required("expert_used_count", 1, experts));
  c.json.add("moe_intermediate_size", c.keys.required("expert_feed_forward_length", 1, 1 << 24));
  const bool is_shared = c.family.experts == Experts::kShared;
  if (is_shared)
    c.json.add("shared_expert_intermediate_size", c.keys.required("expert_shared_feed_forward_length", 0, 1 << 24));
  c.keys.require(is_shared || c.keys.integer("expert_shared_feed_forward_length", 0, 1 << 24).value_or(0) == 0,
                 "expert_shared_feed_forward_length", "the architecture '", c.family.name, "' has no shared experts");
  const bool renormalised = c.keys.header().boolean(c.keys.key("expert_weights_norm")).value_or(true);
  c.keys.require(renormalised || c.family.name != "qwen35moe", "expert_weights_norm", "is false, expected true");
  c.json.add_flag("norm_topk_prob", renormalised);
}

void require_quantisation(const GgufParts& parts) {
  const auto version = parts.header().integer("general.quantization_version");
  HR_REQUIRE(!version || *version == 2 || !parts.is_quantised(), ErrorCode::kUnsupported, parts.header().file(),
             ": key 'general.quantization_version': is ", version.value_or(0), ", expected 2");
}

std::string config_json(const GgufParts& parts) {
  const Family& family = family_of(parts.header());
  Config c{.parts = parts, .family = family, .keys = GgufKeys(parts.header(), family.name)};
  refuse_unread_keys(c.keys, family);
  require_quantisation(parts);
  c.json.add_json("architectures", str("[\"", family.class_name, "\"]"));
  c.json.add("torch_dtype", "bfloat16");  // of activations, whatever the tensors have
  for (const char* name : {"bos", "eos"})
    if (const auto id = gguf_token_id(parts.header(), str("tokenizer.ggml.", name, "_token_id")))
      c.json.add(str(name, "_token_id"), *id);
  read_layers(c);
  read_sizes(c);
  read_attention(c);
  read_biases(c);
  c.json.add_json("rope_parameters", rope_parameters({.parts = c.parts,
                                                      .keys = c.keys,
                                                      .head_dim = c.head_dim,
                                                      .context = c.context,
                                                      .is_hybrid = c.family.mixer == Mixer::kHybrid}));
  read_delta_net(c);
  read_experts(c);
  return c.json.object();
}

}  // namespace

GgufDescription describe_gguf(const std::vector<GgufFile>& files) {
  const GgufParts parts(files);
  const std::string& file = parts.header().file();
  return {.config = JsonValue::parse(config_json(parts), file),
          .generation = JsonValue::parse(gguf_generation_json(parts.header()), file)};
}

}  // namespace headrace
