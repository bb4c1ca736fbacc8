// Defects of the origins that a whole model could repeat; docs/defects.md lists them.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "engine/golden_batches.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/weights/safetensors_file.h"
#include "support/all_close.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using testing_support::golden_folder;
using testing_support::GoldenBatches;

// Rows that the head ran on; no other product of a golden model has as many outputs as its vocabulary.
int64_t head_rows = 0;

void counting_linear(const LinearArgs& args, const OpContext& context) {
  if (args.weight.dim(0) == GoldenBatches::kVocab) head_rows += args.x.dim(0);
  cpu::select_kernel_set().linear(args, context);
}

// A prompt of two chunks beside a request that decodes: only what is sampled from goes through the head.
TEST(Defects, W34_TheHeadRunsOnTheRowsThatAreSampledAlone) {
  OpSet ops = cpu::select_kernel_set();
  ops.linear = counting_linear;
  for (const char* family : {"qwen3_5", "llama"}) {
    // Strict: every product is an op of the set, none the matrix library's.
    GoldenBatches batches(golden_folder(family), ops, DType::kF32, {.determinism = Determinism::kStrict});
    const size_t prompt = batches.add(1, 60), decoding = batches.add(2, 2);
    batches.step({{decoding, 1, 0}});
    head_rows = 0;
    batches.step({{prompt, 40, 0}, {decoding, 1, 1}});
    EXPECT_EQ(head_rows, 1) << family;
    batches.step({{prompt, 20, 1}});
    EXPECT_EQ(head_rows, 2) << family;
  }
}

// A copy of the text-only Qwen3.5 checkpoint, untied, with the embedding times two as its head.
void write_untied(const std::filesystem::path& to, double head_scale) {
  std::ifstream in(golden_folder("qwen3_5") / "config.json");
  std::string config((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string tied = R"("tie_word_embeddings": true)";
  ASSERT_NE(config.find(tied), std::string::npos);
  test::write_file(to / "config.json",
                   config.replace(config.find(tied), tied.size(), R"("tie_word_embeddings": false)"));
  const SafetensorsFile file(golden_folder("qwen3_5") / "model.safetensors");
  std::vector<test::NamedTensor> tensors;
  Tensor head;
  for (const SafetensorsEntry& entry : file.entries()) {
    const Shape shape(std::vector<int64_t>(entry.shape.begin(), entry.shape.end()));
    const TensorView stored(const_cast<unsigned char*>(file.data(entry)), *entry.dtype->dtype, shape);
    tensors.push_back({entry.name, stored});
    if (entry.name != "model.embed_tokens.weight" || head_scale == 0) continue;
    head = Tensor(stored.dtype(), shape);
    for (int64_t i = 0; i < head.numel(); ++i) set_element(head, i, head_scale * element_as_double(stored, i));
  }
  if (head) tensors.push_back({"lm_head.weight", head});
  test::write_safetensors(to / "model.safetensors", tensors);
}

TEST(Defects, W35_AnUntiedHeadOfTheTextOnlyModelIsReadAndUsed) {
  const test::TempDir untied;
  write_untied(untied.path(), 2);
  GoldenBatches want(golden_folder("qwen3_5"), cpu::select_kernel_set(), DType::kF32);
  GoldenBatches got(untied.path(), cpu::select_kernel_set(), DType::kF32);
  for (GoldenBatches* batches : {&want, &got}) {
    batches->add(3, 9);
    batches->step({{0, 9}});
  }
  Tensor doubled(DType::kF32, want.logits(0).shape());
  for (int64_t i = 0; i < doubled.numel(); ++i) set_element(doubled, i, 2 * element_as_double(want.logits(0), i));
  EXPECT_TRUE(testing_support::bit_equal(got.logits(0), doubled));  // twice is exact
}

TEST(Defects, W35_AnUntiedHeadThatIsMissingIsAnError) {
  const test::TempDir headless;
  write_untied(headless.path(), 0);
  try {
    load_model(headless.path(), {});
    FAIL() << "a model without its head was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile);
    EXPECT_NE(std::string(error.what()).find("'lm_head.weight' is missing"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace
