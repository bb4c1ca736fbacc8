#include "headrace/core/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;

// One region of `count` indices, each of which must run once.
testing::AssertionResult runs_each_once(int threads, int64_t count) {
  std::vector<int> seen(static_cast<size_t>(count));  // not atomic: ThreadSanitizer sees an index that two threads took
  parallel_for(threads, count, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != 1) return testing::AssertionFailure() << "index " << i << " ran " << seen[i] << " times";
  }
  return testing::AssertionSuccess();
}

// The threads of a region that all of them reach: each waits until `threads` of them are there.
std::set<std::thread::id> threads_that_meet(int threads, int64_t count) {
  std::mutex mutex;
  std::set<std::thread::id> here;
  const auto size = [&] {
    const std::lock_guard lock(mutex);
    here.insert(std::this_thread::get_id());
    return static_cast<int>(here.size());
  };
  parallel_for(threads, count, [&](int64_t) {
    while (size() < threads) std::this_thread::yield();
  });
  return here;
}

TEST(ParallelFor, RunsEveryIndexOnce) {
  for (const int threads : {-1, 0, 1, 2, 4, 64}) {
    for (const int64_t count : {0, 1, 2, 3, 63, 1000}) EXPECT_TRUE(runs_each_once(threads, count)) << threads;
  }
}

TEST(ParallelFor, ManyShortRegionsAreRight) {
  for (int region = 0; region < 3000; ++region) ASSERT_TRUE(runs_each_once(1 + region % 5, 1 + region % 7));
}

TEST(ParallelFor, RegionsBetweenWhichThreadsSleepAreRight) {
  for (int region = 0; region < 50; ++region) {
    std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(runs_each_once(3, 100));
  }
}

TEST(ParallelFor, HasAsManyThreadsAsAskedForAndNoMore) {
  EXPECT_EQ(threads_that_meet(3, 30).size(), 3);
  EXPECT_EQ(threads_that_meet(8, 8).size(), 8) << "more than before";
  EXPECT_EQ(threads_that_meet(2, 40).size(), 2) << "fewer than there are";
}

TEST(ParallelFor, ACallerThatWaitsSleeps) {
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> begun{false};
  timespec before{}, after{};
  parallel_for(2, 2, [&](int64_t) {  // one index to each thread
    begun = true;
    if (std::this_thread::get_id() != caller) return std::this_thread::sleep_for(200ms);
    std::this_thread::sleep_for(20ms);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  });
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  EXPECT_TRUE(begun);
  EXPECT_LT((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000, 10);
}

TEST(ParallelFor, ThrowsWhatABodyThrew) {
  EXPECT_THROW(parallel_for(2, 8, [](int64_t i) { HR_REQUIRE(i != 5, ErrorCode::kIo, "five"); }), Error);
  for (const int64_t thrower : {0, 7, 99}) {
    std::atomic<int> ran{0};
    try {
      parallel_for(4, 100, [&](int64_t i) {
        ++ran;
        if (i == thrower) throw Error(ErrorCode::kIo, str("index ", i));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), str("index ", thrower));
    }
    EXPECT_LE(ran, 100);
    EXPECT_TRUE(runs_each_once(4, 100)) << "after a region that threw";
  }
}

TEST(ParallelFor, ACallWithinACallRunsInItsThread) {
  std::vector<std::vector<int>> seen(6, std::vector<int>(5));
  parallel_for(2, 6, [&](int64_t outer) {
    const auto thread = std::this_thread::get_id();
    parallel_for(4, 5, [&](int64_t inner) {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      std::this_thread::sleep_for(5ms);  // another thread would find an index to take
      ++seen[static_cast<size_t>(outer)][static_cast<size_t>(inner)];
    });
  });
  for (const auto& row : seen) EXPECT_EQ(row, std::vector<int>(5, 1));
  EXPECT_EQ(threads_that_meet(2, 2).size(), 2) << "after calls within a call";
}

TEST(ParallelFor, CallersOfSeveralThreadsDoNotMix) {
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([caller] {
      for (int region = 0; region < 300; ++region) EXPECT_TRUE(runs_each_once(2 + caller % 3, 50 + caller));
      EXPECT_THROW(parallel_for(3, 9, [](int64_t) { throw Error(ErrorCode::kIo, "nine"); }), Error);
    });
  }
}

TEST(ParallelFor, AChildOfForkHasThreadsOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer allows a child of several threads to start none";
#endif
  ASSERT_EQ(threads_that_meet(3, 3).size(), 3);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(threads_that_meet(3, 3).size() == 3 && runs_each_once(3, 100) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace headrace
