#include "batch_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <unordered_map>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/serve/batch_line.h"
#include "headrace/serve/stable_hash.h"

namespace headrace::app {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::optional<std::string> custom_id_of(std::string_view line) {
  try {
    return BatchLine(line).custom_id();
  } catch (const RequestError&) {
    return std::nullopt;  // the run says so in the line's result
  }
}

}  // namespace

BatchInput::BatchInput(const std::string& path) : path_(path), file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  const int error = errno;
  HR_REQUIRE(file_ >= 0, ErrorCode::kInvalidArgument, path_,
             ": cannot be read: ", std::generic_category().message(error));
  struct stat about {};
  const bool known = fstat(file_, &about) == 0 && S_ISREG(about.st_mode);
  modified_ = about.st_mtime;
  try {
    HR_REQUIRE(known, ErrorCode::kInvalidArgument, path_,
               ": is no regular file: a run that is interrupted reads its requests again");
    read_lines();
  } catch (...) {
    close(file_);
    throw;
  }
}

BatchInput::~BatchInput() { close(file_); }

void BatchInput::read_lines() {
  std::ifstream in(path_, std::ios::binary);
  std::unordered_map<std::string, int64_t> numbers;  // of custom_ids
  hash_ = kHashStart;
  int64_t begin = 0, number = 0;
  for (std::string text; std::getline(in, text);) {
    const auto bytes = static_cast<int64_t>(text.size());
    const int64_t mark = number == 0 && text.starts_with(kByteOrderMark) ? std::ssize(kByteOrderMark) : 0;
    hash_ = stable_hash("\n", stable_hash(text, hash_));
    ++number;
    if (text.find_first_not_of(" \t\r", static_cast<size_t>(mark)) != std::string::npos) {
      lines_.push_back({number, begin + mark, bytes - mark});
      if (auto id = custom_id_of(std::string_view(text).substr(static_cast<size_t>(mark)))) {
        const auto [other, is_new] = numbers.emplace(std::move(*id), number);
        HR_REQUIRE(is_new, ErrorCode::kInvalidArgument, path_, ": lines ", other->second, " and ", number,
                   " have the custom_id '", printable(other->first), "', expected one of its own in each line");
      }
    }
    begin += bytes + 1;
  }
  HR_REQUIRE(!in.bad(), ErrorCode::kInvalidArgument, path_, ": cannot be read");
  HR_REQUIRE(!lines_.empty(), ErrorCode::kInvalidArgument, path_, ": holds no requests, expected one in each line");
}

std::string BatchInput::text(int32_t index) const {
  const Line& line = lines_.at(static_cast<size_t>(index));
  std::string text(static_cast<size_t>(line.bytes), '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = pread(file_, text.data() + done, text.size() - done, line.begin + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    HR_REQUIRE(n > 0, ErrorCode::kIo, path_, ": line ", line.number, " cannot be read any more");
    done += static_cast<size_t>(n);
  }
  return text;
}

}  // namespace headrace::app
