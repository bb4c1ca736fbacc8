// A few threads that do work in the order in which it came.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace {

class WorkerPool {
 public:
  explicit WorkerPool(int num_threads) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool() { stop(); }

  // Thread-safe. `work` must not throw. After stop() it is dropped.
  void post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return;
    work_.push_back(std::move(work));
    ready_.notify_one();
  }
  // Drops what waits and returns when what runs has ended.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      work_.clear();
      ready_.notify_all();
    }
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return is_stopping_ || !work_.empty(); });
        if (is_stopping_) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> work_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
