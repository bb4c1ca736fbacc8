// The time for which a device waits for the host around and within steps.
#pragma once
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/core/device_runtime.h"

namespace headrace {

// For benchmarks. A step is a forward pass and the choice of its tokens. Between the two, and between steps, a device
// has nothing to do unless the host queued the next part in time. Not thread-safe.
class StepGaps {
 public:
  // Error kUnsupported for a device without timed events.
  explicit StepGaps(DeviceRuntime& runtime);

  // The places in the device's work, in this order for each step.
  enum Place : size_t { kPassBegins, kPassEnds, kChoiceBegins, kChoiceEnds };
  void note(Place place);
  // Call it when a step has been waited for: oldest first.
  void end_step();
  // Returns the seconds of each step's two gaps, in front of its pass and of its choice, since the last call. The first
  // step has none.
  std::vector<double> take() { return std::exchange(seconds_, {}); }

 private:
  using Places = std::array<std::unique_ptr<DeviceEvent>, 4>;
  std::array<Places, 3> steps_;     // two in flight and the one before
  size_t newest_ = 2, oldest_ = 2;  // numbers of steps, modulo 3: of the last one noted, of the last one that ended
  bool any_ended_ = false;
  std::vector<double> seconds_;
};

}  // namespace headrace
