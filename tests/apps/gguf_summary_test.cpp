#include "apps/gguf_summary.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/gguf_writer.h"
#include "support/safetensors_writer.h"

namespace headrace::app {
namespace {

using test::gguf_key;
using test::gguf_tensor;
using test::gguf_text;
using test::le;

constexpr uint32_t kU32 = 4, kText = 8, kF32 = 0, kQ2_K = 10, kQ4_K = 12, kQ6_K = 14;

// A hybrid's tensors of 256 columns, one of each kind.
std::string small_hybrid() {
  struct Named {
    const char* name;
    uint64_t rows;
    uint32_t type;
    uint64_t row_bytes;
  };
  const std::vector<Named> all = {
      {"token_embd.weight", 4, kQ6_K, 210},        {"blk.0.attn_norm.weight", 1, kF32, 1024},
      {"blk.0.attn_qkv.weight", 2, kQ4_K, 144},    {"blk.0.ssm_out.weight", 2, kQ6_K, 210},
      {"blk.0.ffn_up.weight", 2, kQ4_K, 144},      {"blk.0.ffn_up_exps.weight", 2, kQ2_K, 84},
      {"blk.1.attn_output.weight", 1, kQ4_K, 144}, {"output.weight", 2, kQ6_K, 210}};
  test::GgufBytes file{.keys = {gguf_key("general.architecture", kText, gguf_text("qwen35")),
                                gguf_key("qwen35.context_length", kU32, le(4096U)),
                                gguf_key("tokenizer.ggml.model", kText, gguf_text("gpt2")),
                                gguf_key("tokenizer.ggml.pre", kText, gguf_text("qwen35"))}};
  for (const Named& one : all) {
    file.tensors.push_back(gguf_tensor(one.name, {256, one.rows}, one.type, file.data.size()));
    file.data.resize((file.data.size() + one.rows * one.row_bytes + 31) / 32 * 32);
  }
  return file.bytes();
}

TEST(GgufSummary, CountsTheTensorsOfEachKind) {
  const test::TempDir dir;
  test::write_file(dir / "x.gguf", small_hybrid());
  const GgufSummary summary = gguf_summary(dir / "x.gguf");
  EXPECT_EQ(summary.architecture, "qwen35");
  EXPECT_EQ(summary.context_length, 4096);
  EXPECT_EQ(summary.tokenizer, "gpt2, qwen35");
  EXPECT_FALSE(summary.has_chat_template);
  std::string kinds;
  for (const GgufKind& kind : summary.kinds) kinds += kind.name + " " + std::to_string(kind.parameters / 256) + ", ";
  EXPECT_EQ(kinds, "embedding 4, norms 1, Gated DeltaNet 4, feed-forward 2, experts 2, attention 1, head 2, ");
  const GgufKind& hybrid = summary.kinds[2];
  EXPECT_EQ(hybrid.formats, (std::vector<std::string>{"Q4_K", "Q6_K"}));
  EXPECT_EQ(hybrid.bytes, 2 * 144 + 2 * 210);
  EXPECT_DOUBLE_EQ(hybrid.bits(), 8.0 * (2 * 144 + 2 * 210) / (4 * 256));
  EXPECT_EQ(summary.all().tensors, 8);
  EXPECT_EQ(summary.unread_formats, (std::vector<std::string>{"Q2_K"}));
}

}  // namespace
}  // namespace headrace::app
