// The threads behind parallel_for.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace {

// Runs one region at a time: its caller and up to `threads - 1` workers claim the indices of the region one by one. A
// region that ends waits only for workers that joined it: a worker that the system does not run in time costs nothing.
// A thread that waits spins for some microseconds and then sleeps, so that it takes no time from other work.
//
// Workers are made when first needed and never end; a team is therefore never destroyed. Workers take no signals but
// those of their own faults. One thread calls run() at a time.
class ThreadTeam {
 public:
  ThreadTeam() = default;
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  // As parallel_for, whose `threads` and `count` are above 1. Returns an exception that a call threw.
  std::exception_ptr run(int threads, int64_t count, void (*fn)(void* context, int64_t i), void* context);

  // Whether the calling thread is in a region of any team.
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

  // Written by the caller while no worker is in the region, read by those that joined it.
  int64_t count_ = 0;
  void (*fn_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int workers_ = 0;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;

  alignas(64) std::atomic<int64_t> next_{0};      // the first index that is not claimed
  alignas(64) std::atomic<uint32_t> places_{0};   // see thread_team.cpp
  alignas(64) std::atomic<uint32_t> region_{0};   // counts the regions; idle workers wait for it to change
  alignas(64) std::atomic<int32_t> sleepers_{0};  // idle workers that sleep, or are about to
};

// The teams of this process: as many as callers that run at once. A child of fork() starts without any.
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
  std::vector<ThreadTeam*> idle_;  // the one that ran last is last: its workers are the likeliest to be awake
};

}  // namespace headrace
