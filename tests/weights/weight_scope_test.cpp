#include "headrace/weights/weight_scope.h"

#include <gtest/gtest.h>

#include "support/refusal.h"
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

TEST(WeightScope, ErrorsNameTheFileOrTheDirectory) {
  const Tensor w = Tensor::zeros(DType::kF32, {1}), integers = Tensor::zeros(DType::kI32, {1});
  Tensor other = Tensor::zeros(DType::kF32, {1});
  set_element(other, 0, 1);
  const TempDir dir;
  const auto refusal = [&dir](const std::vector<test::NamedTensor>& tensors, const auto& ask) {
    write_safetensors(dir / "model.safetensors", tensors);
    Checkpoint checkpoint = Checkpoint::open(dir.path());
    return testing_support::refusal_of([&] { ask(checkpoint); }).sentence;
  };
  const std::string directory = dir.path().string(), file = (dir / "model.safetensors").string();
  EXPECT_TRUE(refusal({{"other", w}}, find_text_weights).starts_with(directory + ": embed_tokens.weight is missing"));
  EXPECT_TRUE(
      refusal({{"model.embed_tokens.weight", w}, {"model.language_model.embed_tokens.weight", w}}, find_text_weights)
          .starts_with(directory + ": embed_tokens.weight is stored under"));
  EXPECT_EQ(refusal({{"a", integers}}, [](Checkpoint& c) { WeightScope(c).tensor("a", {1}); }),
            file + ": tensor 'a' is int32, expected float32, bfloat16 or float16");
  const auto tie = [](Checkpoint& c) { check_tied_head(find_text_weights(c), {1}); };
  EXPECT_TRUE(refusal({{"model.embed_tokens.weight", w}, {"lm_head.weight", other}}, tie)
                  .starts_with(file + ": tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'"));
  EXPECT_EQ(refusal({{"model.embed_tokens.weight", w}, {"lm_head.weight", w}}, tie), "");
}

}  // namespace
}  // namespace headrace
