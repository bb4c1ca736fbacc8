#include "headrace/batch/device_plans.h"

#include <algorithm>
#include <bit>

namespace headrace {

DevicePlans::Place DevicePlans::find(const Key& key, int64_t bytes) {
  const auto fits = [&](const Plan& plan) { return plan.key == key && plan.memory.bytes() >= bytes; };
  auto plan = std::find_if(plans_.begin(), plans_.end(), fits);
  if (plan == plans_.end()) {
    // As a batch grows its plans do: by twice each time, so that those outgrown, which graphs may hold, stay few.
    const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
    plan = plans_.insert(plans_.end(), {key, Tensor(DType::kU8, {room}, runtime_)});
  }
  const Place place{plan->memory.data(), plan->made ? State::kMade : State::kNew};
  plan->made = true;
  return place;
}

void DevicePlans::forget() {
  for (Plan& plan : plans_) plan.made = false;
  shorter_keys_.clear();
}

}  // namespace headrace
