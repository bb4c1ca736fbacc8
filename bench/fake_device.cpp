#include "bench/fake_device.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace headrace::bench {
namespace {

TensorView of_host(const TensorView& x) { return {x.data(), x.dtype(), x.shape(), x.strides()}; }

// Points `args` to the device's arrays and drops what lies on the host, which may be gone when the kernel runs. Checks
// read ids and slots only of the host: so a kernel refuses those out of range.
template <class Args>
Args as_kernels_read(const Args& args) {
  Args there = args;
  if constexpr (requires { there.on_device; }) {
    HR_REQUIRE(args.on_device != nullptr, ErrorCode::kInvalidArgument, "fake device: the batch lies on the host");
    there.spans = {args.on_device->spans, args.spans.size()};
    if constexpr (requires { there.snapshots; }) {
      there.slots = {args.on_device->state_slots, args.slots.size()};
      there.snapshots = {args.on_device->snapshots, args.snapshots.size()};
    }
    there.on_device = nullptr;
  }
  if constexpr (requires { there.on_host; }) there.on_host = {};
  if constexpr (std::is_same_v<Args, EmbeddingArgs>) there.ids = of_host(args.ids);
  if constexpr (std::is_same_v<Args, StoreKVArgs>) there.slots = of_host(args.slots);
  return there;
}

template <class Args, void (*OpSet::*kOp)(Args, const OpContext&)>
void queue_kernel(Args args, const OpContext& context) {
  check(args);
  FakeDevice& device = *static_cast<FakeDevice*>(context.stream);
  OpContext on_host = context;
  on_host.stream = nullptr;
  device.run([kernel = device.kernels().*kOp, there = as_kernels_read(args), on_host] { kernel(there, on_host); });
}

OpSet queued(const OpSet& kernels) {
  OpSet ops = kernels;  // with its limits
  ops.name = "fake";
  // NOLINTBEGIN(bugprone-macro-parentheses): names of members and parameters
#define HR_QUEUED(op, Args) ops.op = queue_kernel<Args, &OpSet::op>;
#define HR_NOT_FUSED(op, Args) ops.op = not_fused<Args>;
#define HR_NONE(op, Args)
  // NOLINTEND(bugprone-macro-parentheses)
  HR_OPS(HR_QUEUED, HR_NOT_FUSED, HR_NONE)
#undef HR_QUEUED
#undef HR_NOT_FUSED
#undef HR_NONE
  return ops;
}

}  // namespace

class FakeDevice::Event final : public DeviceEvent {
 public:
  explicit Event(FakeDevice& device) : device_(device) {}
  void set() override {
    device_.run([mark = mark_] { mark->set(); });
    end_ = device_.num_queued_;
  }
  void wait() override { device_.run_until(end_); }
  double seconds_since(const DeviceEvent& earlier) const override {
    return mark_->seconds_since(*dynamic_cast<const Event&>(earlier).mark_);
  }

 private:
  FakeDevice& device_;  // not owned
  std::shared_ptr<DeviceEvent> mark_ = cpu_runtime().make_timed_event();
  uint64_t end_ = 0;
};

class FakeDevice::Graph final : public DeviceGraph {
 public:
  Graph(FakeDevice& device, Work work) : device_(device), work_(std::make_shared<const Work>(std::move(work))) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() override { device_.blocks_.graph_gone(); }
  void launch() override {
    device_.run([work = work_] {
      for (const auto& call : *work) call();
    });
  }

 private:
  FakeDevice& device_;  // not owned
  std::shared_ptr<const Work> work_;
};

// The CPU's runtime, which releases memory_, is made first, so that it outlives a static device.
FakeDevice::FakeDevice(const OpSet& kernels) : kernels_(kernels), ops_(queued(kernels)) { cpu_runtime(); }

void FakeDevice::run(std::function<void()> work) {
  if (blocks_.recording()) {
    recorded_.push_back(std::move(work));
  } else {
    queue_.push_back(std::move(work));
    ++num_queued_;
  }
}

void FakeDevice::require_no_capture(const char* what) const {
  HR_REQUIRE(!blocks_.recording(), ErrorCode::kCuda, "fake device: ", what, " cannot be captured");
}

void FakeDevice::run_until(uint64_t end) {
  require_no_capture("a wait");
  while (num_done_ < end) {
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    ++num_done_;  // before it may throw
    work();
  }
}

void* FakeDevice::allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  void* memory = blocks_.take(bytes);
  if (memory == nullptr) {
    memory = memory_.emplace_back(DType::kU8, Shape{static_cast<int64_t>(bytes)}).data();
    blocks_.add(memory, bytes);
  }
  run([memory, bytes] { std::memset(memory, 0xff, bytes); });  // work that is queued may have this memory yet
  return memory;
}

void FakeDevice::release(void* memory, size_t bytes) noexcept { blocks_.put(memory, std::max<size_t>(bytes, 1)); }

void FakeDevice::fill_zero(void* memory, size_t bytes) {
  run([memory, bytes] { cpu_runtime().fill_zero(memory, bytes); });
}

void FakeDevice::copy_to_device(void* to, const void* from_host, size_t bytes) {
  require_no_capture("a copy from the host");
  run([to, staged = std::string(static_cast<const char*>(from_host), bytes)] {
    std::memcpy(to, staged.data(), staged.size());
  });
}

void FakeDevice::copy_to_host(void* to_host, const void* from, size_t bytes) {
  require_no_capture("a copy to the host");
  synchronize();
  std::memcpy(to_host, from, bytes);
}

void FakeDevice::copy_on_device(void* to, const void* from, size_t bytes) {
  run([to, from, bytes] { std::memcpy(to, from, bytes); });
}

std::unique_ptr<DeviceEvent> FakeDevice::make_event() { return std::make_unique<Event>(*this); }
std::unique_ptr<DeviceEvent> FakeDevice::make_timed_event() { return std::make_unique<Event>(*this); }

void FakeDevice::begin_capture() {
  require_no_capture("a capture");
  recorded_.clear();
  blocks_.begin_recording();
}

std::unique_ptr<DeviceGraph> FakeDevice::end_capture() {
  blocks_.end_recording();
  return std::make_unique<Graph>(*this, std::exchange(recorded_, {}));
}

void* FakeDevice::allocate_shared(size_t bytes) {
  void* memory = cpu_runtime().allocate(bytes);
  std::memset(memory, 0, bytes);  // at once: the host may read it
  return memory;
}

void FakeDevice::release_shared(void* memory, size_t bytes) noexcept { cpu_runtime().release(memory, bytes); }

}  // namespace headrace::bench
