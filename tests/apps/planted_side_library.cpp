// A library of the side library's name that says so when it is loaded: loading_test.sh puts it where nothing may be
// loaded.
#include <unistd.h>

#include <string_view>

namespace {

[[gnu::constructor]] void say_so() {
  constexpr std::string_view kWord = "planted library was loaded\n";
  if (write(STDERR_FILENO, kWord.data(), kWord.size()) < 0) _exit(1);
}

}  // namespace
