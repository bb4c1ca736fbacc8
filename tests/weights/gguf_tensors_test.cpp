// Tensors of GGUF files under Hugging Face's names: each change of names, shapes, orders and values.
#include "headrace/weights/gguf_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "headrace/weights/checkpoint.h"
#include "support/gguf_model.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::GgufModel;
using test::TempDir;

std::vector<double> values_of(Checkpoint& checkpoint, const std::string& name) {
  const TensorView tensor = checkpoint.tensor(name, checkpoint.shape_of(name));
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.numel(); ++i) values.push_back(element_as_double(tensor, i));
  return values;
}

std::vector<double> counted_from(double first, size_t count) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<double>(i);
  return values;
}

TEST(GgufTensors, HaveHuggingFacesNamesAndShapes) {
  GgufModel model("qwen3");
  model.key("block_count", 1);
  const std::map<std::string, std::string> names = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output.weight", "lm_head.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
      {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
      {"blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias"},
      {"blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"},
      {"blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"},
      {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"},
      {"blk.0.ffn_gate_inp.weight", "model.layers.0.mlp.gate.weight"},
      {"blk.1.attn_q.weight", "mtp.blk.1.attn_q.weight"},
      {"blk.0.surprise.weight", "blk.0.surprise.weight"},
      {"blk.x.attn_q.weight", "blk.x.attn_q.weight"}};
  for (const auto& [gguf, huggingface] : names) model.counted(gguf, {2, 3});
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  EXPECT_EQ(checkpoint.names().size(), names.size());
  for (const auto& [gguf, huggingface] : names) {
    EXPECT_EQ(checkpoint.shape_of(huggingface), (Shape{2, 3})) << huggingface;
    EXPECT_EQ(values_of(checkpoint, huggingface), counted_from(0, 6)) << huggingface;
  }
}

// Row h D + 2 j + e of the file is row h D + e D / 2 + j of Hugging Face's.
TEST(GgufTensors, QueriesAndKeysOfLlamaHaveTheirRowsBack) {
  GgufModel model("llama");
  model.key("attention.head_count", 2), model.list("attention.head_count_kv", {1});
  const std::vector<float> queries = {0, 2, 1, 3, 4, 6, 5, 7}, keys = {0, 2, 1, 3};
  model.floats("blk.0.attn_q.weight", {8, 1}, queries);
  model.floats("blk.0.attn_q.bias", {8}, queries);
  model.floats("blk.0.attn_k.weight", {4, 1}, keys);
  model.floats("blk.0.attn_v.weight", {4, 1}, keys);
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  const std::string attention = "model.layers.0.self_attn.";
  EXPECT_EQ(values_of(checkpoint, attention + "q_proj.weight"), counted_from(0, 8));
  EXPECT_EQ(values_of(checkpoint, attention + "q_proj.bias"), counted_from(0, 8));
  EXPECT_EQ(values_of(checkpoint, attention + "k_proj.weight"), counted_from(0, 4));
  EXPECT_EQ(values_of(checkpoint, attention + "v_proj.weight"), (std::vector<double>{0, 2, 1, 3}));
}

TEST(GgufTensors, ExpertsAreMatricesOfTheirOwn) {
  GgufModel model("qwen3moe");
  model.counted("blk.0.ffn_gate_exps.weight", {2, 3, 4});
  model.counted("blk.0.ffn_down_exps.weight", {2, 4, 3});
  model.counted("blk.1.ffn_gate_up_exps.weight", {2, 2, 4});
  model.key("block_count", 2);
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  const std::string first = "model.layers.0.mlp.experts.", second = "model.layers.1.mlp.experts.";
  EXPECT_EQ(checkpoint.shape_of(first + "1.gate_proj.weight"), (Shape{3, 4}));
  EXPECT_EQ(values_of(checkpoint, first + "1.gate_proj.weight"), counted_from(12, 12));
  EXPECT_EQ(values_of(checkpoint, first + "0.down_proj.weight"), counted_from(0, 12));
  EXPECT_EQ(values_of(checkpoint, second + "1.gate_proj.weight"), counted_from(8, 4));
  EXPECT_EQ(values_of(checkpoint, second + "1.up_proj.weight"), counted_from(12, 4));
}

// Two key heads and six value heads of size 2: the file's value head j 2 + g is Hugging Face's g 3 + j.
GgufModel hybrid(const std::string& architecture) {
  GgufModel model(architecture);
  model.key("ssm.time_step_rank", 6), model.key("ssm.group_count", 2);
  model.key("ssm.state_size", 1), model.key("ssm.inner_size", 12);
  model.key("attention.head_count", 1), model.key("attention.head_count_kv", 1), model.key("block_count", 2);
  return model;
}
const std::string kGdn = "model.layers.0.linear_attn.";

TEST(GgufTensors, ValueHeadsOfQwen35HaveHuggingFacesOrder) {
  GgufModel model = hybrid("qwen35");
  const std::vector<float> heads = {0, 3, 1, 4, 2, 5}, rows = {0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11};
  std::vector<float> mixed = {-4, -3, -2, -1};  // queries and keys
  mixed.insert(mixed.end(), rows.begin(), rows.end());
  model.floats("blk.0.attn_qkv.weight", {16, 1}, mixed);
  model.floats("blk.0.ssm_conv1d.weight", {16, 1}, mixed);
  model.floats("blk.0.attn_gate.weight", {12, 1}, rows);
  model.floats("blk.0.ssm_beta.weight", {6, 1}, heads);
  model.floats("blk.0.ssm_alpha.weight", {6, 1}, heads);
  model.floats("blk.0.ssm_dt.bias", {6}, heads);
  std::vector<float> decay;
  for (const float head : heads) decay.push_back(-std::exp(head));
  model.floats("blk.0.ssm_a", {6}, decay);
  model.floats("blk.0.ssm_out.weight", {1, 12}, rows);
  model.floats("blk.0.ssm_norm.weight", {2}, {1, 2});
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_qkv.weight"), counted_from(-4, 16));
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_z.weight"), counted_from(0, 12));
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_b.weight"), counted_from(0, 6));
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_a.weight"), counted_from(0, 6));
  EXPECT_EQ(values_of(checkpoint, kGdn + "dt_bias"), counted_from(0, 6));
  EXPECT_EQ(values_of(checkpoint, kGdn + "out_proj.weight"), counted_from(0, 12));
  EXPECT_EQ(values_of(checkpoint, kGdn + "norm.weight"), counted_from(1, 2));
  EXPECT_EQ(checkpoint.shape_of(kGdn + "conv1d.weight"), (Shape{16, 1, 1}));
  EXPECT_EQ(values_of(checkpoint, kGdn + "conv1d.weight"), counted_from(-4, 16));
  const std::vector<double> a_log = values_of(checkpoint, kGdn + "A_log");
  for (size_t i = 0; i < a_log.size(); ++i) EXPECT_NEAR(a_log[i], static_cast<double>(i), 1e-6);
}

// Key head g has rows of its own: [b of its value heads | a of them], and [q | k | v | z] of older files.
TEST(GgufTensors, ProjectionsOfQwen3NextAreTakenApart) {
  GgufModel model = hybrid("qwen3next");
  model.floats("blk.0.ssm_ba.weight", {12, 1}, {0, 1, 2, 10, 11, 12, 3, 4, 5, 13, 14, 15});
  std::vector<float> mixed;
  for (const float g : {0.0F, 1.0F}) {
    mixed.insert(mixed.end(), {g, 10 + g});
    for (int i = 0; i < 6; ++i) mixed.push_back(20 + 6 * g + static_cast<float>(i));
    for (int i = 0; i < 6; ++i) mixed.push_back(40 + 6 * g + static_cast<float>(i));
  }
  model.floats("blk.0.ssm_in.weight", {28, 1}, mixed);
  model.counted("blk.0.ssm_dt.bias", {6});
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_b.weight"), counted_from(0, 6));
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_a.weight"), counted_from(10, 6));
  std::vector<double> expected = {0, 1, 10, 11};
  for (const double value : counted_from(20, 12)) expected.push_back(value);
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_qkv.weight"), expected);
  EXPECT_EQ(values_of(checkpoint, kGdn + "in_proj_z.weight"), counted_from(40, 12));
  EXPECT_EQ(values_of(checkpoint, kGdn + "dt_bias"), counted_from(0, 6));
}

TEST(GgufTensors, NormsOfHybridsLoseTheOneThatConvertersAdd) {
  GgufModel model = hybrid("qwen3next");
  for (const char* name : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.post_attention_norm.weight",
                           "blk.1.attn_q_norm.weight", "blk.0.ssm_norm.weight"}) {
    model.counted(name, {2}, 1);
  }
  model.counted("blk.0.ffn_gate_inp_shexp.weight", {3});
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  for (const char* name :
       {"model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
        "model.layers.1.self_attn.q_norm.weight"}) {
    EXPECT_EQ(values_of(checkpoint, name), counted_from(0, 2)) << name;
  }
  EXPECT_EQ(values_of(checkpoint, kGdn + "norm.weight"), counted_from(1, 2));
  EXPECT_EQ(checkpoint.shape_of("model.layers.0.mlp.shared_expert_gate.weight"), (Shape{1, 3}));
}

// Layer 1 has no convolution, so its attn_qkv is full attention's: gated queries, keys, values.
TEST(GgufTensors, FusedQueriesKeysAndValuesAreTakenApart) {
  GgufModel model = hybrid("qwen35");
  model.counted("blk.1.attn_qkv.weight", {8, 1});
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  EXPECT_EQ(values_of(checkpoint, "model.layers.1.self_attn.q_proj.weight"), counted_from(0, 4));
  EXPECT_EQ(values_of(checkpoint, "model.layers.1.self_attn.k_proj.weight"), counted_from(4, 2));
  EXPECT_EQ(values_of(checkpoint, "model.layers.1.self_attn.v_proj.weight"), counted_from(6, 2));
}

TEST(GgufTensors, QuantisedRowsArePacked) {
  GgufModel model("llama");
  model.key("attention.head_count", 1);
  model.blocks("blk.0.attn_q.weight", 12);
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const WeightView weight = checkpoint.weight(name, {12, 32});
  ASSERT_NE(weight.packed(), nullptr);
  EXPECT_EQ(checkpoint.weight(name, {12, 32}).packed()->data, weight.packed()->data);
  const TensorView floats = checkpoint.tensor(name, {12, 32});
  for (int64_t row = 0; row < 12; ++row) {
    std::vector<float> values(32);
    unpack_row(*weight.packed(), row, values);
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t in_file = row < 6 ? 2 * row : 2 * (row - 6) + 1;
      EXPECT_EQ(values[static_cast<size_t>(i)], static_cast<float>(in_file + i));
      EXPECT_EQ(element_as_double(floats, row * 32 + i), static_cast<double>(in_file + i));
    }
  }
}

TEST(GgufTensors, ColumnsThatMoveAreReadFromTheirPlaces) {
  GgufModel model("qwen35");
  model.key("ssm.time_step_rank", 8), model.key("ssm.group_count", 2);
  model.key("ssm.state_size", 32), model.key("ssm.inner_size", 256);
  model.blocks("blk.0.ssm_out.weight", 2, 8);
  const TempDir dir;
  Checkpoint checkpoint = Checkpoint::open(model.write(dir));
  const WeightView weight = checkpoint.weight(kGdn + "out_proj.weight", {2, 256});
  ASSERT_NE(weight.packed(), nullptr);
  const PackedMatrix& packed = *weight.packed();
  ASSERT_EQ(packed.column_unit, 32);
  EXPECT_EQ(std::vector<int32_t>(packed.column_order, packed.column_order + 8),
            (std::vector<int32_t>{0, 4, 1, 5, 2, 6, 3, 7}));
  const TensorView floats = checkpoint.tensor(kGdn + "out_proj.weight", {2, 256});
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t head = i / 32, in_file = head % 4 * 2 + head / 4;
    EXPECT_EQ(element_as_double(floats, i), static_cast<double>(in_file + i % 32));
  }
}

TEST(GgufTensors, ContradictionsAreRefused) {
  const auto sentence = [](const GgufModel& model, const std::string& tensor) {
    const TempDir dir;
    const std::filesystem::path path = model.write(dir);
    return testing_support::refusal_of([&] {
             Checkpoint checkpoint = Checkpoint::open(path);
             checkpoint.weight(tensor, checkpoint.shape_of(tensor));
           })
        .sentence;
  };
  GgufModel heads("llama");
  heads.key("attention.head_count", 3);
  heads.counted("blk.0.attn_q.weight", {8, 1});
  EXPECT_NE(
      sentence(heads, "").find("'blk.0.attn_q.weight' has shape [8, 1] in Hugging Face's order, expected rows of"),
      std::string::npos);
  GgufModel groups = hybrid("qwen35");
  groups.counted("blk.0.attn_gate.weight", {7, 1});
  EXPECT_NE(sentence(groups, "").find("expected 12 rows"), std::string::npos);
  GgufModel sign = hybrid("qwen35");
  sign.floats("blk.0.ssm_a", {6}, {-1, -1, 1, -1, -1, -1});
  EXPECT_NE(sentence(sign, kGdn + "A_log").find("holds 1, expected negative numbers"), std::string::npos);
}

}  // namespace
}  // namespace headrace
