#include "interrupt.h"

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace headrace::app {
namespace {

std::atomic<bool> seen{false};
extern "C" void on_interrupt(int) { seen = true; }

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool interrupted() { return seen; }

}  // namespace headrace::app
