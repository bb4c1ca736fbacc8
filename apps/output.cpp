#include "output.h"

#include <unistd.h>

#include <cerrno>

namespace headrace::app {

namespace {

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

bool write_out(std::string_view text) { return write_all(STDOUT_FILENO, text); }
void write_err(std::string_view text) { write_all(STDERR_FILENO, text); }

}  // namespace headrace::app
