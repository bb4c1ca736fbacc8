#include "headrace/base/error.h"

namespace headrace {

void assertion_failed(const char* condition, const char* file, int line) {
  const std::string path = file;
  const size_t at = path.find("headrace/");
  throw Error(ErrorCode::kInternal, str("bug in headrace: ", condition, " does not hold at ",
                                        at == std::string::npos ? path : path.substr(at), ":", line));
}

}  // namespace headrace
