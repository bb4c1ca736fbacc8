// Every way in which a GGUF file is turned away, and the odd ones that are not. One row per rule.
#include <gtest/gtest.h>

#include "headrace/gguf/gguf_file.h"
#include "support/gguf_writer.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::gguf_key;
using test::gguf_tensor;
using test::gguf_text;
using test::GgufBytes;
using test::le;
using test::TempDir;
using test::write_file;

constexpr uint32_t kU32 = 4, kI32 = 5, kBool = 7, kText = 8, kArray = 9, kU64 = 10;
constexpr uint32_t kF32 = 0, kQ8_0 = 8;

std::string sentence_of(const std::function<void()>& call) { return testing_support::refusal_of(call).sentence; }

struct GgufCase {
  std::string name;
  std::string bytes;    // of the file
  std::string message;  // what() contains it; empty: the file is read
};
std::ostream& operator<<(std::ostream& out, const GgufCase& c) { return out << c.name; }

std::string array(uint32_t type, uint64_t count, std::string_view elements) {
  return le(type) + le(count) + std::string(elements);
}
std::string of_key(const std::string& key) { return GgufBytes{.keys = {key}}.bytes(); }
std::string of_tensor(const std::string& tensor, size_t bytes) {
  return GgufBytes{.tensors = {tensor}, .data = std::string(bytes, 'd')}.bytes();
}
std::string of_two(uint64_t second, size_t bytes) {
  return GgufBytes{.tensors = {gguf_tensor("a", {4}, kF32, 0), gguf_tensor("b", {4}, kF32, second)},
                   .data = std::string(bytes, 'd')}
      .bytes();
}
std::string of_alignment(const std::string& value, uint32_t type = kU32) {
  return of_key(gguf_key("general.alignment", type, value));
}
constexpr uint64_t k2_63 = uint64_t{1} << 63;

const std::vector<GgufCase> kGgufCases = {
    {"empty_file", "", "is empty"},
    {"another_file", std::string(100, 'x'), "does not begin with GGUF"},
    {"half_a_magic", "GGU", "the file ends within it"},
    {"no_version", "GGUF", "the file ends within it"},
    {"version_1", GgufBytes{.version = 1}.bytes(), "version 1, expected 2 or 3"},
    {"version_4", GgufBytes{.version = 4}.bytes(), "version 4, expected 2 or 3"},
    {"other_byte_order", GgufBytes{.version = 3U << 24}.bytes(), "another byte order"},
    {"too_many_tensors", GgufBytes{}.counted(1'000'001, 0), "1000001 tensors, at most 1000000"},
    {"tensors_past_the_file", GgufBytes{}.counted(1, 0), "1 tensors do not fit into the 8 bytes that follow"},
    {"too_many_keys", GgufBytes{}.counted(0, 100'001), "100001 keys, at most 100000"},
    {"keys_past_the_file", GgufBytes{}.counted(0, 1), "1 keys do not fit into the 0 bytes that follow"},
    {"counts_of_2_64", GgufBytes{}.counted(~uint64_t{0}, ~uint64_t{0}), "at most 1000000"},
    {"key_longer_than_the_file", of_key(le(k2_63) + std::string(64, 'k')), "a key of 9223372036854775808 bytes"},
    {"key_above_65535", of_key(gguf_key(std::string(65'536, 'k'), kU32, le(1U))), "at most 65535 are read"},
    {"key_empty", of_key(gguf_key("", kU32, le(1U))), "'' is no key"},
    {"key_with_a_blank", of_key(gguf_key("a b", kU32, le(1U))), "'a b' is no key"},
    {"key_twice", GgufBytes{.keys = {gguf_key("a", kU32, le(1U)), gguf_key("a", kU32, le(1U))}}.bytes(),
     "key 'a': appears twice"},
    {"value_of_type_13", of_key(gguf_key("a", 13, le(uint64_t{1}))), "a value of type 13, expected 0 to 12"},
    {"value_cut_off", of_key(gguf_key("a", kU32, "1")), "the file ends within it"},
    {"bool_of_2", of_key(gguf_key("a", kBool, "\x02")), "a bool of 2, expected 0 or 1"},
    {"text_longer_than_the_file", of_key(gguf_key("a", kText, le(uint64_t{100}) + "text")), "a text of 100 bytes"},
    {"array_of_arrays", of_key(gguf_key("a", kArray, array(kArray, 0, ""))), "an array of arrays"},
    {"array_of_type_99", of_key(gguf_key("a", kArray, array(99, 0, ""))), "a value of type 99"},
    {"array_too_long", of_key(gguf_key("a", kArray, array(kBool, 20'000'000, ""))), "at most 16777216 are read"},
    {"array_past_the_file", of_key(gguf_key("a", kArray, array(kU32, 3, le(uint64_t{1})))),
     "3 elements takes 12 bytes, the file has 8 more"},
    {"array_count_wraps", of_key(gguf_key("a", kArray, array(kU64, k2_63 / 4, le(uint64_t{1})))), "at most 16777216"},
    {"array_with_a_bad_bool", of_key(gguf_key("a", kArray, array(kBool, 2, "\x01\x07"))), "a bool of 7"},
    {"array_with_a_large_integer", of_key(gguf_key("a", kArray, array(kU64, 1, le(k2_63)))), "expected less than 2^63"},
    {"array_text_past_the_file", of_key(gguf_key("a", kArray, array(kText, 1, le(uint64_t{9}) + "12345678"))),
     "a text of 9 bytes"},
    {"alignment_0", of_alignment(le(0U)), "is 0, expected a power of two up to 65536"},
    {"alignment_48", of_alignment(le(48U)), "is 48, expected a power of two"},
    {"alignment_2_30", of_alignment(le(1U << 30)), "is 1073741824, expected a power of two"},
    {"alignment_negative", of_alignment(le(-32), kI32), "is -32, expected a power of two"},
    {"alignment_a_text", of_alignment(gguf_text("32"), kText), "has another type, expected an integer"},
    {"name_empty", of_tensor(gguf_tensor("", {4}, kF32, 0), 16), "'' is no name"},
    {"name_of_64", of_tensor(gguf_tensor(std::string(64, 'n'), {4}, kF32, 0), 16), "a name of 64 bytes, at most 63"},
    {"name_with_a_control", of_tensor(gguf_tensor("a\nb", {4}, kF32, 0), 16), "is no name"},
    {"name_no_utf8", of_tensor(gguf_tensor("a\xff", {4}, kF32, 0), 16), "is no name"},
    {"name_twice",
     GgufBytes{.tensors = {gguf_tensor("a", {8}, kF32, 0), gguf_tensor("a", {8}, kF32, 32)},
               .data = std::string(64, 'd')}
         .bytes(),
     "tensor 'a': appears twice"},
    {"no_dims", of_tensor(gguf_tensor("a", {}, kF32, 0) + le(uint64_t{0}), 16), "0 dimensions, expected 1 to 4"},
    {"five_dims", of_tensor(gguf_tensor("a", {1, 1, 1, 1, 1}, kF32, 0), 16), "5 dimensions, expected 1 to 4"},
    {"dim_0", of_tensor(gguf_tensor("a", {4, 0}, kF32, 0), 16), "a dimension of 0"},
    {"dim_above_2_40", of_tensor(gguf_tensor("a", {k2_63}, kF32, 0), 16), "a dimension of 9223372036854775808"},
    {"dims_wrap", of_tensor(gguf_tensor("a", {uint64_t{1} << 40, uint64_t{1} << 40}, kF32, 0), 16),
     "overflows 64 bits"},
    {"bytes_wrap", of_tensor(gguf_tensor("a", {uint64_t{1} << 40, uint64_t{1} << 23}, kF32, 0), 16),
     "overflow 64 bits"},
    {"half_blocks", of_tensor(gguf_tensor("a", {48}, kQ8_0, 0), 51),
     "rows of 48 elements, expected whole blocks of 32 (Q8_0)"},
    {"type_4", of_tensor(gguf_tensor("a", {32}, 4, 0), 64), "its type 4 was removed from the format"},
    {"type_9", of_tensor(gguf_tensor("a", {32}, 9, 0), 64), "its type 9 is for activations"},
    {"type_137", of_tensor(gguf_tensor("a", {32}, 137, 0), 64), "its type 137 is of ik_llama.cpp alone"},
    {"type_60", of_tensor(gguf_tensor("a", {32}, 60, 0), 64), "its type 60 is unknown"},
    {"data_not_aligned", of_two(16, 64), "its data begin at 16, expected 32"},
    {"data_with_a_gap", of_two(64, 96), "its data begin at 64, expected 32"},
    {"data_overlap", of_two(0, 64), "its data begin at 0, expected 32"},
    {"data_cut_off", of_tensor(gguf_tensor("a", {4}, kF32, 0), 15), "the download is not complete"},
    {"data_missing", GgufBytes{.tensors = {gguf_tensor("a", {4}, kF32, 0)}}.bytes(), "the download is not complete"},
    {"a_type_that_is_not_read", of_tensor(gguf_tensor("a", {256}, 10, 0), 84), ""},
    {"version_2", GgufBytes{.version = 2}.bytes(), ""},
    {"nothing_in_it", GgufBytes{}.bytes(), ""},
    {"texts_without_utf8", of_key(gguf_key("a", kArray, array(kText, 1, gguf_text("\xff")))), ""},
    {"two_tensors", of_two(32, 48), ""},
    {"bytes_behind_the_last", of_tensor(gguf_tensor("a", {4}, kF32, 0), 32), ""},
};

class GgufRules : public testing::TestWithParam<GgufCase> {};

TEST_P(GgufRules, RefusesWithOneLineOrReads) {
  const TempDir dir;
  const std::string path = (dir / "x.gguf").string();
  write_file(path, GetParam().bytes);
  const std::string message = sentence_of([&] { const GgufFile file(path); });
  if (GetParam().message.empty()) {
    EXPECT_EQ(message, "");
    return;
  }
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
  EXPECT_TRUE(message.starts_with(path + ": ")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(All, GgufRules, testing::ValuesIn(kGgufCases), [](const auto& row) { return row.param.name; });

GgufBytes small_model() {
  return {
      .keys = {gguf_key("general.architecture", kText, gguf_text("qwen3")), gguf_key("a.count", kU32, le(7U)),
               gguf_key("a.large", kU64, le(k2_63)), gguf_key("a.size", 6, le(0.5F)), gguf_key("a.flag", kBool, "\x01"),
               gguf_key("a.texts", kArray, array(kText, 2, gguf_text("x") + gguf_text(""))),
               gguf_key("a.numbers", kArray, array(6, 2, le(1.5F) + le(-2.0F))),
               gguf_key("a.integers", kArray, array(kI32, 2, le(-1) + le(5)))},
      .tensors = {gguf_tensor("a", {4, 2}, kF32, 0), gguf_tensor("b", {32}, kQ8_0, 32)},
      .data = std::string(66, 'd')};
}

std::span<const unsigned char> span_of(const std::string& bytes) {
  return {reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()};
}

TEST(GgufHeader, ReadsValuesAndTensors) {
  const std::string bytes = small_model().bytes();
  const GgufHeader header("f", span_of(bytes));
  EXPECT_EQ(header.text("general.architecture"), "qwen3");
  EXPECT_EQ(header.integer("a.count"), 7);
  EXPECT_EQ(header.number("a.count"), 7.0);
  EXPECT_EQ(header.number("a.size"), 0.5);
  EXPECT_EQ(header.boolean("a.flag"), true);
  EXPECT_EQ(*header.texts("a.texts"), (std::vector<std::string_view>{"x", ""}));
  EXPECT_EQ(*header.numbers("a.numbers"), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(*header.integers("a.integers"), (std::vector<int64_t>{-1, 5}));
  EXPECT_FALSE(header.integer("absent"));
  EXPECT_EQ(header.texts("absent"), nullptr);
  ASSERT_EQ(header.tensors().size(), 2u);
  const GgufTensor& b = *header.find_tensor("b");
  EXPECT_EQ(b.type->name, "Q8_0");
  EXPECT_EQ(b.bytes, 34u);
  EXPECT_EQ(b.begin + b.bytes, bytes.size());
  EXPECT_EQ(header.find_tensor("a")->dims, (std::vector<uint64_t>{4, 2}));
  EXPECT_EQ(header.find_tensor("c"), nullptr);
  EXPECT_EQ(sentence_of([&] { header.integer("a.large"); }),
            "f: key 'a.large': has another type, expected an integer below 2^63");
  EXPECT_EQ(sentence_of([&] { header.text("a.count"); }), "f: key 'a.count': has another type, expected a text");
  EXPECT_EQ(sentence_of([&] { header.integers("a.texts"); }),
            "f: key 'a.texts': has another type, expected an array of integers");
}

TEST(GgufHeader, RefusesEachBeginOfAFile) {
  const std::string bytes = small_model().bytes();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::string begin = bytes.substr(0, length);
    EXPECT_THROW(GgufHeader("f", span_of(begin)), Error) << length;
  }
}

// Each eight bytes in turn become a number that breaks sums and products of a careless reader.
TEST(GgufHeader, SurvivesExtremeNumbersAnywhere) {
  const std::string bytes = small_model().bytes();
  for (const uint64_t number :
       {uint64_t{0}, uint64_t{1}, uint64_t{1} << 31, uint64_t{1} << 32, k2_63 - 1, k2_63, ~uint64_t{0}}) {
    for (size_t at = 0; at + 8 <= bytes.size(); ++at) {
      std::string changed = bytes;
      changed.replace(at, 8, le(number));
      try {
        const GgufHeader header("f", span_of(changed));
        for (const GgufTensor& tensor : header.tensors()) EXPECT_LE(tensor.begin + tensor.bytes, changed.size());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kModelFile) << error.what();
      }
    }
  }
}

std::string part(int no, int count, int tensors, const std::string& name) {
  return GgufBytes{.keys = {gguf_key("split.no", 2, le(static_cast<uint16_t>(no))),
                            gguf_key("split.count", 2, le(static_cast<uint16_t>(count))),
                            gguf_key("split.tensors.count", kI32, le(tensors))},
                   .tensors = {gguf_tensor(name, {4}, kF32, 0)},
                   .data = std::string(16, 'd')}
      .bytes();
}

TEST(Gguf, OpensAllParts) {
  const TempDir dir;
  const auto first = dir / "m-00001-of-00002.gguf", second = dir / "m-00002-of-00002.gguf";
  write_file(first, part(0, 2, 2, "a"));
  const auto refusal = [&] { return sentence_of([&] { open_gguf(first); }).substr(dir.path().string().size() + 1); };
  EXPECT_TRUE(refusal().starts_with("m-00002-of-00002.gguf: cannot be opened")) << refusal();
  write_file(second, part(1, 2, 2, "b"));
  const std::vector<GgufFile> files = open_gguf(first);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_NE(files[1].header().find_tensor("b"), nullptr);
  EXPECT_NE(sentence_of([&] {
              open_gguf(second);
            }).find("is part 2 of 2 of a model, expected its first part, m-00001-of-00002.gguf"),
            std::string::npos);
  write_file(second, part(1, 2, 2, "a"));
  EXPECT_EQ(refusal(), "m-00002-of-00002.gguf: tensor 'a': another part has it, too");
  write_file(second, part(1, 3, 2, "b"));
  EXPECT_EQ(refusal(), "m-00002-of-00002.gguf: is part 2 of 3, expected part 2 of 2");
  write_file(first, part(0, 2, 3, "a"));
  write_file(second, part(1, 2, 3, "b"));
  EXPECT_EQ(refusal(), "m-00001-of-00002.gguf: the parts have 2 tensors, expected 3 (split.tensors.count)");
  write_file(dir / "m.gguf", part(0, 2, 2, "a"));
  EXPECT_NE(sentence_of([&] { open_gguf(dir / "m.gguf"); }).find("expected a name that ends with -00001-of-00002.gguf"),
            std::string::npos);
  write_file(first, part(0, 1001, 2, "a"));
  EXPECT_EQ(refusal(), "m-00001-of-00002.gguf: is one of 1001 parts, expected 1 to 1000");
}

}  // namespace
}  // namespace headrace
