// The description of a model in a GGUF file, beside the config.json and generation_config.json of the same model.
#include "headrace/weights/gguf_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "headrace/weights/model_description.h"
#include "support/gguf_writer.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::gguf_flag;
using test::gguf_key;
using test::gguf_tensor;
using test::GgufBytes;
using test::TempDir;

constexpr uint32_t kF32Type = 0;

// Keys by their names, without the architecture's; "/" begins the name of a key that has none.
using Keys = std::map<std::string, std::string>;

struct GgufModelCase {
  std::string architecture;
  Keys keys;                                                           // values as value() writes them
  std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors;  // F32, all ones
  std::string config;                                                  // the JSON
};
std::ostream& operator<<(std::ostream& out, const GgufModelCase& c) { return out << c.architecture; }

// Value bytes with their type: what stands behind a key.
template <class Value>
std::string value(const Value& v) {
  return gguf_key("", v).substr(8);
}
std::string flag(bool v) { return gguf_flag("", v).substr(8); }

std::string gguf_bytes(const GgufModelCase& c) {
  GgufBytes file;
  file.keys.push_back(gguf_key("general.architecture", c.architecture));
  for (const auto& [name, bytes] : c.keys) {
    const std::string key = name.starts_with('/') ? name.substr(1) : c.architecture + "." + name;
    if (!bytes.empty()) file.keys.push_back(test::gguf_text(key) + bytes);
  }
  for (const auto& [name, dims] : c.tensors) {
    uint64_t elements = 1;
    for (const uint64_t dim : dims) elements *= dim;
    file.data.resize((file.data.size() + 31) / 32 * 32);
    file.tensors.push_back(gguf_tensor(name, dims, kF32Type, file.data.size()));
    for (uint64_t i = 0; i < elements; ++i) file.data += test::le(1.0f + static_cast<float>(i));
  }
  return file.bytes();
}

// A flat rendering of every value with its place, for comparison in any order.
void flatten(const JsonValue& v, const std::string& path, std::map<std::string, std::string>& out) {
  switch (v.kind()) {
    case JsonValue::Kind::kObject:
      for (const auto& [key, member] : v.as_object()) flatten(member, str(path, ".", key), out);
      return;
    case JsonValue::Kind::kArray:
      for (size_t i = 0; i < v.as_array().size(); ++i) flatten(v.as_array()[i], str(path, "[", i, "]"), out);
      return;
    case JsonValue::Kind::kString: out[path] = v.as_string(); return;
    case JsonValue::Kind::kBool: out[path] = v.as_bool() ? "true" : "false"; return;
    default: out[path] = str(static_cast<float>(v.as_float())); return;  // files hold float32
  }
}
std::map<std::string, std::string> flat(const JsonValue& v) {
  std::map<std::string, std::string> out;
  flatten(v, "", out);
  return out;
}

const Keys kQwen3Keys = {
    {"block_count", value(28)},
    {"context_length", value(40960)},
    {"embedding_length", value(64)},
    {"feed_forward_length", value(3072)},
    {"attention.head_count", value(16)},
    {"attention.head_count_kv", value(8)},
    {"attention.key_length", value(128)},
    {"attention.value_length", value(128)},
    {"attention.layer_norm_rms_epsilon", value(1e-6f)},
    {"rope.freq_base", value(1e6f)},
};

Keys with(Keys keys, const Keys& others) {
  for (const auto& [name, bytes] : others) keys[name] = bytes;
  return keys;
}

const Keys kHybridKeys = with(kQwen3Keys, {{"block_count", value(8)},
                                           {"attention.key_length", value(256)},
                                           {"attention.value_length", value(256)},
                                           {"rope.dimension_count", value(64)},
                                           {"ssm.conv_kernel", value(4)},
                                           {"ssm.state_size", value(128)},
                                           {"ssm.group_count", value(16)},
                                           {"ssm.time_step_rank", value(32)},
                                           {"ssm.inner_size", value(2048)}});
const Keys kExpertKeys = {
    {"expert_count", value(128)}, {"expert_used_count", value(8)}, {"expert_feed_forward_length", value(768)}};
const Keys kSharedKeys = with(kExpertKeys, {{"expert_shared_feed_forward_length", value(512)}});
const Keys kSections = {{"rope.dimension_sections", value(std::vector<int32_t>{11, 11, 10, 0})}};

const std::string kSizes =
    R"("hidden_size":64,"vocab_size":5,"max_position_embeddings":40960,"intermediate_size":3072,"rms_norm_eps":1e-06,
       "num_attention_heads":16,"num_key_value_heads":8,"torch_dtype":"bfloat16")";
const std::string kHybridSizes =
    R"("num_hidden_layers":8,"head_dim":256,"linear_num_key_heads":16,"linear_num_value_heads":32,
       "linear_key_head_dim":128,"linear_value_head_dim":64,"linear_conv_kernel_dim":4,
       "layer_types":["linear_attention","linear_attention","linear_attention","full_attention",
                      "linear_attention","linear_attention","linear_attention","full_attention"])";
const std::string kExpertSizes = R"("num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,)"
                                 R"("norm_topk_prob":true)";

const std::vector<std::pair<std::string, std::vector<uint64_t>>> kTied = {{"token_embd.weight", {64, 5}}},
                                                                 kUntied = {{"token_embd.weight", {64, 5}},
                                                                            {"output.weight", {64, 5}}};

const std::vector<GgufModelCase> kGgufModelCases = {
    {"qwen3", kQwen3Keys, kTied,
     "{" + kSizes + R"(,"architectures":["Qwen3ForCausalLM"],"num_hidden_layers":28,"head_dim":128,
        "tie_word_embeddings":true,"rope_parameters":{"rope_type":"default","rope_theta":1000000}})"},
    {"qwen2",
     with(kQwen3Keys, {{"attention.key_length", ""},
                       {"attention.value_length", ""},
                       {"rope.scaling.type", value("yarn")},
                       {"rope.scaling.factor", value(4.0f)},
                       {"rope.scaling.original_context_length", value(10240)},
                       {"/tokenizer.ggml.bos_token_id", value(1)},
                       {"/tokenizer.ggml.eos_token_id", value(2)}}),
     {{"token_embd.weight", {64, 5}}, {"output.weight", {64, 5}}, {"blk.0.attn_q.bias", {64}}},
     "{" + kSizes + R"(,"architectures":["Qwen2ForCausalLM"],"num_hidden_layers":28,"head_dim":4,
        "tie_word_embeddings":false,"bos_token_id":1,"eos_token_id":2,"rope_parameters":{"rope_type":"yarn",
        "rope_theta":1000000,"factor":4,"original_max_position_embeddings":10240}})"},
    {"llama",
     with(kQwen3Keys, {{"attention.key_length", value(8)},
                       {"attention.value_length", value(8)},
                       {"rope.dimension_count", value(8)},
                       {"vocab_size", value(5)},
                       {"attention.sliding_window", value(0)},
                       {"logit_scale", value(1.0f)},
                       {"rope.scaling.finetuned", flag(true)}}),
     {{"token_embd.weight", {64, 5}},
      {"rope_freqs.weight", {4}},
      {"blk.0.attn_q.bias", {64}},
      {"blk.0.attn_output.bias", {64}}},
     "{" + kSizes + R"(,"architectures":["LlamaForCausalLM"],"num_hidden_layers":28,"head_dim":8,
        "tie_word_embeddings":true,"attention_bias":true,"rope_parameters":{"rope_type":"divided",
        "divisors":[1,2,3,4],"rope_theta":1000000}})"},
    {"qwen3moe", with(kQwen3Keys, kExpertKeys), kUntied,
     "{" + kSizes + "," + kExpertSizes + R"(,"architectures":["Qwen3MoeForCausalLM"],"num_hidden_layers":28,
        "head_dim":128,"tie_word_embeddings":false,"rope_parameters":{"rope_type":"default","rope_theta":1000000}})"},
    {"qwen3next", with(kHybridKeys, kSharedKeys), kUntied,
     "{" + kSizes + "," + kExpertSizes + "," + kHybridSizes + R"(,"architectures":["Qwen3NextForCausalLM"],
        "shared_expert_intermediate_size":512,"linear_projections":"separate","tie_word_embeddings":false,
        "rope_parameters":{"rope_type":"default","rope_theta":1000000,"partial_rotary_factor":0.25}})"},
    {"qwen35",
     with(with(kHybridKeys, kSections),
          {{"block_count", value(9)},
           {"nextn_predict_layers", value(1)},
           {"full_attention_interval", value(4)},
           {"attention.head_count_kv", value(std::vector<int32_t>{0, 0, 0, 8, 0, 0, 0, 8, 16})}}),
     kTied, "{" + kSizes + "," + kHybridSizes + R"(,"architectures":["Qwen3_5ForCausalLM"],"tie_word_embeddings":true,
        "rope_parameters":{"rope_type":"default","rope_theta":1000000,"partial_rotary_factor":0.25,
        "mrope_section":[11,11,10],"mrope_interleaved":true}})"},
    {"qwen35moe",
     with(with(kHybridKeys, kSharedKeys),
          {{"full_attention_interval", value(3)},  // the list goes over it
           {"attention.recurrent_layers", value(std::vector<int32_t>{1, 1, 1, 0, 1, 1, 1, 0})},
           {"expert_gating_func", value(1)}}),
     kUntied, "{" + kSizes + "," + kExpertSizes + "," + kHybridSizes + R"(,"architectures":["Qwen3_5MoeForCausalLM"],
        "shared_expert_intermediate_size":512,"tie_word_embeddings":false,
        "rope_parameters":{"rope_type":"default","rope_theta":1000000,"partial_rotary_factor":0.25}})"},
};

class GgufModelConfig : public testing::TestWithParam<GgufModelCase> {};

TEST_P(GgufModelConfig, StatesWhatItsConfigJsonDoes) {
  const TempDir dir;
  test::write_file(dir / "m.gguf", gguf_bytes(GetParam()));
  const ModelDescription model = read_description(dir / "m.gguf");
  EXPECT_EQ(flat(model.config), flat(JsonValue::parse(GetParam().config, "expected")));
  EXPECT_EQ(model.directory, dir / "m.gguf");
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufModelConfig, testing::ValuesIn(kGgufModelCases),
                         [](const auto& row) { return row.param.architecture; });

class GgufConfig : public testing::Test {
 protected:
  // Writes a qwen3 file with some keys replaced, left out (an empty value) or added.
  std::filesystem::path path(const Keys& keys, std::string_view architecture = "qwen3",
                             const std::vector<std::pair<std::string, std::vector<uint64_t>>>& tensors = kTied) const {
    const auto base = std::ranges::find(kGgufModelCases, architecture, &GgufModelCase::architecture);
    GgufModelCase file = base == kGgufModelCases.end() ? kGgufModelCases.front() : *base;
    file.architecture = architecture, file.tensors = tensors, file.keys = with(file.keys, keys);
    test::write_file(dir_ / "m.gguf", gguf_bytes(file));
    return dir_ / "m.gguf";
  }
  std::string refusal(const std::filesystem::path& file) const {
    const std::string sentence = testing_support::refusal_of([&] { read_description(file); }).sentence;
    const std::string begin = file.string() + ": ";
    return sentence.starts_with(begin) ? sentence.substr(begin.size()) : "without the file's name: " + sentence;
  }
  std::string refused(const Keys& keys, std::string_view architecture = "qwen3") const {
    return refusal(path(keys, architecture));
  }

  TempDir dir_;
};

TEST_F(GgufConfig, IsNoneOfAnotherArchitectureOrKindOfFile) {
  const std::string built = "; built are: llama, qwen2, qwen3, qwen3moe, qwen3next, qwen35, qwen35moe";
  EXPECT_EQ(refused({}, "gemma3"), "the architecture 'gemma3' is not built for GGUF files" + built);
  EXPECT_EQ(refused({}, "dream"),
            "the architecture 'dream' is not built for GGUF files (its checkpoints in safetensors run)" + built);
  EXPECT_EQ(refused({}, "qwen4exp"),
            "the architecture 'qwen4exp' is not built for GGUF files (n-gram embeddings and "
            "sparse attention are not built)" +
                built);
  EXPECT_TRUE(refused({}, "clip").find("name the file of the language model") != std::string::npos);
  EXPECT_EQ(refused({{"/general.type", value("adapter")}}),
            "is a LoRA adapter, expected a model; adapters are read in PEFT's format (--adapter DIR)");
  EXPECT_EQ(refused({{"/general.type", value("mmproj")}}),
            "is the part of a model that reads images, expected the language model: prompts are text");
  EXPECT_EQ(refused({{"/general.type", value("vocab")}}), "key 'general.type': is 'vocab', expected 'model'");
  test::write_file(dir_ / "m.gguf", GgufBytes{}.bytes());
  EXPECT_EQ(refusal(dir_ / "m.gguf"), "has no key 'general.architecture'");
}

struct RefusedKey {
  std::string architecture, name, value, sentence;
};

TEST_F(GgufConfig, KeysAreBoundedAndRefusedByName) {
  const std::vector<RefusedKey> rows = {
      {"qwen3", "block_count", "", "has no key 'qwen3.block_count'"},
      {"qwen3", "block_count", value(0), "key 'qwen3.block_count': is 0, expected 1 to 1024"},
      {"qwen3", "block_count", value(1025), "key 'qwen3.block_count': is 1025, expected 1 to 1024"},
      {"qwen3", "block_count", value(1.0f),
       "key 'qwen3.block_count': has another type, expected an integer below 2^63"},
      {"qwen3", "nextn_predict_layers", value(28), "key 'qwen3.nextn_predict_layers': is 28, expected 0 to 27"},
      {"qwen3", "context_length", value(0), "key 'qwen3.context_length': is 0, expected 1 to 1073741824"},
      {"qwen3", "embedding_length", value(1 << 18), "key 'qwen3.embedding_length': is 262144, expected 1 to 131072"},
      {"qwen3", "embedding_length", value(32), "tensor 'token_embd.weight': expected rows of 32 elements"},
      {"qwen3", "attention.head_count", "", "key 'qwen3.attention.head_count': is missing"},
      {"qwen3", "attention.head_count", value(2000), "key 'qwen3.attention.head_count': is 2000, expected 1 to 1024"},
      {"qwen3", "attention.head_count", value(std::vector<int32_t>(3, 8)),
       "key 'qwen3.attention.head_count': has 3 entries, expected one for each of 28 layers"},
      {"qwen35", "attention.head_count_kv", value(std::vector<int32_t>{0, 0, 0, 8, 0, 0, 0, 4, 1}),
       "key 'qwen35.attention.head_count_kv': is 4 in layer 7 and 8 in layers before it; built are models with one "
       "number for all"},
      {"qwen3", "attention.head_count_kv", value(5),
       "key 'qwen3.attention.head_count_kv': is 5, expected a divisor of 16 heads"},
      {"qwen3", "attention.value_length", value(64),
       "key 'qwen3.attention.value_length': is 64, expected 128 as of keys"},
      {"qwen3", "attention.layer_norm_rms_epsilon", "",
       "key 'qwen3.attention.layer_norm_rms_epsilon': expected a number from 0 to 1"},
      {"qwen3", "attention.sliding_window", value(4096),
       "key 'qwen3.attention.sliding_window': is 4096; sliding windows are not built for the architecture 'qwen3'"},
      {"qwen3", "rope.dimension_count", value(64),
       "key 'qwen3.rope.dimension_count': is 64, expected whole heads of 128"},
      {"qwen35", "rope.dimension_count", value(63),
       "key 'qwen35.rope.dimension_count': is 63, expected an even number"},
      {"qwen35", "rope.dimension_count", value(512), "key 'qwen35.rope.dimension_count': is 512, expected 2 to 256"},
      {"qwen35", "rope.dimension_count", "", "key 'qwen35.rope.dimension_count': is missing"},
      {"qwen35", "rope.dimension_sections", value(std::vector<int32_t>{11, 11, 10}),
       "key 'qwen35.rope.dimension_sections': expected four numbers, the last one 0"},
      {"qwen3", "rope.scaling.type", value("longrope"),
       "key 'qwen3.rope.scaling.type': is 'longrope', which is not built; built are: none, linear, yarn"},
      {"qwen3", "rope.scaling.type", value("linear"), "key 'qwen3.rope.scaling.factor': expected a number above 0"},
      {"qwen35", "ssm.conv_kernel", value(17), "key 'qwen35.ssm.conv_kernel': is 17, expected 1 to 16"},
      {"qwen35", "ssm.time_step_rank", value(24),
       "key 'qwen35.ssm.time_step_rank': is 24, expected a multiple of 16 (qwen35.ssm.group_count)"},
      {"qwen35", "ssm.inner_size", value(2047),
       "key 'qwen35.ssm.inner_size': is 2047, expected a multiple of 32 (qwen35.ssm.time_step_rank)"},
      {"qwen35", "attention.recurrent_layers", value(std::vector<int32_t>{1}),
       "key 'qwen35.attention.recurrent_layers': expected one entry for each of 9 layers"},
      {"qwen3moe", "expert_count", value(4097), "key 'qwen3moe.expert_count': is 4097, expected 1 to 4096"},
      {"qwen3moe", "expert_used_count", value(129), "key 'qwen3moe.expert_used_count': is 129, expected 1 to 128"},
      {"qwen3moe", "expert_shared_feed_forward_length", value(64),
       "key 'qwen3moe.expert_shared_feed_forward_length': the architecture 'qwen3moe' has no shared experts"},
      {"qwen35moe", "expert_weights_norm", flag(false), "key 'qwen35moe.expert_weights_norm': is false, expected true"},
      {"qwen3", "/tokenizer.ggml.tokens", value(std::vector<std::string>(6, "a")),
       "key 'tokenizer.ggml.tokens': has 6 tokens, and token_embd.weight 5 rows"},
  };
  for (const RefusedKey& row : rows) {
    SCOPED_TRACE(row.architecture + " " + row.name);
    EXPECT_EQ(refused({{row.name, row.value}}, row.architecture), row.sentence);
  }
}

TEST_F(GgufConfig, KeysThatWouldChangeTheArithmeticAreRefusedUnlessTheyAreNeutral) {
  for (const char* name : {"logit_scale", "attn_logit_softcapping", "final_logit_softcapping", "attention.scale",
                           "residual_scale", "embedding_scale", "rope.scaling.yarn_attn_factor", "of.the.future"}) {
    const std::string key = str("qwen3.", name);
    EXPECT_EQ(refused({{name, value(2.0f)}}),
              str("key '", key, "': its value is not built for the architecture 'qwen3'"));
    EXPECT_EQ(refused({{name, value(0.0f)}}), "without the file's name: ") << "neutral";
  }
  EXPECT_NE(refused({{"expert_gating_func", value(2)}}, "qwen3moe"), "without the file's name: ") << "a sigmoid";
  EXPECT_NE(refused({{"expert_count", value(8)}}, "llama"), "without the file's name: ") << "Mixtral";
  EXPECT_NE(refused({{"leading_dense_block_count", value(1)}}, "qwen3moe"), "without the file's name: ");
  EXPECT_NE(refused({{"attention.sliding_window_pattern", value(std::vector<int32_t>{0, 1})}}),
            "without the file's name: ");
}

TEST_F(GgufConfig, TensorsSayWhatKeysDoNot) {
  EXPECT_EQ(refusal(path({}, "qwen3", {})), "has no tensor 'token_embd.weight'");
  EXPECT_EQ(refusal(path({}, "llama", {{"token_embd.weight", {64, 5}}, {"rope_freqs.weight", {3}}})),
            "tensor 'rope_freqs.weight': expected 4 finite numbers above 0");
  EXPECT_EQ(refusal(path({}, "llama", {{"token_embd.weight", {64, 5}}, {"blk.0.attn_q.bias", {64}}})),
            "has biases for queries and not for the output of attention, which is not built for the architecture "
            "'llama'");
  EXPECT_EQ(refusal(path({}, "qwen3", {{"token_embd.weight", {64, 5}}, {"rope_factors_long.weight", {64}}})),
            "tensor 'rope_factors_long.weight': scaling by two lists of factors is not built");
  EXPECT_EQ(refusal(path({}, "qwen3next", {{"token_embd.weight", {64, 5}}, {"blk.0.ssm_in.weight", {64}}})),
            "tensor 'blk.0.ssm_in.weight' is of an older layout, which is not read: convert the model again");
}

TEST_F(GgufConfig, QuantisedTensorsAreOfTheSecondVersion) {
  const auto written = [this](int32_t version, uint32_t type) {
    GgufModelCase model = kGgufModelCases.front();
    model.keys["/general.quantization_version"] = value(version);
    const std::string plain = gguf_bytes(model), info = gguf_tensor("token_embd.weight", {64, 5}, kF32Type, 0);
    std::string bytes = plain;
    bytes.replace(plain.find(info), info.size(), gguf_tensor("token_embd.weight", {64, 5}, type, 0));
    test::write_file(dir_ / "m.gguf", bytes);
    return refusal(dir_ / "m.gguf");
  };
  EXPECT_EQ(written(1, 8), "key 'general.quantization_version': is 1, expected 2");
  EXPECT_EQ(written(1, kF32Type), "without the file's name: ");
  EXPECT_EQ(written(2, 8), "without the file's name: ");
}

TEST_F(GgufConfig, GenerationHasEndTokensAndSamplingDefaults) {
  const auto generation = [this](const Keys& keys) { return flat(*read_description(path(keys)).generation_config()); };
  EXPECT_EQ(generation({}), flat(JsonValue::parse(R"({"eos_token_id":[]})", "")));
  const Keys tokens = {{"/tokenizer.ggml.tokens",
                        value(std::vector<std::string>{"<|endoftext|>", "<|im_end|>", "a", "<|eot_id|>", "</x>"})},
                       {"/tokenizer.ggml.token_type", value(std::vector<int32_t>{3, 3, 1, 1, 3})},
                       {"/tokenizer.ggml.eos_token_id", value(1)},
                       {"/tokenizer.ggml.eot_token_id", value(4)}};
  EXPECT_EQ(generation(tokens), flat(JsonValue::parse(R"({"eos_token_id":[0,1,4]})", ""))) << "3 is no control token";
  const Keys sampling = {{"/general.sampling.temp", value(0.6f)},
                         {"/general.sampling.top_k", value(20)},
                         {"/general.sampling.top_p", value(0.95f)},
                         {"/general.sampling.min_p", value(0.0f)},
                         {"/general.sampling.penalty_repeat", value(1.05f)},
                         {"/tokenizer.ggml.bos_token_id", value(2)}};
  EXPECT_EQ(generation(with(tokens, sampling)),
            flat(JsonValue::parse(R"({"bos_token_id":2,"eos_token_id":[0,1,4],"temperature":0.6,"top_k":20,
                                      "top_p":0.95,"min_p":0,"repetition_penalty":1.05})",
                                  "")));
  EXPECT_EQ(refused(with(tokens, {{"/tokenizer.ggml.eom_token_id", value(5)}})),
            "key 'tokenizer.ggml.eom_token_id': is 5, expected the id of one of 5 tokens");
}

TEST_F(GgufConfig, AFileWithoutTheEndingIsReadAndOtherFilesAreNot) {
  std::filesystem::rename(path({}), dir_ / "sha256-1");
  EXPECT_EQ(read_description(dir_ / "sha256-1").config.at("hidden_size").as_int(), 64);
  test::write_file(dir_ / "other", "x");
  EXPECT_EQ(refusal(dir_ / "other"), "is a file, expected the directory of a model or a GGUF file");
}

}  // namespace
}  // namespace headrace
