#include "headrace/batch/device_plans.h"

#include <algorithm>

namespace headrace {

DevicePlans::Place DevicePlans::find(const Key& key, int64_t bytes) {
  const auto fits = [&](const Plan& plan) { return plan.key == key && plan.memory.bytes() >= bytes; };
  auto plan = std::find_if(plans_.begin(), plans_.end(), fits);
  if (plan == plans_.end()) {
    plan = plans_.insert(plans_.end(), {key, Tensor(DType::kU8, {bytes}, runtime_)});
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
