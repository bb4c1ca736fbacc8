// Products of few rows that follow one another, run by one kernel of sm_90 that reads their weights without a pause.
// Includes nothing of CUDA: the plans' tests are built on machines without it.
#pragma once
#include <mutex>
#include <vector>

#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

struct Stream;

// What a stream has been asked for and has not launched yet. Whoever takes the stream to queue anything else launches
// it first (stream_of), and so do copies and waits: nobody else sees that it was late. Thread-safe.
class GemmSequence {
 public:
  static constexpr size_t kMost = 4;  // products and what they share: a layer of a decoder has four

  // Whether other processes' kernels may run on the device at the same time (MPS).
  enum class Device : uint8_t { kAlone, kShared };
  // `exchange`: two generations of HandOver::kBytes on the device, all ones, its own; not owned.
  GemmSequence(void* exchange, Device device) : exchange_(exchange), device_(device) {}
  bool device_is_shared() const { return device_ == Device::kShared; }

  // Whether `args` may stand in a chain: 1 to 8 rows of one 16-bit type, weights in rows of whole 16 bytes.
  static bool supports(const FusedLinearArgs& args, const Stream& stream);
  // Whether it is faster there than by kernels of few rows, one after another; linear.cu knows of others.
  static bool pays(const FusedLinearArgs& args);
  // Puts `args`, which it supports, behind what waits already.
  void add(const FusedLinearArgs& args, const Stream& stream);
  // Queues what waits. Error kCuda.
  void launch(const Stream& stream);

 private:
  void launch_waiting(const Stream& stream);

  void* exchange_;
  Device device_;
  std::mutex mutex_;
  std::vector<FusedLinearArgs> waiting_;
};

}  // namespace headrace::cuda
