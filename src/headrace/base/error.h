// The one exception type of the library, and the macros that raise it.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace headrace {

enum class ErrorCode {
  kInvalidArgument,  // a caller's mistake: shape, dtype, range
  kUnsupported,      // a kernel, backend or format that is not built; the text names what is
  kModelFile,        // a model directory that is missing, damaged or contradicts itself
  kOutOfMemory,
  kNoDevice,
  kIo,
  kCuda,
  kInternal,  // a broken invariant: a bug of headrace
};

// Every failure a caller can meet. what() says where, what was expected, and what was found.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// Its arguments, written one after the other.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace headrace

// Throws Error(code, parts...) unless `cond`. The parts are evaluated only on failure.
#define HR_REQUIRE(cond, code, ...)                                  \
  do {                                                               \
    if (!(cond)) [[unlikely]]                                        \
      throw ::headrace::Error((code), ::headrace::str(__VA_ARGS__)); \
  } while (0)

// A broken invariant of headrace itself; throws Error(kInternal). Never used on input.
#define HR_ASSERT(cond)                                        \
  do {                                                         \
    if (!(cond)) [[unlikely]]                                  \
      ::headrace::assertion_failed(#cond, __FILE__, __LINE__); \
  } while (0)
