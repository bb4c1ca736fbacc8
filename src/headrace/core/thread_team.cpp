#include "headrace/core/thread_team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace headrace {
namespace {

// The state word of a region: free seats in the low half, joined workers above, and a top bit that says whether the
// caller sleeps until the last worker leaves.
constexpr uint32_t kSeats = 0xffff, kJoined = 0x10000, kCallerSleeps = 0x80000000;

// A thread spins for about as long as waking another one takes. It soon starts to yield its core, because the thread
// that it waits for may need it.
constexpr std::chrono::microseconds kSpin{10}, kYield{40};

thread_local bool in_region_of_a_team = false;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() is true or it is time to sleep; returns ready(). The clock affects only sleeping, never results.
template <class Ready>
bool wait_awake(Ready ready) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooks = 16;  // checks per clock read
  const auto start = Clock::now();
  while (Clock::now() < start + kSpin) {
    for (int i = 0; i < kLooks; ++i, relax()) {
      if (ready()) return true;
    }
  }
  while (Clock::now() < start + kSpin + kYield) {
    if (ready()) return true;
    sched_yield();
  }
  return ready();
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word, int threads) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// While alive, new threads block all signals but those of their own faults and a profiler's.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int signal : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF}) sigdelset(&all, signal);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

bool ThreadTeam::in_region() { return in_region_of_a_team; }

std::exception_ptr ThreadTeam::run(int threads, int64_t count, void (*fn)(void*, int64_t), void* context) {
  const int seats = std::min<int>(threads - 1, kSeats / 2);
  grow(seats);
  count_ = count;
  fn_ = fn;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  open(seats);
  in_region_of_a_team = true;
  claim_indices();
  in_region_of_a_team = false;
  close();
  return std::exchange(failure_, nullptr);
}

// Starts workers; fewer if the system provides no more threads.
void ThreadTeam::grow(int workers) {
  if (workers_ >= workers) return;
  const SignalsBlocked blocked;
  try {
    for (; workers_ < workers; ++workers_) std::thread(&ThreadTeam::serve, this).detach();
  } catch (const std::system_error&) {
  }
}

void ThreadTeam::serve() {
  in_region_of_a_team = true;
  for (uint32_t seen = 0;;) {
    seen = next_region(seen);
    if (!join()) continue;
    claim_indices();
    leave();
  }
}

// Opens a region and wakes sleeping workers for the seats that awake ones cannot fill.
void ThreadTeam::open(int seats) {
  places_.store(static_cast<uint32_t>(seats), std::memory_order_release);
  region_.fetch_add(1);
  const int asleep = sleepers_.load();
  const int wanted = std::min(asleep, seats - (workers_ - asleep));
  if (wanted > 0) wake(region_, wanted);
}

// Stops workers from joining and returns when all joined ones have left.
void ThreadTeam::close() {
  const auto empty = [this] { return places_.load(std::memory_order_acquire) == 0; };
  if (places_.fetch_and(~kSeats, std::memory_order_acq_rel) < kJoined || wait_awake(empty)) return;
  uint32_t places = places_.fetch_or(kCallerSleeps, std::memory_order_acq_rel) | kCallerSleeps;
  for (; places != kCallerSleeps; places = places_.load(std::memory_order_acquire)) sleep_while(places_, places);
}

bool ThreadTeam::join() {
  uint32_t places = places_.load(std::memory_order_relaxed);
  while ((places & kSeats) != 0) {
    if (places_.compare_exchange_weak(places, places - 1 + kJoined, std::memory_order_acquire)) return true;
  }
  return false;
}

void ThreadTeam::leave() {
  const uint32_t places = places_.fetch_sub(kJoined, std::memory_order_release) - kJoined;
  if (places == kCallerSleeps) wake(places_, 1);
}

void ThreadTeam::claim_indices() {
  try {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) fn_(context_, i);
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    failure_ = std::current_exception();
    next_.store(count_, std::memory_order_relaxed);
  }
}

// Returns the number of a region after `seen`. A worker may miss regions, or find no free seat, and then waits for the
// next.
uint32_t ThreadTeam::next_region(uint32_t seen) {
  uint32_t region = seen;
  const auto changed = [&] { return (region = region_.load(std::memory_order_acquire)) != seen; };
  if (wait_awake(changed)) return region;
  sleepers_.fetch_add(1);
  while (!changed()) sleep_while(region_, seen);
  sleepers_.fetch_sub(1);
  return region;
}

ThreadTeams& ThreadTeams::of_process() {
  static ThreadTeams* const teams = [] {
    auto* const made = new ThreadTeams;
    // the child has none of the parent's threads
    pthread_atfork(nullptr, nullptr, [] { new (&of_process()) ThreadTeams; });
    return made;
  }();
  return *teams;
}

ThreadTeam* ThreadTeams::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return new ThreadTeam;
  ThreadTeam* const team = idle_.back();
  idle_.pop_back();
  return team;
}

void ThreadTeams::give_back(ThreadTeam* team) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(team);
}

}  // namespace headrace
