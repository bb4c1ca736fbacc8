#include "interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <initializer_list>

#include "exit_status.h"

namespace headrace::app {
namespace {

// A handler reads nothing but these.
std::atomic<bool> seen{false}, finishes{false};
std::atomic<const char*> last_words{nullptr};

extern "C" void on_interrupt(int) {
  if (finishes && !seen.exchange(true)) return;
  const char* const bytes = last_words;
  if (bytes != nullptr && write(STDERR_FILENO, bytes, std::strlen(bytes)) < 0) _exit(kInterrupted);
  _exit(kInterrupted);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {}, before = {};
  action.sa_handler = on_interrupt;
  for (const int signal : {SIGINT, SIGTERM}) {
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
}

void finish_when_interrupted() { finishes = true; }
bool interrupted() { return seen; }
void say_when_interrupted(const char* bytes) { last_words = bytes; }

}  // namespace headrace::app
