#include "headrace/batch/attention_plan_cache.h"

#include <algorithm>

namespace headrace {

AttentionPlanCache::Place AttentionPlanCache::find(const Key& key, int64_t bytes) {
  constexpr int64_t kAlign = 256;
  const auto place = [&](int64_t begin, State state) {
    return Place{static_cast<char*>(memory_.data()) + begin, state};
  };
  const auto serves = [&](const Plan& plan) { return plan.key == key && plan.bytes >= bytes; };
  if (const auto made = std::find_if(plans_.begin(), plans_.end(), serves); made != plans_.end())
    return place(made->begin, State::kMade);
  const int64_t end = plans_.empty() ? 0 : plans_.back().begin + plans_.back().bytes;
  const int64_t begin = (end + kAlign - 1) / kAlign * kAlign;
  if (bytes > kMostBytes || begin + bytes > memory_.bytes()) return {};
  plans_.push_back({key, begin, bytes});
  return place(begin, State::kNew);
}

}  // namespace headrace
