// Every way in which a safetensors file is turned away, and the odd ones that are not. One row per rule.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "headrace/weights/safetensors_file.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::safetensors_bytes;
using test::TempDir;
using test::write_file;

struct Case {
  std::string name;
  std::string bytes;    // of the file
  std::string message;  // what() contains it; empty: the file is read
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::string length_prefix(uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((length >> (8 * i)) & 255);
  return out;
}
std::string data(size_t count) { return std::string(count, 'd'); }
std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return str(R"({"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}");
}
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets, size_t bytes) {
  return safetensors_bytes(str(R"({"t":)", entry(dtype, shape, offsets), "}"), data(bytes));
}
std::string two(std::string_view first, std::string_view second, size_t bytes) {
  return safetensors_bytes(str(R"({"a":)", entry("U8", "[4]", first), R"(,"b":)", entry("U8", "[4]", second), "}"),
                           data(bytes));
}
std::string header(std::string_view text) { return safetensors_bytes(text, ""); }
const std::string kGood = R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
std::string many_dims(int rank) {
  std::string out = "[1";
  for (int i = 1; i < rank; ++i) out += ",1";
  return out + "]";
}

const std::vector<Case> kCases = {
    {"r01_empty_file", "", "is empty: the download did not begin"},
    {"r01_seven_bytes", "1234567", "has 7 bytes"},
    {"r02_header_above_100_mb", length_prefix(100'000'001) + data(64), "declared 100000001 bytes long, at most"},
    {"r02_header_2_63", length_prefix(uint64_t{1} << 63) + data(64), "at most 100000000"},
    {"r02_header_2_64_minus_1", length_prefix(~uint64_t{0}) + data(64), "at most 100000000"},
    {"r02_header_wraps_with_prefix", length_prefix(~uint64_t{0} - 7) + data(64), "at most 100000000"},
    {"r03_header_past_the_file", length_prefix(100'000'000) + "{}", "declared 100000000 bytes long, the file has 10"},
    {"r03_header_one_byte_short", length_prefix(3) + "{}", "declared 3 bytes long, the file has 10"},
    {"lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a pointer of Git LFS"},
    {"r04_header_empty", length_prefix(0), "the header is empty"},
    {"r05_not_utf8", header("{\"\xff\":1}"), "not valid UTF-8"},
    {"r05_overlong_utf8", header("{\"\xc0\x80\":1}"), "not valid UTF-8"},
    {"r06_not_json", header("{t:1}"), "not valid JSON"},
    {"r06_truncated", header(kGood.substr(0, 30)), "not valid JSON"},
    {"r06_trailing_text", header("{} x"), "not valid JSON"},
    {"r06_two_objects", header("{}{}"), "not valid JSON"},
    {"r06_nul_padding", header(std::string("{}\0\0", 4)), "not valid JSON"},
    {"r07_leading_blank", header(" {}"), "does not begin with '{'"},
    {"r07_byte_order_mark", header("\xEF\xBB\xBF{}"), "does not begin with '{'"},
    {"r08_array", header("[]"), "does not begin with '{'"},
    {"r08_null", header("null"), "does not begin with '{'"},
    {"r09_tensor_twice",
     safetensors_bytes(str(R"({"a":)", entry("U8", "[4]", "[0,4]"), R"(,"a":)", entry("U8", "[4]", "[4,8]"), "}"),
                       data(8)),
     "has 'a' twice"},
    {"r09_tensor_twice_by_escape",
     safetensors_bytes(str(R"({"a":)", entry("U8", "[4]", "[0,4]"), R"(,"\u0061":)", entry("U8", "[4]", "[4,8]"), "}"),
                       data(8)),
     "has 'a' twice"},
    {"r09_metadata_twice", header(R"({"__metadata__":{},"__metadata__":{}})"), "has '__metadata__' twice"},
    {"r09_metadata_key_twice", header(R"({"__metadata__":{"k":"1","k":"2"}})"), "__metadata__ has the key 'k' twice"},
    {"r09_field_twice",
     safetensors_bytes(R"({"t":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", data(4)),
     "tensor 't': the field 'dtype' appears twice"},
    {"r10_metadata_array", header(R"({"__metadata__":[]})"), "__metadata__ is no object"},
    {"r10_metadata_string", header(R"({"__metadata__":"x"})"), "__metadata__ is no object"},
    {"r10_metadata_number", header(R"({"__metadata__":{"k":1}})"), "__metadata__ 'k' is no string"},
    {"r10_metadata_nested", header(R"({"__metadata__":{"k":{}}})"), "__metadata__ 'k' is no string"},
    {"r11_no_dtype", header(R"({"t":{"shape":[0],"data_offsets":[0,0]}})"), "'t': the field 'dtype' is missing"},
    {"r11_no_shape", header(R"({"t":{"dtype":"U8","data_offsets":[0,0]}})"), "'t': the field 'shape' is missing"},
    {"r11_no_offsets", header(R"({"t":{"dtype":"U8","shape":[0]}})"), "'t': the field 'data_offsets' is missing"},
    {"r12_entry_is_array", header(R"({"t":[]})"), "'t': its entry is no object"},
    {"r12_entry_is_null", header(R"({"t":null})"), "'t': its entry is no object"},
    {"r12_dtype_is_number", header(R"({"t":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})"), "dtype is no string"},
    {"r12_shape_is_number", one("U8", "4", "[0,4]", 4), "shape is no array"},
    {"r12_shape_negative", one("U8", "[-4]", "[0,4]", 4), "shape[0] is no integer"},
    {"r12_shape_fraction", one("U8", "[4.0]", "[0,4]", 4), "shape[0] is no integer"},
    {"r12_shape_exponent", one("U8", "[1,4e0]", "[0,4]", 4), "shape[1] is no integer"},
    {"r12_shape_string", one("U8", R"(["4"])", "[0,4]", 4), "shape[0] is no integer"},
    {"r12_shape_bool", one("U8", "[true]", "[0,1]", 1), "shape[0] is no integer"},
    {"r12_shape_null", one("U8", "[null]", "[0,1]", 1), "shape[0] is no integer"},
    {"r12_shape_2_64", one("U8", "[18446744073709551616]", "[0,4]", 4), "malformed or beyond 2^64 - 1"},
    {"r12_offsets_one", one("U8", "[4]", "[0]", 4), "data_offsets has 1 elements, expected 2"},
    {"r12_offsets_three", one("U8", "[4]", "[0,4,4]", 4), "data_offsets has 3 elements, expected 2"},
    {"r12_offsets_object", one("U8", "[4]", "{}", 4), "data_offsets is no array"},
    {"r12_offsets_negative", one("U8", "[4]", "[-1,3]", 4), "data_offsets[0] is no integer"},
    {"r12_offsets_fraction", one("U8", "[4]", "[0,4.5]", 4), "data_offsets[1] is no integer"},
    {"r13_dtype_unknown", one("F128", "[1]", "[0,16]", 16), "dtype 'F128' is unknown"},
    {"r13_dtype_lower_case", one("f32", "[1]", "[0,4]", 4), "dtype 'f32' is unknown"},
    {"r13_dtype_empty", one("", "[1]", "[0,4]", 4), "dtype '' is unknown"},
    {"r14_begin_above_end", one("U8", "[4]", "[4,0]", 4), "begin 4 is above end 0"},
    {"r15_end_past_data", one("U8", "[5]", "[0,5]", 4), "the download is not complete: the file has "},
    {"r15_end_2_64_minus_1", one("U8", "[4]", "[0,18446744073709551615]", 4),
     "data_offsets span 18446744073709551615 bytes"},
    {"r16_first_not_at_zero", one("U8", "[4]", "[4,8]", 8), "data bytes 0 to 4 before it belong to no tensor"},
    {"r16_gap", two("[0,4]", "[6,10]", 10), "'b': data bytes 4 to 6 before it belong to no tensor"},
    {"r17_overlap", two("[0,4]", "[2,6]", 6), "'b': its data overlap"},
    {"r17_same_range", two("[0,4]", "[0,4]", 4), "'b': its data overlap"},
    {"r18_too_small", one("F32", "[2]", "[0,4]", 4), "span 4 bytes, its shape and dtype need 8"},
    {"r18_too_large", one("BF16", "[1]", "[0,4]", 4), "span 4 bytes, its shape and dtype need 2"},
    {"r18_scalar", one("F32", "[]", "[0,8]", 8), "span 8 bytes, its shape and dtype need 4"},
    {"r19_elements", one("U8", "[4294967296,4294967296]", "[0,0]", 0), "number of elements overflows"},
    {"r19_bits_2_63_minus_1", one("U8", "[2,9223372036854775807]", "[0,0]", 0), "number of bits overflows"},
    {"r19_2_64_minus_2", one("U8", "[2,18446744073709551614]", "[0,0]", 0), "number of elements overflows"},
    {"r19_overflow_before_zero", one("U8", "[9223372036854775808,4,0]", "[0,0]", 0), "number of elements overflows"},
    {"r20_half_a_byte", one("F4", "[3]", "[0,1]", 1), "its 12 bits are no whole number of bytes"},
    {"r20_six_bits", one("F6_E2M3", "[1]", "[0,1]", 1), "its 6 bits are no whole number of bytes"},
    {"r21_tail", one("U8", "[4]", "[0,4]", 5), "1 bytes follow the last tensor's data"},
    {"r21_tail_without_tensors", safetensors_bytes("{}", "x"), "1 bytes follow the last tensor's data"},
    {"r22_file_cut_short", one("F32", "[2]", "[0,8]", 7), "the download is not complete: the file has "},
    {"cap_rank_9", one("U8", many_dims(9), "[0,1]", 1), "shape has more than 8 elements"},
    {"cap_name_4097",
     safetensors_bytes(str("{\"", std::string(4097, 'n'), "\":", entry("U8", "[1]", "[0,1]"), "}"), data(1)),
     "the name has 4097 bytes"},
    {"cap_depth_5", header(R"({"t":{"x":[[[1]]]}})"), "nests deeper than 4 levels"},
    {"cap_depth_100000", header(str("{\"t\":", std::string(100'000, '['), 1, std::string(100'000, ']'), "}")),
     "nests deeper than 4 levels"},
    {"name_is_escaped", header("{\"a\\n\\u0000'\":1}"), R"(tensor 'a\x0a\x00\x27')"},
    {"ok_one", safetensors_bytes(kGood, data(4)), ""},
    {"ok_no_tensors", header("{}"), ""},
    {"ok_trailing_blanks", safetensors_bytes(kGood + " \r\n\t", data(4)), ""},
    {"ok_metadata", header(R"({"__metadata__":{"format":"pt"}})"), ""},
    {"ok_metadata_null", header(R"({"__metadata__":null})"), ""},
    {"ok_unknown_field", safetensors_bytes(R"({"t":{"dtype":"U8","x":[1],"shape":[1],"data_offsets":[0,1]}})", data(1)),
     ""},
    {"ok_scalar", one("F32", "[]", "[0,4]", 4), ""},
    {"ok_rank_8", one("U8", many_dims(8), "[0,1]", 1), ""},
    {"ok_any_order", two("[4,8]", "[0,4]", 8), ""},
    {"ok_two_halves_of_a_byte", one("F4", "[2]", "[0,1]", 1), ""},
    {"ok_known_unsupported", one("F8_E4M3", "[2]", "[0,2]", 2), ""},
    {"ok_zero_before_overflow", one("U8", "[0,9223372036854775808,4]", "[0,0]", 0), ""},
    {"ok_zero_sized_at_one_offset",
     safetensors_bytes(str(R"({"a":)", entry("F32", "[0]", "[0,0]"), R"(,"b":)", entry("F32", "[0,3]", "[0,0]"),
                           R"(,"c":)", entry("U8", "[4]", "[0,4]"), R"(,"d":)", entry("F32", "[0]", "[4,4]"), "}"),
                       data(4)),
     ""},
};

class SafetensorsRules : public testing::TestWithParam<Case> {};

TEST_P(SafetensorsRules, RefusesWithOneLineOrReads) {
  const TempDir dir;
  write_file(dir / "x.safetensors", GetParam().bytes);
  std::string message;
  try {
    const SafetensorsFile file(dir / "x.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile);
    message = error.what();
  }
  if (GetParam().message.empty()) {
    EXPECT_EQ(message, "");
    return;
  }
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
  EXPECT_TRUE(message.starts_with((dir / "x.safetensors").string() + ": ")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsRules, testing::ValuesIn(kCases),
                         [](const auto& row) { return row.param.name; });

TEST(SafetensorsFile, RefusesMoreThanAMillionTensors) {
  std::string text = "{";
  for (int i = 0; i <= 1'000'000; ++i)
    text += str(i ? "," : "", "\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
  EXPECT_THROW(
      try { parse_safetensors_header("f", text + "}", 0); } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "f: more than 1000000 tensors");
        throw;
      },
      Error);
}

TEST(SafetensorsFile, RefusesWhatIsNoRegularFile) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "directory");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("loop", dir / "loop");
  const std::vector<std::pair<std::string, std::string>> cases = {{"directory", "is a directory"},
                                                                  {"pipe", "is no regular file"},
                                                                  {"loop", "cannot be opened"},
                                                                  {"absent", "cannot be opened: No such file"}};
  for (const auto& [name, expected] : cases) {
    try {
      const SafetensorsFile file(dir / name);
      ADD_FAILURE() << name << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kModelFile);
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace headrace
