// The threads behind parallel_for.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace {

// Runs one parallel region at a time: its caller and up to `threads - 1` workers claim indices one by one. The end of a
// region waits only for workers that joined it, so a worker that is not scheduled in time costs nothing. Idle threads
// spin for some microseconds and then sleep, so they take no time from other work.
//
// Workers start when first needed and never end, so a team is never destroyed. Workers block all signals but those of
// their own faults. One thread calls run() at a time.
class ThreadTeam {
 public:
  ThreadTeam() = default;
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  // As parallel_for, with `threads` and `count` above 1. Returns an exception thrown by a call, or null.
  std::exception_ptr run(int threads, int64_t count, void (*fn)(void* context, int64_t i), void* context);

  // Returns true if the calling thread is in a region of any team.
  static bool in_region();

 private:
  ~ThreadTeam() = default;

  void grow(int workers);
  void serve();
  void open(int seats);
  void close();
  bool join();
  void leave();
  void claim_indices();
  uint32_t next_region(uint32_t seen);

  // Written by the caller while no worker is in the region; read by joined workers.
  int64_t count_ = 0;
  void (*fn_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int workers_ = 0;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;

  alignas(64) std::atomic<int64_t> next_{0};      // first unclaimed index
  alignas(64) std::atomic<uint32_t> places_{0};   // see thread_team.cpp
  alignas(64) std::atomic<uint32_t> region_{0};   // number of regions; idle workers wait for a change
  alignas(64) std::atomic<int32_t> sleepers_{0};  // idle workers that sleep or are about to
};

// The teams of this process, as many as concurrent callers. A child of fork() starts with none.
class ThreadTeams {
 public:
  static ThreadTeams& of_process();

  // One caller's team for one region.
  class Lease {
   public:
    explicit Lease(ThreadTeams& teams) : teams_(teams), team_(teams.take()) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { teams_.give_back(team_); }
    ThreadTeam* operator->() const { return team_; }

   private:
    ThreadTeams& teams_;
    ThreadTeam* team_;  // not owned
  };

 private:
  ThreadTeam* take();
  void give_back(ThreadTeam* team);

  std::mutex mutex_;
  std::vector<ThreadTeam*> idle_;  // most recently used last: its workers are the likeliest to be awake
};

}  // namespace headrace
