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
std::atomic<int> seen{0}, borne{0};  // interrupts; those that do not end the program at once
std::atomic<bool> ends{false};
std::atomic<const char*> last_words{nullptr};

extern "C" void on_interrupt(int signal) {
  if (signal == SIGTERM) ends = true;
  if (seen.fetch_add(1) < borne) return;
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

void finish_when_interrupted(int times) {
  if (borne < times) borne = times;
}
bool interrupted() { return seen > 0; }
bool take_interrupt() { return seen.exchange(0) > 0; }
bool asked_to_end() { return ends; }
void say_when_interrupted(const char* bytes) { last_words = bytes; }

}  // namespace headrace::app
