// Models written as GGUF files: the same network, tensor by tensor.
#include "headrace/models/gguf_model_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "headrace/gguf/gguf_file.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/tokenizer.h"
#include "headrace/weights/checkpoint.h"
#include "models/model_with_tokenizer.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::make_model;
using test::TempDir;
using testing_support::refusal_of;

const std::vector<std::string> kGgufFamilies = {"llama",
                                                "qwen2",
                                                "qwen3",
                                                "qwen3_moe",
                                                "qwen3_next",
                                                "qwen3_5",
                                                "qwen3_5_moe",
                                                "qwen3_5_released",
                                                "qwen3_5_moe_released"};

std::filesystem::path written(const TempDir& dir, const GgufTarget& target) {
  std::filesystem::path file = dir / "model.gguf";
  write_gguf(read_description(dir.path()), file, {.target = target, .threads = 2});
  return file;
}

std::vector<double> numbers_of(Checkpoint& checkpoint, const std::string& name) {
  const TensorView tensor = checkpoint.tensor(name, checkpoint.shape_of(name));
  std::vector<double> numbers;
  for (int64_t i = 0; i < tensor.numel(); ++i) numbers.push_back(element_as_double(tensor, i));
  return numbers;
}

// Value i of a tensor by the names that a text model alone has.
std::string plain_name(std::string name) {
  for (const std::string wrapper : {"model.language_model.", "language_model.model."}) {
    if (name.starts_with(wrapper)) return "model." + name.substr(wrapper.size());
  }
  return name;
}

bool is_changed(const std::string& family, const std::string& name) {
  return name.ends_with("A_log") ||
         (family.starts_with("qwen3_5") || family == "qwen3_next" ? name.ends_with("norm.weight") : false);
}

void expect_same_tensor(Checkpoint& original, Checkpoint& file, const std::string& name, double tolerance) {
  const std::string plain = plain_name(name);
  ASSERT_TRUE(file.has(plain)) << plain;
  ASSERT_EQ(file.shape_of(plain), original.shape_of(name)) << name;
  const std::vector<double> expected = numbers_of(original, name), found = numbers_of(file, plain);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << name << " " << i;
  }
}

// Tensors that lie in another form in the file; the logits of golden tests cover them.
bool has_another_form(const std::string& name) {
  return name.ends_with("in_proj_qkvz.weight") || name.ends_with("in_proj_ba.weight") ||
         name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj");
}

TEST(GgufModelFile, HoldsTheValuesOfTheCheckpoint) {
  for (const std::string& family : kGgufFamilies) {
    SCOPED_TRACE(family);
    const TempDir dir;
    make_model(dir, family);
    Checkpoint original = Checkpoint::open(dir.path()), file = Checkpoint::open(written(dir, DType::kBF16));
    size_t compared = 0;
    for (const std::string& name : original.names()) {
      if (is_of_other_part(name) || has_another_form(name)) continue;
      expect_same_tensor(original, file, name, is_changed(family, name) ? 1e-6 : 0);
      ++compared;
    }
    EXPECT_GT(compared, 10U);
  }
}

void expect_same_config(const ModelConfig& found, const ModelConfig& expected) {
  EXPECT_EQ(found.hidden, expected.hidden);
  EXPECT_EQ(found.vocab, expected.vocab);
  EXPECT_EQ(found.num_layers, expected.num_layers);
  EXPECT_EQ(found.context_length, expected.context_length);
  EXPECT_EQ(found.tied_head, expected.tied_head);
  EXPECT_EQ(found.eps, expected.eps);
  EXPECT_EQ(found.layer_types, expected.layer_types);
  EXPECT_EQ(found.moe_layers, expected.moe_layers);
  EXPECT_EQ(found.attention.num_heads, expected.attention.num_heads);
  EXPECT_EQ(found.attention.num_kv_heads, expected.attention.num_kv_heads);
  EXPECT_EQ(found.attention.head_dim, expected.attention.head_dim);
  EXPECT_EQ(found.attention.qkv_bias, expected.attention.qkv_bias);
  EXPECT_EQ(found.gdn.num_v_heads, expected.gdn.num_v_heads);
  EXPECT_EQ(found.gdn.num_k_heads, expected.gdn.num_k_heads);
  EXPECT_EQ(found.gdn.head_v_dim, expected.gdn.head_v_dim);
  EXPECT_EQ(found.gdn.conv_kernel, expected.gdn.conv_kernel);
  EXPECT_EQ(found.moe.intermediate, expected.moe.intermediate);
  EXPECT_EQ(found.moe.router.num_experts, expected.moe.router.num_experts);
  EXPECT_EQ(found.moe.router.experts_per_token, expected.moe.router.experts_per_token);
  EXPECT_EQ(found.eos_ids, expected.eos_ids);
  EXPECT_EQ(found.rotary.theta, expected.rotary.theta);
  const RotaryEmbedding rotates(found.rotary, found.attention.head_dim),
      expected_to(expected.rotary, expected.attention.head_dim);
  ASSERT_EQ(rotates.inv_freq().numel(), expected_to.inv_freq().numel());
  for (int64_t i = 0; i < rotates.inv_freq().numel(); ++i) {
    const double frequency = element_as_double(expected_to.inv_freq(), i);
    EXPECT_NEAR(element_as_double(rotates.inv_freq(), i), frequency, 2e-7 * frequency);
  }
}

TEST(GgufModelFile, StatesTheConfiguration) {
  for (const std::string& family : kGgufFamilies) {
    SCOPED_TRACE(family);
    const TempDir dir;
    make_model(dir, family);
    const std::filesystem::path file = written(dir, QuantPreset::kQ8_0);
    expect_same_config(stated_config(read_description(file), {}), stated_config(read_description(dir.path()), {}));
    const GgufFile gguf(file);
    EXPECT_EQ(gguf.header().text("tokenizer.chat_template"), "{{ messages[0].content }}");
    EXPECT_EQ(gguf.header().number("general.sampling.temp"), 0.5);
    EXPECT_EQ(gguf.header().integer("general.sampling.top_k"), 7);
    EXPECT_EQ(gguf.header().integer("general.file_type"), 7);
    EXPECT_EQ(Tokenizer::from_directory(file).encode("hello world"),
              Tokenizer::from_directory(dir.path()).encode("hello world"));
  }
}

std::set<std::string> formats_of(const std::filesystem::path& file) {
  std::set<std::string> formats;
  const GgufFile gguf(file);
  for (const GgufTensor& tensor : gguf.header().tensors()) formats.emplace(tensor.type->name);
  return formats;
}

std::string_view format_of(const std::filesystem::path& file, std::string_view tensor) {
  return GgufFile(file).header().find_tensor(tensor)->type->name;
}

// Rows of 96 are three small blocks; experts' rows of 48 are none.
TEST(GgufModelFile, WeightsHaveTheFormatsOfTheMix) {
  const TempDir dir;
  make_model(dir, "qwen3_5_moe");
  std::filesystem::path file = written(dir, QuantPreset::kQ4_K_M);
  EXPECT_EQ(format_of(file, "blk.0.attn_gate.weight"), "Q5_0");
  EXPECT_EQ(format_of(file, "blk.3.attn_v.weight"), "Q8_0");
  EXPECT_EQ(format_of(file, "blk.0.ffn_up_exps.weight"), "Q5_0");
  for (const char* kept : {"blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight"}) EXPECT_EQ(format_of(file, kept), "BF16");
  for (const char* wide : {"blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "blk.0.ssm_dt.bias", "blk.0.ffn_gate_inp.weight",
                           "blk.0.attn_norm.weight", "blk.0.ffn_gate_inp_shexp.weight", "output_norm.weight"}) {
    EXPECT_EQ(format_of(file, wide), "F32");
  }
  EXPECT_EQ(formats_of(written(dir, DType::kF16)), (std::set<std::string>{"F16", "F32"}));
  EXPECT_EQ(formats_of(written(dir, DType::kBF16)), (std::set<std::string>{"BF16", "F32"}));
  file = written(dir, QuantPreset::kQ8_0);
  EXPECT_EQ(format_of(file, "blk.0.ffn_down_exps.weight"), "F16");
}

TEST(GgufModelFile, AFileWithFloatsIsQuantisedLikeItsModel) {
  const TempDir dir;
  make_model(dir, "qwen3_5");
  const std::filesystem::path floats = written(dir, DType::kBF16);
  std::filesystem::rename(floats, dir / "floats.gguf");
  const std::filesystem::path direct = written(dir, QuantPreset::kQ5_K_M), again = dir / "again.gguf";
  write_gguf(read_description(dir / "floats.gguf"), again, {.target = QuantPreset::kQ5_K_M, .threads = 1});
  const GgufFile a(direct), b(again);
  ASSERT_EQ(a.header().tensors().size(), b.header().tensors().size());
  for (const GgufTensor& tensor : a.header().tensors()) {
    const GgufTensor* const other = b.header().find_tensor(tensor.name);
    ASSERT_NE(other, nullptr);
    ASSERT_EQ(other->type, tensor.type) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(a.data(tensor), b.data(*other))) << tensor.name;
  }
  for (const std::string_view key : a.header().keys()) EXPECT_TRUE(b.header().has(key)) << key;
  const auto refusal =
      refusal_of([&] { write_gguf(read_description(again), dir / "c.gguf", {.target = DType::kBF16}); });
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_NE(refusal.sentence.find("a file that is quantised is not quantised again"), std::string::npos);
}

TEST(GgufModelFile, ACheckpointThatLacksATensorIsRefused) {
  const TempDir from;
  make_model(from, "qwen3");
  Checkpoint whole = Checkpoint::open(from.path());
  const std::string last = "model.layers.1.self_attn.k_norm.weight";
  for (const auto& [missing, sentence] :
       {std::pair{last, "layers 0 and 1 have other tensors or shapes, expected the same"},
        {std::string("model.norm.weight"), "has no tensor for 'output_norm.weight'"}}) {
    const TempDir dir;
    make_model(dir, "qwen3");
    std::vector<test::NamedTensor> tensors;
    for (const std::string& name : whole.names()) {
      if (name != missing) tensors.push_back({name, whole.tensor(name, whole.shape_of(name))});
    }
    test::write_safetensors(dir / "model.safetensors", tensors);
    const auto refusal = refusal_of([&] { written(dir, DType::kBF16); });
    EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
    EXPECT_EQ(refusal.sentence, str(dir.path().string(), ": ", sentence));
  }
}

TEST(GgufModelFile, ModelsHaveAShortName) {
  EXPECT_EQ(gguf_model_name("/hub/models--Qwen--Qwen3-0.6B/snapshots/0123"), "Qwen3-0.6B");
  EXPECT_EQ(gguf_model_name("/models/my--model/"), "my--model");
}

TEST(GgufModelFile, DiffusionModelsAreRefusedByName) {
  for (const std::string family : {"llada", "dream", "sdar", "llada2", "diffusion_gemma"}) {
    const TempDir dir;
    make_model(dir, family);
    const auto refusal = refusal_of([&] { written(dir, DType::kBF16); });
    EXPECT_EQ(refusal.code, ErrorCode::kUnsupported) << family;
    EXPECT_NE(refusal.sentence.find("have no GGUF file"), std::string::npos) << refusal.sentence;
    EXPECT_FALSE(std::filesystem::exists(dir / "model.gguf"));
  }
}

TEST(GgufModelFile, AValueThatIsNoNumberIsRefusedWithItsTensor) {
  const TempDir dir;
  make_model(dir, "qwen3");
  std::fstream file(dir / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-2, std::ios::end);
  file.write("\xc0\x7f", 2);  // NaN in bfloat16
  file.close();
  for (const GgufTarget& target : {GgufTarget(DType::kBF16), GgufTarget(QuantPreset::kQ6_K)}) {
    const auto refusal = refusal_of([&] { written(dir, target); });
    EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
    EXPECT_NE(refusal.sentence.find("holds nan, "), std::string::npos) << refusal.sentence;
    EXPECT_FALSE(std::filesystem::exists(dir / "model.gguf"));
  }
}

TEST(GgufModelFile, WhatIsQuantisedIsNotQuantisedAtLoad) {
  const TempDir dir;
  make_model(dir, "qwen3");
  const std::filesystem::path file = written(dir, QuantPreset::kQ8_0);
  const auto refusal = refusal_of([&] { load_model(read_description(file), {.quantize = QuantPreset::kQ4_K_M}); });
  EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refusal.sentence.find("quantize is q4_k_m, expected none: "), std::string::npos) << refusal.sentence;
  EXPECT_NE(refusal.sentence.find(" is quantised already, its tensor '"), std::string::npos) << refusal.sentence;
}

TEST(GgufModelFile, RowsThatABlockDoesNotDivideAreSaid) {
  const TempDir dir;
  make_model(dir, "qwen3");  // rows of 32 and 64
  const auto said_for = [&](const GgufTarget& target) {
    std::string said;
    const auto log = [&](LogLevel, std::string_view sentence) { said += sentence; };
    write_gguf(read_description(dir.path()), dir / "a.gguf", {.target = target, .log = log});
    return said;
  };
  EXPECT_TRUE(said_for(QuantPreset::kQ4_K_M).starts_with("15 of 15 matrices have rows that 256 does not divide"))
      << said_for(QuantPreset::kQ4_K_M);
  EXPECT_EQ(said_for(QuantPreset::kQ8_0), "");
  EXPECT_EQ(said_for(DType::kBF16), "");
}

TEST(GgufModelFile, ProgressCountsToTheEndAndStopsTheWork) {
  const TempDir dir;
  make_model(dir, "qwen3");
  int64_t last = 0, all = 0;
  write_gguf(read_description(dir.path()), dir / "a.gguf",
             {.target = DType::kBF16, .progress = [&](std::string_view, int64_t done, int64_t total) {
                EXPECT_GT(done, last);
                last = done, all = total;
              }});
  EXPECT_EQ(static_cast<uint64_t>(all), std::filesystem::file_size(dir / "a.gguf"));
  EXPECT_LE(last, all);
  EXPECT_GT(last, all / 2);
  const auto stop = [](std::string_view, int64_t, int64_t) { throw Error(ErrorCode::kCancelled, "stopped"); };
  const auto refusal = refusal_of(
      [&] { write_gguf(read_description(dir.path()), dir / "b.gguf", {.target = DType::kBF16, .progress = stop}); });
  EXPECT_EQ(refusal.code, ErrorCode::kCancelled);
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    EXPECT_EQ(entry.path().filename().string().find("unfinished"), std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
