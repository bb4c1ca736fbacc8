#include "output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "headrace/core/error.h"

namespace headrace::app {
namespace {

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// A descriptor for writing to `path`, or -1 with errno. A standard stream's is another one for it: with a place of its
// own in the file it would write over what the stream wrote.
int open_to_write(const char* path) {
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  struct stat opened {
  }, stream{};
  if (file < 0 || fstat(file, &opened) != 0 || !S_ISREG(opened.st_mode)) return file;
  for (const int standard : {STDOUT_FILENO, STDERR_FILENO}) {
    if (fstat(standard, &stream) == 0 && same_file(opened, stream)) {
      close(file);
      return fcntl(standard, F_DUPFD_CLOEXEC, 0);
    }
  }
  if (ftruncate(file, 0) == 0) return file;
  const int error = errno;
  close(file);
  errno = error;
  return -1;
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

bool write_out(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  HR_REQUIRE(error == 0 || error == EPIPE, ErrorCode::kIo, "standard output: cannot be written: ", reason(error));
  return error == 0;
}

std::string without_controls(std::string_view text, Keep keep) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;  // U+0080 to U+009F
    const bool kept = keep == Keep::kLinesAndTabs && (byte == '\n' || byte == '\t');
    if (kept || (byte >= 0x20 && byte != 0x7f && !c1)) {
      out += text[i];
    } else {
      out += {'\\', 'x', kHex[(c1 ? next : byte) >> 4], kHex[(c1 ? next : byte) & 15]};
      i += c1 ? 1 : 0;
    }
  }
  return out;
}

void write_err(std::string_view text) { write_all(STDERR_FILENO, text); }

OutputFile::OutputFile(std::string path) : path_(std::move(path)), file_(open_to_write(path_.c_str())) {
  const int error = errno;
  HR_REQUIRE(file_ >= 0, ErrorCode::kInvalidArgument, path_, ": cannot be written: ", reason(error));
}

OutputFile::~OutputFile() { close(file_); }

void OutputFile::write(std::string_view text) {
  const int error = write_all(file_, text);
  HR_REQUIRE(error == 0, ErrorCode::kIo, path_, ": cannot be written: ", reason(error));
}

void OutputFile::sync() {
  HR_REQUIRE(fsync(file_) == 0, ErrorCode::kIo, path_, ": cannot be written: ", reason(errno));
}

}  // namespace headrace::app
