#include "environment.h"

#include <cstdlib>

namespace headrace::app {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
  return value != nullptr ? value : "";
}

}  // namespace headrace::app
