#include "headrace/ops/cuda/runtime/runtime.h"
#include "headrace/core/error.h"
#include "headrace/ops/cuda/runtime/memory_left.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "headrace/core/device_runtime.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/memory_need.h"
#include "headrace/ops/cuda/gemm/cublaslt_plans.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_hand_over.h"
#include "headrace/ops/cuda/runtime/device_check.h"
#include "headrace/ops/cuda/runtime/relaxed_capture.h"

namespace headrace::cuda {
namespace {

constexpr size_t kRingBytes = size_t{8} << 20;

// Rounds small sizes up to powers of two, large ones to whole 2 MiB pages: few size classes, little waste.
size_t rounded_size(size_t bytes) {
  constexpr size_t kLarge = size_t{2} << 20;
  if (bytes >= kLarge) return (bytes + kLarge - 1) / kLarge * kLarge;
  return std::bit_ceil(std::max<size_t>(bytes, 512));
}

class Graph final : public DeviceGraph {
 public:
  Graph(cudaGraphExec_t exec, const Stream& stream, Runtime& runtime)
      : exec_(exec), stream_(&stream), runtime_(&runtime) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() override {
    cudaGraphExecDestroy(exec_);
    runtime_->graph_gone();
  }
  void launch() override {
    make_current(*stream_);
    check_cuda(cudaGraphLaunch(exec_, stream_->handle), "launching a graph");
  }

 private:
  cudaGraphExec_t exec_;
  const Stream* stream_;  // not owned; nor is runtime_
  Runtime* runtime_;
};

class Mark final : public DeviceEvent {
 public:
  Mark(const Stream& stream, unsigned flags) : stream_(&stream) {
    make_current(stream);
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() override { cudaEventDestroy(event_); }
  void set() override {
    make_current(*stream_);
    check_cuda(cudaEventRecord(event_, stream_->handle), "marking a place in a stream");
  }
  void wait() override { check_cuda(cudaEventSynchronize(event_), "waiting for the device"); }
  double seconds_since(const DeviceEvent& earlier) const override {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, dynamic_cast<const Mark&>(earlier).event_, event_), "timing");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
  const Stream* stream_;  // not owned
};

}  // namespace

Runtime::Runtime(SharedDevice& shared) : shared_(shared) {}

// The destructor frees what was made before an error: it runs because the constructor delegated to has ended.
Runtime::Runtime(int32_t index, SharedDevice& shared, std::optional<cudaStream_t> callers) : Runtime(shared) {
  if (callers) stream_.handle = *callers, stream_.overlap = Stream::Overlap::kNone, stream_is_ = StreamIs::kCallers;
  const RelaxedCapture relaxed;
  with_need({.what = "the memory that kernels work in", .advice = "another device, or end what fills this one"},
            [&] { start(index); });
  check_pinned(cudaMallocHost(&ring_, kRingBytes), kRingBytes);
}

void Runtime::start(int32_t index) {
  const cudaDeviceProp properties = checked_device(index);
  stream_.device = index;
  stream_.num_sms = properties.multiProcessorCount;
  stream_.arch = properties.major * 10 + properties.minor;
  stream_.shared_bytes_of_block = properties.sharedMemPerBlockOptin;
  stream_.shared_bytes_of_sm = properties.sharedMemPerMultiprocessor;
  if (stream_is_ == StreamIs::kOwn) {
    check_cuda(cudaStreamCreateWithFlags(&stream_.handle, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  stream_.scratch_bytes = kScratchBytes;
  stream_.scratch = allocate(kScratchBytes);
  constexpr size_t kCounterBytes = (Stream::kCounters + 1) * sizeof(uint32_t);
  stream_.counters = static_cast<uint32_t*>(allocate(kCounterBytes));
  constexpr size_t kHandOverBytes = size_t{2} * HandOver::kBytes;
  stream_.hand_over = allocate(kHandOverBytes);
  fill_at_once({{stream_.counters, kCounterBytes, 0}, {stream_.hand_over, kHandOverBytes, 0xff}});
  blas_ = std::make_unique<CublasLtPlans>(index, shared_.blas_handles);
  stream_.blas = blas_.get(), stream_.notes = &shared_.attributes;
  if (stream_is_ == StreamIs::kOwn) stream_.grid_barrier = taken_grid_barrier();
}

// On a stream that exists for this alone: the runtime's may be the caller's, and capture.
void Runtime::fill_at_once(const std::vector<Filled>& blocks) {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cudaError_t status = cudaSuccess;
  for (const Filled& block : blocks) {
    if (status == cudaSuccess) status = cudaMemsetAsync(block.memory, block.value, block.bytes, stream);
  }
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  check_cuda(status, "clearing the memory that kernels work in");
}

// Of the runtimes of a device the first one that asks has the barrier, until it is destroyed. Others never get it:
// graphs that they recorded without it stay as they are.
GridBarrier Runtime::taken_grid_barrier() {
  int mps = 0;
  check_cuda(cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, stream_.device), "asking for MPS");
  if (shared_.has_grid_barriers.test_and_set()) return GridBarrier::kNone;
  return mps != 0 ? GridBarrier::kCooperative : GridBarrier::kPlain;
}

// Ignores errors: behind a fault of a kernel every call fails, and the driver frees the memory with the context.
Runtime::~Runtime() {
  if (stream_.num_sms == 0) return;  // nothing was made
  cudaSetDevice(stream_.device);
  free_cached();  // waits for the stream
  if (stream_.grid_barrier != GridBarrier::kNone) shared_.has_grid_barriers.clear();
  blas_.reset();
  for (void* block : blocks_.drop_of_graphs()) cudaFree(block);
  cudaFree(stream_.scratch);
  cudaFree(stream_.counters);
  cudaFree(stream_.hand_over);
  cudaFreeHost(ring_);
  if (stream_is_ == StreamIs::kOwn) cudaStreamDestroy(stream_.handle);
}

void* Runtime::allocate(size_t bytes) {
  const size_t size = rounded_size(bytes);
  make_current(stream_);
  const std::lock_guard lock(mutex_);
  if (void* memory = blocks_.take(size); memory != nullptr) return memory;
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();         // the error is handled here
    if (blocks_.recording()) {  // freeing needs a wait, which would end a capture
      memory = blocks_.take_spare(size);
      if (memory != nullptr) return memory;
    } else {
      free_cached();
      status = cudaMalloc(&memory, size);
    }
  }
  if (status == cudaSuccess) {
    blocks_.add(memory, size);
    return memory;
  }
  cudaGetLastError();
  if (status != cudaErrorMemoryAllocation) check_cuda(status, "cudaMalloc");  // a fault of an earlier kernel
  throw Error(ErrorCode::kOutOfMemory,
              str(to_string(device()), ": could not allocate ", human_bytes(bytes), said_of(memory_left())));
}

void Runtime::release(void* memory, size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  blocks_.put(memory, rounded_size(bytes));
}

void Runtime::free_cached() noexcept {
  try {
    synchronize();
  } catch (const Error&) {  // the next call reports the earlier kernel's fault; free the blocks all the same
  }
  for (void* block : blocks_.drop_free()) cudaFree(block);
}

void Runtime::fill_zero(void* memory, size_t bytes) {
  check_cuda(cudaMemsetAsync(memory, 0, bytes, queue()), "cudaMemsetAsync");
}

// Returns `bytes` of the pinned ring buffer. Wrapping synchronises with the device, so no data is overwritten before it
// was read.
char* Runtime::stage(size_t bytes) {
  if (ring_at_ + bytes > kRingBytes) {
    check_cuda(cudaStreamSynchronize(queue()), "waiting for the device");
    ring_at_ = 0;
  }
  char* place = ring_ + ring_at_;
  ring_at_ += (bytes + 63) / 64 * 64;
  return place;
}

void Runtime::copy_to_device(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(bytes - done, kRingBytes / 2);
    char* staged = stage(part);
    std::memcpy(staged, static_cast<const char*>(from) + done, part);
    check_cuda(cudaMemcpyAsync(static_cast<char*>(to) + done, staged, part, cudaMemcpyHostToDevice, queue()),
               "copying to the device");
    done += part;
  }
}

void Runtime::copy_to_host(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, queue()), "copying from the device");
  synchronize();
}

void Runtime::copy_on_device(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue()), "copying on the device");
}

void Runtime::copy_rows_on_device(void* to, const void* from, size_t bytes, size_t stride, size_t rows) {
  constexpr size_t kMostStride = INT32_MAX;  // cudaDeviceProp::memPitch
  if (stride > kMostStride) return DeviceRuntime::copy_rows_on_device(to, from, bytes, stride, rows);
  check_cuda(cudaMemcpy2DAsync(to, stride, from, stride, bytes, rows, cudaMemcpyDeviceToDevice, queue()),
             "copying rows on the device");
}

void Runtime::synchronize() { check_cuda(cudaStreamSynchronize(queue()), "waiting for the device"); }

std::unique_ptr<DeviceEvent> Runtime::make_event() { return std::make_unique<Mark>(stream_, cudaEventDisableTiming); }
std::unique_ptr<DeviceEvent> Runtime::make_timed_event() { return std::make_unique<Mark>(stream_, cudaEventDefault); }

std::future<void> Runtime::start_matmul_library() {
  return std::async(std::launch::async, [this] {
    try {
      blas_->handle();
    } catch (const Error&) {  // the first GEMM that needs cuBLASLt tries again and reports it
    }
  });
}

void* Runtime::allocate_shared(size_t bytes) {
  void* memory = nullptr;
  make_current(stream_);
  check_pinned(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped), bytes);
  std::memset(memory, 0, bytes);
  return memory;
}

void Runtime::release_shared(void* memory, size_t) noexcept { cudaFreeHost(memory); }

void Runtime::begin_capture() {
  const std::lock_guard lock(mutex_);
  // Relaxed: this thread may allocate in between. No mode but kGlobal restricts other threads' calls.
  check_cuda(cudaStreamBeginCapture(queue(), cudaStreamCaptureModeRelaxed), "beginning a capture");
  blocks_.begin_recording();
}

void Runtime::graph_gone() noexcept {
  const std::lock_guard lock(mutex_);
  blocks_.graph_gone();
}

std::unique_ptr<DeviceGraph> Runtime::end_capture() {
  make_current(stream_);
  const std::lock_guard lock(mutex_);
  blocks_.end_recording();
  try {
    return std::make_unique<Graph>(ended_capture(), stream_, *this);
  } catch (const Error&) {
    blocks_.graph_gone();  // no graph was made
    throw;
  }
}

cudaGraphExec_t Runtime::ended_capture() {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream_.handle, &graph);
  if (status != cudaSuccess) cudaGetLastError();
  check_cuda(status, "ending a capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(instantiated, "making a graph of a capture");
  return exec;
}

}  // namespace headrace::cuda
