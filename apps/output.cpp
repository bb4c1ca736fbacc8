#include "output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "headrace/base/error.h"

namespace headrace::app {
namespace {

// 0, or the errno of what failed.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

bool write_out(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  HR_REQUIRE(error == 0 || error == EPIPE, ErrorCode::kIo, "standard output: cannot be written: ", reason(error));
  return error == 0;
}

void write_err(std::string_view text) { write_all(STDERR_FILENO, text); }

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  const int error = errno;
  HR_REQUIRE(file_ >= 0, ErrorCode::kInvalidArgument, path_, ": cannot be written: ", reason(error));
}

OutputFile::~OutputFile() { close(file_); }

void OutputFile::write(std::string_view text) {
  const int error = write_all(file_, text);
  HR_REQUIRE(error == 0, ErrorCode::kIo, path_, ": cannot be written: ", reason(error));
}

}  // namespace headrace::app
