#include "headrace/core/error.h"

#include <cstdio>
#include <exception>
#include <new>

namespace headrace {

void append_to(std::string& out, char letter) { out += letter; }
void append_to(std::string& out, long long number) { out += std::to_string(number); }
void append_to(std::string& out, unsigned long long number) { out += std::to_string(number); }
void append_to(std::string& out, double number) {
  char text[32];  // at most six significant digits, sign, point and exponent
  std::snprintf(text, sizeof(text), "%g", number);
  out += text;
}

Error handled_error() {
  try {
    throw;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, "out of memory"};
  } catch (const std::exception& e) {
    return {ErrorCode::kInternal, e.what()};
  } catch (...) {
    return {ErrorCode::kInternal, "an unknown exception"};
  }
}

void assertion_failed(const char* condition, const char* file, int line) {
  const std::string path = file;
  const size_t at = path.find("headrace/");
  throw Error(ErrorCode::kInternal, str("bug in headrace: ", condition, " does not hold at ",
                                        at == std::string::npos ? path : path.substr(at), ":", line));
}

}  // namespace headrace
