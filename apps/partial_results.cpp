#include "partial_results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "headrace/core/error.h"
#include "headrace/serve/stable_hash.h"
#include "headrace/text/json_string.h"
#include "headrace/weights/config_file.h"
#include "output.h"

namespace headrace::app {
namespace {

constexpr std::string_view kHeader = "headrace run-batch ";
constexpr size_t kHashDigits = 16;

std::string reason(int error) { return std::generic_category().message(error); }

std::string record_of(std::string_view content) { return str(hash_text(stable_hash(content)), ' ', content, '\n'); }

// Returns what a record holds; nothing if it is not whole.
std::optional<std::string_view> content_of(std::string_view record) {
  if (record.size() <= kHashDigits || record[kHashDigits] != ' ') return std::nullopt;
  const std::string_view content = record.substr(kHashDigits + 1);
  if (record.substr(0, kHashDigits) != hash_text(stable_hash(content))) return std::nullopt;
  return content;
}

std::string header_of(const RunSettings& settings) {
  std::string out(kHeader);
  const char* before = "{";
  for (const auto& [name, value] : settings) {
    out += str(std::exchange(before, ", "), json_string(name), ": ", json_string(value));
  }
  return out + "}";
}

// Takes the number at the beginning of `text` and the space behind it.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != ' ') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return number;
}

// True if `path` names the open file, not one that took its place.
bool is_named(int file, const std::string& path) {
  struct stat opened {
  }, named{};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

void sync_directory(const std::filesystem::path& file) {
  const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

}  // namespace

PartialResults::PartialResults(std::string path, const RunSettings& settings, int32_t num_lines)
    : path_(std::move(path)), places_(static_cast<size_t>(num_lines)) {
  for (;;) {  // a run that ends meanwhile removes the file that it has locked
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) fail("cannot be written", errno);
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(file_);
      HR_REQUIRE(error != EWOULDBLOCK, ErrorCode::kInvalidArgument, path_, ": another run-batch writes to it");
      fail("cannot be locked", error);
    }
    if (is_named(file_, path_)) break;
    close(file_);
  }
  try {
    read(settings);
  } catch (...) {
    close(file_);
    throw;
  }
}

PartialResults::~PartialResults() {
  if (size_ == 0) unlink(path_.c_str());
  close(file_);
}

void PartialResults::fail(std::string_view what, int error) const {
  throw Error(ErrorCode::kIo, str(path_, ": ", what, ": ", reason(error)));
}

// A file without results stands for nothing: its settings do not count.
void PartialResults::read(const RunSettings& settings) {
  std::ifstream in(path_, std::ios::binary);
  bool has_header = false;
  std::optional<Error> other_run;
  for (std::string record; std::getline(in, record) && !in.eof();) {  // the end of the file ends no record
    const std::optional<std::string_view> content = content_of(record);
    if (!content) break;
    if (!has_header) {
      other_run = difference(*content, settings);
      has_header = true;
    } else if (other_run) {
      throw *other_run;
    } else if (!read_record(*content, end_ + static_cast<int64_t>(record.size() - content->size()))) {
      break;
    }
    end_ += static_cast<int64_t>(record.size()) + 1;
  }
  struct stat about {};
  if (fstat(file_, &about) != 0) fail("cannot be read", errno);
  HR_REQUIRE(has_header || about.st_size == 0, ErrorCode::kInvalidArgument, path_,
             ": is no file of an interrupted run-batch, expected one or none");
  if (size_ == 0) end_ = 0;
  if (ftruncate(file_, end_) != 0 || lseek(file_, end_, SEEK_SET) < 0) fail("cannot be written", errno);
  if (size_ > 0) return;
  write(record_of(header_of(settings)));
  sync();
}

std::optional<Error> PartialResults::difference(std::string_view header, const RunSettings& settings) const {
  HR_REQUIRE(header.starts_with(kHeader), ErrorCode::kInvalidArgument, path_,
             ": is no file of an interrupted run-batch, expected one or none");
  const JsonValue before = JsonValue::parse(header.substr(kHeader.size()), path_);
  for (const auto& [name, value] : settings) {
    const std::string other = before.string_or(name, "");
    if (other == value) continue;
    const auto shown = [](const std::string& text) { return text.empty() ? "none" : text; };
    const std::string what =
        name.starts_with("--") ? str(name, ' ', shown(other), ", this one has ", shown(value)) : str("another ", name);
    return Error(ErrorCode::kInvalidArgument, str(path_, ": is of an interrupted run with ", what,
                                                  "; repeat its command to go on, or remove the file to begin again"));
  }
  return std::nullopt;
}

// `content` begins at `begin` in the file. Returns false if it is no result of this input.
bool PartialResults::read_record(std::string_view content, int64_t begin) {
  std::string_view json = content;
  const auto line = take_number<int32_t>(json);
  const auto status = take_number<int>(json);
  if (!line || !status || *line < 0 || std::cmp_greater_equal(*line, places_.size()) || json.empty()) return false;
  size_ += has(*line) ? 0 : 1;
  places_[static_cast<size_t>(*line)] = {.begin = begin + static_cast<int64_t>(content.size() - json.size()),
                                         .bytes = static_cast<int64_t>(json.size()),
                                         .status = *status};
  return true;
}

int32_t PartialResults::num_failed() const {
  return static_cast<int32_t>(
      std::ranges::count_if(places_, [](const Place& place) { return place.bytes > 0 && place.status != 200; }));
}

void PartialResults::append(int32_t line, int status, std::string_view json) {
  HR_ASSERT(!has(line) && json.find('\n') == std::string_view::npos);
  const std::string record = record_of(str(line, ' ', status, ' ', json));
  const int64_t begin = end_ + static_cast<int64_t>(record.size() - 1 - json.size());
  write(record);
  places_[static_cast<size_t>(line)] = {.begin = begin, .bytes = static_cast<int64_t>(json.size()), .status = status};
  ++size_;
}

void PartialResults::write(std::string_view text) {
  if (const int error = write_all(file_, text); error != 0) fail("cannot be written", error);
  end_ += static_cast<int64_t>(text.size());
}

void PartialResults::sync() {
  if (fdatasync(file_) != 0) fail("cannot be written", errno);
}

void PartialResults::finish(const std::string& output) {
  HR_ASSERT(complete());
  const std::string ordered = output + ".tmp";
  {
    OutputFile out(ordered);
    std::string text;
    for (const Place& place : places_) {
      const size_t before = text.size();
      text.resize(before + static_cast<size_t>(place.bytes));
      if (pread(file_, text.data() + before, static_cast<size_t>(place.bytes), place.begin) != place.bytes)
        fail("cannot be read", errno);
      text += '\n';
      constexpr size_t kMuch = size_t{1} << 20;
      if (text.size() < kMuch) continue;
      out.write(text);
      text.clear();
    }
    out.write(text);
    out.sync();
  }
  if (rename(ordered.c_str(), output.c_str()) != 0)
    throw Error(ErrorCode::kIo, str(output, ": cannot be written: ", reason(errno)));
  sync_directory(output);
  unlink(path_.c_str());
}

}  // namespace headrace::app
