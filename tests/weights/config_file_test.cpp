#include "headrace/weights/config_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

std::string error_of(const std::function<void()>& call) {
  const auto refused = testing_support::refusal_of(call);
  EXPECT_EQ(refused.code, ErrorCode::kModelFile);
  return refused.sentence;
}

const JsonValue kConfig = JsonValue::parse(
    R"({"hidden":96,"eps":1e-6,"tie":true,"name":"qwen","none":null,"eos":[1,2],"kinds":["a"],"rope":{"theta":10000}})",
    "config.json");

TEST(ConfigFile, ReadsEveryKind) {
  EXPECT_EQ(kConfig.at("hidden").as_int(1), 96);
  EXPECT_EQ(kConfig.at("eps").as_float(), 1e-6);
  EXPECT_EQ(kConfig.at("rope").at("theta").as_float(), 10000.0);
  EXPECT_TRUE(kConfig.at("tie").as_bool());
  EXPECT_EQ(kConfig.at("name").as_string(), "qwen");
  EXPECT_EQ(kConfig.at("eos").as_ints(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(kConfig.at("kinds").as_strings(), std::vector<std::string>{"a"});
}

TEST(ConfigFile, AbsentAndNullGiveTheDefault) {
  EXPECT_EQ(kConfig.find("none"), nullptr);
  EXPECT_EQ(kConfig.int_or("absent", 7), 7);
  EXPECT_EQ(kConfig.int_or("none", 7), 7);
  EXPECT_EQ(kConfig.float_or("absent", 0.5), 0.5);
  EXPECT_TRUE(kConfig.bool_or("absent", true));
  EXPECT_EQ(kConfig.string_or("name", "x"), "qwen");
}

TEST(ConfigFile, ErrorsNameFileAndKey) {
  EXPECT_EQ(error_of([] { kConfig.at("rope").at("theta").as_string(); }),
            "config.json: rope.theta is an integer, expected a string");
  EXPECT_EQ(error_of([] { kConfig.at("hidden").as_int(1, 64); }), "config.json: hidden is 96, expected 1 to 64");
  EXPECT_EQ(error_of([] { kConfig.at("none"); }), "config.json: the top level has no 'none'");
  EXPECT_EQ(error_of([] { kConfig.at("eps").as_int(); }),
            "config.json: eps is a number with a fraction, expected an integer");
  EXPECT_EQ(error_of([] { kConfig.at("eos").as_array()[1].as_bool(); }),
            "config.json: eos[1] is an integer, expected a boolean");
  EXPECT_EQ(error_of([] { kConfig.int_or("name", 1); }), "config.json: name is a string, expected an integer");
}

TEST(ConfigFile, RefusesBadJson) {
  const std::string deep = str(std::string(65, '['), 1, std::string(65, ']'));
  for (const std::string text : {"", "{", "{} x", "{\"a\":NaN}", "\xff", "{\"a\":18446744073709551616}", deep.c_str()})
    EXPECT_NE(error_of([&] { JsonValue::parse(text, "c"); }).find("c: not valid JSON"), std::string::npos) << text;
  EXPECT_EQ(error_of([] { JsonValue::parse(R"({"a":{"b":1,"b":2}})", "c"); }), "c: a has the key 'b' twice");
  EXPECT_EQ(error_of([] { JsonValue::parse(R"({"a":9223372036854775808})", "c"); }),
            "c: a is 9223372036854775808, beyond 2^63 - 1");
}

TEST(ConfigFile, ReadsAFile) {
  const test::TempDir dir;
  test::write_file(dir / "config.json", R"({"a":1})");
  EXPECT_EQ(read_json_file(dir / "config.json").at("a").as_int(), 1);
  EXPECT_NE(error_of([&] { read_json_file(dir / "absent.json"); }).find("absent.json: cannot be opened"),
            std::string::npos);
}

}  // namespace
}  // namespace headrace
