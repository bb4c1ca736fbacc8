#include "headrace/core/sigbus_guard.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "headrace/core/error.h"

namespace headrace {
namespace {

// A signal handler can be reached through a global only; this is the one of the library.
std::atomic<SigbusGuard*> installed_guard{nullptr};

void write_text(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

}  // namespace

SigbusGuard::SigbusGuard() : ranges_(std::make_unique<std::array<Range, kMaxRanges>>()) {
  SigbusGuard* expected = nullptr;
  HR_REQUIRE(installed_guard.compare_exchange_strong(expected, this), ErrorCode::kInvalidArgument,
             "SigbusGuard: another one is installed in this process");
  struct sigaction action {};
  action.sa_sigaction = &SigbusGuard::on_sigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &previous_);
}

SigbusGuard::~SigbusGuard() {
  ::sigaction(SIGBUS, &previous_, nullptr);
  installed_guard.store(nullptr);
}

bool SigbusGuard::add(const void* begin, uint64_t bytes, std::string_view name) {
  for (Range& range : *ranges_) {
    if (range.taken.exchange(true)) continue;
    const size_t length = std::min(name.size(), range.name.size() - 1);
    std::copy_n(name.data(), length, range.name.data());
    range.name[length] = '\0';
    range.begin.store(reinterpret_cast<uintptr_t>(begin));
    range.end.store(reinterpret_cast<uintptr_t>(begin) + bytes);
    return true;
  }
  return false;
}

void SigbusGuard::remove(const void* begin) {
  for (Range& range : *ranges_) {
    if (range.end.load() == 0 || range.begin.load() != reinterpret_cast<uintptr_t>(begin)) continue;
    range.end.store(0);
    range.taken.store(false);
    return;
  }
}

// Async-signal-safe: loads of lock-free atomics, write, _exit, sigaction.
void SigbusGuard::on_sigbus(int signal, siginfo_t* info, void* context) {
  const SigbusGuard* guard = installed_guard.load();
  if (!guard) return;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Range& range : *guard->ranges_) {
    if (address < range.begin.load() || address >= range.end.load()) continue;
    write_text("headrace: ");
    write_text(range.name.data());
    write_text(": the file became shorter while it was in use\n");
    ::_exit(kExitStatus);
  }
  // Not ours: the instruction runs again under the action that was there before.
  ::sigaction(SIGBUS, &guard->previous_, nullptr);
}

}  // namespace headrace
