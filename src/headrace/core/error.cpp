#include "headrace/core/error.h"

#include <cstdio>

namespace headrace {

void append_to(std::string& out, char letter) { out += letter; }
void append_to(std::string& out, long long number) { out += std::to_string(number); }
void append_to(std::string& out, unsigned long long number) { out += std::to_string(number); }
void append_to(std::string& out, double number) {
  char text[32];  // at most six significant digits, sign, point and exponent
  std::snprintf(text, sizeof(text), "%g", number);
  out += text;
}

void assertion_failed(const char* condition, const char* file, int line) {
  const std::string path = file;
  const size_t at = path.find("headrace/");
  throw Error(ErrorCode::kInternal, str("bug in headrace: ", condition, " does not hold at ",
                                        at == std::string::npos ? path : path.substr(at), ":", line));
}

}  // namespace headrace
