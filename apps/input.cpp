#include "input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "headrace/core/error.h"
#include "headrace/text/utf8.h"

namespace headrace::app {
namespace {

// 0, or the errno of what failed.
int append_all(int file, std::string& text) {
  std::array<char, 1 << 16> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read() fills it
  for (;;) {
    const ssize_t n = read(file, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : 0;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace

std::string read_text(const std::string& file) {
  std::string text;
  const bool standard = file == "-";
  const int in = standard ? STDIN_FILENO : open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const int error = in < 0 ? errno : append_all(in, text);
  if (!standard && in >= 0) close(in);
  HR_REQUIRE(error == 0, ErrorCode::kInvalidArgument, standard ? "standard input" : file,
             ": cannot be read: ", std::generic_category().message(error));
  return text;
}

std::optional<std::string> not_utf8(std::string_view what, std::string_view text) {
  if (is_valid_utf8(text)) return std::nullopt;
  const std::string valid = repaired(text);
  const auto differs = static_cast<size_t>(std::ranges::mismatch(text, valid).in1 - text.begin());
  std::string ignored;  // U+FFFD may begin as what it replaces does
  const size_t at = differs - append_repaired(text.substr(0, differs), ignored);
  return fmt::format("{}: byte {} (0x{:02x}) is not UTF-8; such bytes are read as U+FFFD", what, at + 1,
                     static_cast<unsigned char>(text[at]));
}

}  // namespace headrace::app
