#include "headrace/gguf/gguf_file.h"

#include <array>
#include <fstream>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/foreign_content.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

constexpr int64_t kMostParts = 1000;
constexpr std::string_view kPart = "split.no", kParts = "split.count", kTensors = "split.tensors.count";

MappedFile mapped(const std::filesystem::path& path, SigbusGuard* guard) {
  const OpenFile file(path);
  std::string begin(std::min<uint64_t>(file.bytes(), 512), '\0');
  file.read(0, begin.data(), begin.size());
  const ForeignContent kind = foreign_content(begin);
  if (kind != ForeignContent::kGguf) refuse_foreign(file.name(), kind, begin);
  return {file, guard};
}

// "NAME-00001-of-00003.gguf" for the part 0 of 3 of "NAME".
std::string part_name(std::string_view name, int64_t part, int64_t parts) {
  const auto five_digits = [](int64_t number) {
    const std::string digits = std::to_string(number);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return str(name, "-", five_digits(part + 1), "-of-", five_digits(parts), ".gguf");
}

// NAME of the first part's file.
std::string_view name_of_parts(const GgufHeader& header, std::string_view file_name, int64_t parts) {
  const std::string end = part_name("", 0, parts);
  HR_REQUIRE(file_name.ends_with(end), ErrorCode::kModelFile, header.file(), ": is the first of ", parts,
             " parts, expected a name that ends with ", end);
  return file_name.substr(0, file_name.size() - end.size());
}

// "NAME-00002-of-00003.gguf" is not the first part.
void require_first_part(const GgufHeader& header, const std::filesystem::path& path) {
  const int64_t part = header.integer(kPart).value_or(0), parts = header.integer(kParts).value_or(1);
  if (part == 0) return;
  const std::string file_name = path.filename().string(), end = parts < 1 ? "" : part_name("", part, parts);
  const bool is_named = !end.empty() && file_name.ends_with(end);
  const std::string name = is_named ? file_name.substr(0, file_name.size() - end.size()) : "NAME";
  throw Error(ErrorCode::kModelFile, str(path.string(), ": is part ", part + 1, " of ", parts,
                                         " of a model, expected its first part, ", part_name(name, 0, parts)));
}

void check_part(const GgufHeader& header, int64_t part, int64_t parts) {
  const int64_t found = header.integer(kPart).value_or(0), of = header.integer(kParts).value_or(1);
  HR_REQUIRE(found == part && of == parts, ErrorCode::kModelFile, header.file(), ": is part ", found + 1, " of ", of,
             ", expected part ", part + 1, " of ", parts);
}

void check_tensors(const std::vector<GgufFile>& files) {
  const GgufHeader& first = files.front().header();
  std::unordered_set<std::string_view> names;
  for (const GgufFile& file : files) {
    for (const GgufTensor& tensor : file.header().tensors())
      HR_REQUIRE(names.insert(tensor.name).second, ErrorCode::kModelFile, file.header().file(), ": tensor '",
                 printable(tensor.name), "': another part has it, too");
  }
  const auto expected = first.integer(kTensors);
  HR_REQUIRE(!expected || std::cmp_equal(*expected, names.size()), ErrorCode::kModelFile, first.file(),
             ": the parts have ", names.size(), " tensors, expected ", *expected, " (", kTensors, ")");
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path, SigbusGuard* guard)
    : mapped_(mapped(path, guard)), header_(path.string(), {mapped_.data(), static_cast<size_t>(mapped_.bytes())}) {}

bool is_gguf_path(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  if (path.extension() == ".gguf") return true;
  std::array<char, 4> begin = {};
  std::ifstream in(path, std::ios::binary);
  in.read(begin.data(), begin.size());
  return in && std::string_view(begin.data(), begin.size()) == "GGUF";
}

GgufFile open_first_gguf(const std::filesystem::path& path, SigbusGuard* guard) {
  GgufFile file(path, guard);
  require_first_part(file.header(), path);
  return file;
}

std::vector<GgufFile> open_gguf(const std::filesystem::path& path, SigbusGuard* guard) {
  std::vector<GgufFile> files;
  files.push_back(open_first_gguf(path, guard));
  const int64_t parts = files.front().header().integer(kParts).value_or(1);
  HR_REQUIRE(parts >= 1 && parts <= kMostParts, ErrorCode::kModelFile, path.string(), ": is one of ", parts,
             " parts, expected 1 to ", kMostParts);
  check_part(files.front().header(), 0, parts);
  if (parts == 1) return files;
  const std::string file_name = path.filename().string(), name(name_of_parts(files.front().header(), file_name, parts));
  for (int64_t part = 1; part < parts; ++part) {
    files.emplace_back(path.parent_path() / part_name(name, part, parts), guard);
    check_part(files.back().header(), part, parts);
  }
  check_tensors(files);
  return files;
}

}  // namespace headrace
