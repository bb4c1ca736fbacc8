// The one exception type of the library, and the macros that raise it.
#pragma once
#if __cplusplus < 202002L
#error "headrace needs C++20: compile with -std=c++20 or newer"
#endif
#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>

namespace headrace {

enum class ErrorCode {
  kInvalidArgument,  // caller error: shape, dtype, range
  kUnsupported,      // a kernel, backend or format that is not built; the text names what is
  kModelFile,        // a model directory that is missing, damaged or contradicts itself
  kOutOfMemory,
  kNoDevice,
  kIo,
  kCuda,
  kCancelled,  // an engine that is being drained takes no requests
  kInternal,   // broken invariant: a bug in headrace
};

// Every failure that a caller can see. what() says where, what was expected, and what was found.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// Formats one argument of str(): text unchanged, numbers as std::ostream does, integers of any size as numbers. Other
// types define their own append_to(). (iostream headers would add eight thousand lines to every source that includes
// this.)
inline void append_to(std::string& out, std::string_view text) { out += text; }
inline void append_to(std::string& out, const char* text) { out += text; }
void append_to(std::string& out, char letter);
void append_to(std::string& out, long long number);
void append_to(std::string& out, unsigned long long number);
void append_to(std::string& out, double number);
template <std::integral Number>
void append_to(std::string& out, Number number) {
  if constexpr (std::is_signed_v<Number>) {
    append_to(out, static_cast<long long>(number));
  } else {
    append_to(out, static_cast<unsigned long long>(number));
  }
}

// Returns its arguments, formatted and concatenated.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::string out;
  (append_to(out, parts), ...);
  return out;
}

// Within a handler: returns the exception that is handled. One that is no Error becomes kOutOfMemory or kInternal.
Error handled_error();

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace headrace

// Throws Error(code, parts...) unless `cond`. The parts are evaluated only on failure.
#define HR_REQUIRE(cond, code, ...)                                  \
  do {                                                               \
    if (!(cond)) [[unlikely]]                                        \
      throw ::headrace::Error((code), ::headrace::str(__VA_ARGS__)); \
  } while (0)

// Checks an invariant of headrace itself; throws Error(kInternal). Never used on input.
#define HR_ASSERT(cond)                                        \
  do {                                                         \
    if (!(cond)) [[unlikely]]                                  \
      ::headrace::assertion_failed(#cond, __FILE__, __LINE__); \
  } while (0)
