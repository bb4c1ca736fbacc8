// Files that GgufWriter writes, read back.
#include "headrace/gguf/gguf_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <numeric>

#include "headrace/core/error.h"
#include "headrace/gguf/gguf_file.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::TempDir;
using testing_support::refusal_of;

GgufContents contents_of_each_kind() {
  return {.keys = {{"general.architecture", std::string("qwen3")},
                   {"a.u16", uint16_t{65535}},
                   {"a.u32", uint32_t{4294967295}},
                   {"a.i32", int32_t{-7}},
                   {"a.u64", uint64_t{1} << 62},
                   {"a.i64", int64_t{-1} << 40},
                   {"a.f32", 1e-6F},
                   {"a.yes", true},
                   {"a.no", false},
                   {"a.text", std::string("zwei\nZeilen")},
                   {"a.integers", std::vector<int32_t>{1, -2, 3}},
                   {"a.long", std::vector<int64_t>{int64_t{1} << 40}},
                   {"a.numbers", std::vector<float>{0.5F, -2}},
                   {"a.texts", std::vector<std::string>{"a", "", "Ġb"}}},
          .tensors = {{"odd", &gguf_type_of(DType::kF32), {3}},
                      {"blocks", &gguf_type_of(BlockFormat::kQ8_0), {64, 3}},
                      {"stack", &gguf_type_of(DType::kBF16), {5, 2, 3}}}};
}

std::vector<unsigned char> counting(uint64_t bytes, unsigned char first) {
  std::vector<unsigned char> all(bytes);
  std::iota(all.begin(), all.end(), first);
  return all;
}

void write_all_tensors(GgufWriter& writer, const GgufContents& contents) {
  for (size_t i = 0; i < contents.tensors.size(); ++i) {
    const auto bytes = counting(contents.tensors[i].bytes(), static_cast<unsigned char>(i));
    writer.write(std::span(bytes).first(5));  // in parts
    writer.write(std::span(bytes).subspan(5));
  }
}

size_t files_in(const TempDir& dir) {
  const auto begin = std::filesystem::directory_iterator(dir.path());
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

TEST(GgufWriter, WritesWhatTheReaderReads) {
  const TempDir dir;
  const GgufContents contents = contents_of_each_kind();
  GgufWriter writer(dir / "a.gguf", contents);
  write_all_tensors(writer, contents);
  writer.finish();
  const GgufFile file(dir / "a.gguf");
  const GgufHeader& header = file.header();
  EXPECT_EQ(header.version(), 3U);
  EXPECT_EQ(file.bytes(), contents.file_bytes());
  EXPECT_EQ(header.integer("a.u16"), 65535);
  EXPECT_EQ(header.integer("a.u32"), 4294967295);
  EXPECT_EQ(header.integer("a.i32"), -7);
  EXPECT_EQ(header.integer("a.u64"), int64_t{1} << 62);
  EXPECT_EQ(header.integer("a.i64"), int64_t{-1} << 40);
  EXPECT_EQ(header.number("a.f32"), double{1e-6F});
  EXPECT_EQ(header.boolean("a.yes"), true);
  EXPECT_EQ(header.boolean("a.no"), false);
  EXPECT_EQ(header.text("a.text"), "zwei\nZeilen");
  EXPECT_EQ(*header.integers("a.integers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(*header.integers("a.long"), (std::vector<int64_t>{int64_t{1} << 40}));
  EXPECT_EQ(*header.numbers("a.numbers"), (std::vector<double>{0.5, -2}));
  EXPECT_EQ(*header.texts("a.texts"), (std::vector<std::string_view>{"a", "", "Ġb"}));
  ASSERT_EQ(header.tensors().size(), contents.tensors.size());
  for (size_t i = 0; i < contents.tensors.size(); ++i) {
    const GgufTensor& tensor = header.tensors()[i];
    EXPECT_EQ(tensor.name, contents.tensors[i].name);
    EXPECT_EQ(tensor.type, contents.tensors[i].type);
    EXPECT_EQ(tensor.dims, contents.tensors[i].dims);
    const auto data = file.data(tensor);
    EXPECT_EQ(std::vector(data.begin(), data.end()), counting(tensor.bytes, static_cast<unsigned char>(i)));
    EXPECT_EQ(tensor.begin % 32, 0U);
  }
}

TEST(GgufWriter, HasItsNameOnlyWhenItIsComplete) {
  const TempDir dir;
  const GgufContents contents = contents_of_each_kind();
  {
    GgufWriter writer(dir / "a.gguf", contents);
    EXPECT_FALSE(std::filesystem::exists(dir / "a.gguf"));
    EXPECT_EQ(refusal_of([&] { writer.finish(); }).code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refusal_of([&] { writer.write(counting(13, 0)); }).code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(files_in(dir), 1U);
  }
  EXPECT_EQ(files_in(dir), 0U);
  GgufWriter writer(dir / "a.gguf", contents);
  write_all_tensors(writer, contents);
  EXPECT_FALSE(std::filesystem::exists(dir / "a.gguf"));
  writer.finish();
  EXPECT_EQ(files_in(dir), 1U);
  EXPECT_TRUE(std::filesystem::exists(dir / "a.gguf"));
}

TEST(GgufWriter, ReplacesAFileInOneStep) {
  const TempDir dir;
  test::write_file(dir / "a.gguf", "old");
  const GgufContents contents = contents_of_each_kind();
  GgufWriter writer(dir / "a.gguf", contents);
  write_all_tensors(writer, contents);
  EXPECT_EQ(std::filesystem::file_size(dir / "a.gguf"), 3U);
  writer.finish();
  EXPECT_EQ(GgufFile(dir / "a.gguf").header().tensors().size(), 3U);
}

TEST(GgufWriter, AFolderThatIsMissingIsNamed) {
  const TempDir dir;
  const auto refusal = refusal_of([&] { GgufWriter(dir / "no/a.gguf", contents_of_each_kind()); });
  EXPECT_EQ(refusal.code, ErrorCode::kIo);
  EXPECT_EQ(refusal.sentence.substr(dir.path().string().size()),
            "/no/a.gguf: 928 bytes cannot be written: No such file or directory");
}

// A limit of the process acts as a full disk does: space cannot be reserved.
TEST(GgufWriter, AFullDiskLeavesNothingBehind) {
  const TempDir dir;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const GgufContents contents{.keys = {}, .tensors = {{"large", &gguf_type_of(DType::kF32), {100000}}}};
  const auto refusal = refusal_of([&] {
    GgufWriter writer(dir / "a.gguf", contents);
    writer.write(counting(400000, 0));
    writer.finish();
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(refusal.code, ErrorCode::kIo);
  EXPECT_EQ(refusal.sentence.substr(dir.path().string().size()), "/a.gguf: 400.1 kB cannot be written: File too large");
  EXPECT_EQ(files_in(dir), 0U);
}

}  // namespace
}  // namespace headrace
