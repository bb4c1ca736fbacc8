#include "headrace/weights/weight_scope.h"

#include <gtest/gtest.h>

#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::TempDir;
using test::write_safetensors;

TEST(WeightScope, JoinsNames) {
  Checkpoint checkpoint = Checkpoint::random(1, 1);
  const WeightScope scope = WeightScope(checkpoint, "model.").scope("layers.3").scope("mlp");
  EXPECT_EQ(scope.full_name("gate_proj.weight"), "model.layers.3.mlp.gate_proj.weight");
  EXPECT_EQ(scope.tensor("w", {2}).data(), checkpoint.tensor("model.layers.3.mlp.w", {2}).data());
}

TEST(WeightScope, ThePrefixIsFixedOncePerCheckpoint) {
  const Tensor w = Tensor::zeros(DType::kF32, {1});
  const std::vector<std::pair<std::string, std::string>> layouts = {
      {"model.", ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}};
  for (const auto& [body, head] : layouts) {
    const TempDir dir;
    write_safetensors(dir / "model.safetensors", {{body + "embed_tokens.weight", w}});
    Checkpoint checkpoint = Checkpoint::open(dir.path());
    const TextWeights weights = find_text_weights(checkpoint);
    EXPECT_EQ(weights.body.prefix(), body);
    EXPECT_EQ(weights.head.prefix(), head);
    EXPECT_TRUE(weights.body.has("embed_tokens.weight"));
    EXPECT_EQ(weights.body.shape_of("embed_tokens.weight"), Shape({1}));
  }
}

TEST(WeightScope, NoneOrTwoLayoutsAreErrors) {
  const Tensor w = Tensor::zeros(DType::kF32, {1});
  const TempDir dir;
  write_safetensors(dir / "model.safetensors", {{"other", w}});
  Checkpoint none = Checkpoint::open(dir.path());
  EXPECT_THROW(find_text_weights(none), Error);
  write_safetensors(dir / "model.safetensors",
                    {{"model.embed_tokens.weight", w}, {"model.language_model.embed_tokens.weight", w}});
  Checkpoint two = Checkpoint::open(dir.path());
  EXPECT_THROW(find_text_weights(two), Error);
  Checkpoint random = Checkpoint::random(1, 1);
  EXPECT_EQ(find_text_weights(random).body.prefix(), "model.");
}

}  // namespace
}  // namespace headrace
