#include "headrace/weights/model_description.h"

#include <gtest/gtest.h>

#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

TEST(ModelDescription, HoldsBothFilesAndReadsThemOnce) {
  const test::TempDir dir;
  test::write_file(dir / "config.json", R"({"a":1})");
  EXPECT_EQ(read_description(dir.path()).generation_config(), nullptr);
  test::write_file(dir / "generation_config.json", R"({"b":2})");
  const ModelDescription model = read_description(dir.path());
  std::filesystem::remove(dir / "config.json");
  std::filesystem::remove(dir / "generation_config.json");
  EXPECT_EQ(model.directory, dir.path());
  EXPECT_EQ(model.config.at("a").as_int(), 1);
  EXPECT_EQ(model.generation_config()->at("b").as_int(), 2);
}

TEST(ModelDescription, RefusesOtherFormatsThenAMissingConfigThenABrokenOne) {
  const test::TempDir dir;
  const auto refusal = [&dir](std::optional<uint64_t> seed = {}) {
    return testing_support::refusal_of([&] { read_description(dir.path(), seed); }).sentence;
  };
  const std::string missing = dir.path().string() + " is no model directory: it has no config.json";
  EXPECT_EQ(refusal(), missing);
  test::write_file(dir / "model.gguf", "x");
  EXPECT_EQ(refusal(1), missing);
  EXPECT_NE(refusal().find("is a GGUF file"), std::string::npos) << refusal();
  test::write_file(dir / "config.json", "{");
  EXPECT_NE(refusal().find("is a GGUF file"), std::string::npos) << refusal();
  EXPECT_TRUE(refusal(1).starts_with((dir / "config.json: ends within").string())) << refusal(1);
  const auto file = testing_support::refusal_of([&] { read_description(dir / "config.json", 1); });
  EXPECT_TRUE(file.sentence.ends_with("config.json: is a file, expected the directory of a model or a GGUF file"))
      << file.sentence;
}

TEST(ModelDescription, ABrokenGenerationConfigIsRefusedWhenItIsAskedFor) {
  const test::TempDir dir;
  test::write_file(dir / "config.json", "{}");
  test::write_file(dir / "generation_config.json", "{");
  const ModelDescription model = read_description(dir.path());
  const auto refused = testing_support::refusal_of([&] { model.generation_config(); });
  EXPECT_EQ(refused.code, ErrorCode::kModelFile);
  EXPECT_TRUE(refused.sentence.starts_with((dir / "generation_config.json: ends within").string())) << refused.sentence;
}

}  // namespace
}  // namespace headrace
