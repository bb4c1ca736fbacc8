#include "headrace/weights/config_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

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
  for (const std::string text :
       {"", "{", "{} x", "\xff", "{\"a\":NaN", "{\"a\":nan}", "{\"a\":Infinityx}", "{\"a\":01}", "{NaN:1}",
        "{\"a\":1000000000000000000000 1}", "{\"a\":00000000000000000000001}", deep.c_str()})
    EXPECT_NE(error_of([&] { JsonValue::parse(text, "c"); }).find("c: not valid JSON"), std::string::npos) << text;
}

// transformers' files hold int(1e30) for no limit, Mamba's Infinity; none of them is a key that is read here.
TEST(ConfigFile, NumbersThatPythonWritesStandInKeysThatNobodyReads) {
  const JsonValue c = JsonValue::parse(
      R"({"big":1000000000000000019884624838656,"wide":18446744073709551616,"just":9223372036854775808,
          "list":[0.0,Infinity,-Infinity],"none":NaN,"far":1e999,"text":"NaN, 1000000000000000000000 \" Infinity",
          "long":1000000000000000001,"least":-9223372036854775808,"hidden":96})",
      "c");
  EXPECT_EQ(c.at("hidden").as_int(), 96);
  EXPECT_EQ(c.at("long").as_int(), 1000000000000000001);
  EXPECT_EQ(c.at("least").as_int(std::numeric_limits<int64_t>::min()), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(c.at("text").as_string(), "NaN, 1000000000000000000000 \" Infinity");
  EXPECT_EQ(c.at("big").as_float(), 1e30);
  EXPECT_EQ(c.at("just").as_float(), 9223372036854775808.0);
  EXPECT_EQ(error_of([&] { c.at("big").as_int(1, 64); }),
            "c: big is 1000000000000000019884624838656, expected 1 to 64");
  EXPECT_EQ(error_of([&] { c.at("just").as_int(); }),
            "c: just is 9223372036854775808, expected 0 to 9223372036854775807");
  EXPECT_EQ(error_of([&] { c.at("none").as_float(); }), "c: none is NaN, expected a finite number");
  EXPECT_EQ(error_of([&] { c.at("far").as_float(); }), "c: far is 1e999, expected a finite number");
  EXPECT_EQ(error_of([&] { c.at("list").as_array()[2].as_float(); }),
            "c: list[2] is -Infinity, expected a finite number");
  EXPECT_EQ(error_of([&] { c.at("wide").as_string(); }), "c: wide is a number beyond 64 bits, expected a string");
}

TEST(ConfigFile, OfAKeyThatStandsTwiceTheLastValueCountsAsInPython) {
  const JsonValue c = JsonValue::parse(R"({"a":{"b":1,"c":3,"b":2},"a2":1,"a2":null})", "c");
  EXPECT_EQ(c.at("a").at("b").as_int(), 2);
  EXPECT_EQ(c.at("a").as_object().size(), 2u);
  EXPECT_EQ(c.find("a2"), nullptr);
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
