// GEMM sequence: up to four consecutive GEMMs of small M, run by one persistent kernel of sm_90 that reads their
// weights without a pause. Includes no CUDA header: the plans' tests build on machines without CUDA.
#pragma once
#include <mutex>
#include <vector>

#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

struct Stream;

// GEMMs of one stream that ops deferred and that are not launched yet. stream_of() launches them before anything else
// is queued, and so do copies and waits: no caller can see the delay. Thread-safe.
class GemmSequence {
 public:
  static constexpr size_t kMost = 4;  // calls, each with up to four weights: a decoder layer has four

  // kShared: other processes' kernels may run on the device at the same time (MPS).
  enum class Device : uint8_t { kAlone, kShared };
  // `exchange`: hand-over memory for this object alone, two generations of HandOver::kBytes on the device, filled with
  // ones; not owned.
  GemmSequence(void* exchange, Device device) : exchange_(exchange), device_(device) {}
  bool device_is_shared() const { return device_ == Device::kShared; }

  // Returns true if `args` can run in a sequence: sm_90, M from 1 to 8, one 16-bit dtype, weight rows of whole 16
  // bytes.
  static bool supports(const FusedLinearArgs& args, const Stream& stream);
  // Heuristic: returns true if the sequence kernel beats separate skinny GEMMs for this call. gemm.cu compares it with
  // the small-M GEMM.
  static bool pays(const FusedLinearArgs& args);
  // Appends `args`, which must be supported. Launches the waiting GEMMs first if `args` does not fit into their
  // sequence. Throws kCuda.
  void add(const FusedLinearArgs& args, const Stream& stream);
  // Launches the waiting GEMMs, if any, as one kernel. Throws kCuda.
  void launch(const Stream& stream);

 private:
  void launch_waiting(const Stream& stream);

  void* exchange_;
  Device device_;
  std::mutex mutex_;
  std::vector<FusedLinearArgs> waiting_;
};

}  // namespace headrace::cuda
