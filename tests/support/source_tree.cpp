#include "support/source_tree.h"

#include <cstdlib>

namespace headrace::testing_support {

std::filesystem::path source_tree() {
  const char* elsewhere = std::getenv("HEADRACE_SOURCE_DIR");
  return elsewhere != nullptr ? elsewhere : HEADRACE_SOURCE_DIR;
}

}  // namespace headrace::testing_support
