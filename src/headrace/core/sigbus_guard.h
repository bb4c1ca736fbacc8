// Turns the signal of a mapped file that shrinks into one clear line and exit status 3.
#pragma once
#include <csignal>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

namespace headrace {

// Weights stay mapped while a model runs, so a file that another program cuts short raises SIGBUS in a kernel, where no
// exception can be thrown. While a SigbusGuard lives, such a fault inside a registered range writes
//   headrace: PATH: the file became shorter while it was in use
// to standard error and ends the process with status 3. A SIGBUS anywhere else goes to the action that was there
// before.
//
// A program creates one in main(), before it opens a checkpoint, and hands it to Checkpoint::open. The library never
// creates one: signal actions belong to the program. At most one lives at a time (Error kInvalidArgument).
// add() and remove() may be called from several threads; the guard outlives what is registered.
class SigbusGuard {
 public:
  static constexpr int kMaxRanges = 2048;
  static constexpr int kExitStatus = 3;

  SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;
  ~SigbusGuard();  // puts the previous action back

  // Registers [begin, begin + bytes); `name` is copied and cut at 255 bytes. False when every place is taken.
  bool add(const void* begin, uint64_t bytes, std::string_view name);
  void remove(const void* begin);

 private:
  struct Range {
    std::atomic<bool> taken{false};
    std::atomic<uintptr_t> begin{0}, end{0};  // the handler reads these; end = 0 while the range is not complete
    std::array<char, 256> name{};
  };

  static void on_sigbus(int signal, siginfo_t* info, void* context);

  std::unique_ptr<std::array<Range, kMaxRanges>> ranges_;
  struct sigaction previous_ {};
};

}  // namespace headrace
