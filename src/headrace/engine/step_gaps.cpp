#include "headrace/engine/step_gaps.h"

namespace headrace {

StepGaps::StepGaps(DeviceRuntime& runtime) {
  for (Places& places : steps_) {
    for (auto& place : places) place = runtime.make_timed_event();
  }
}

void StepGaps::note(Place place) {
  if (place == kPassBegins) newest_ = (newest_ + 1) % steps_.size();
  steps_[newest_][place]->set();
}

void StepGaps::end_step() {
  const Places& before = steps_[oldest_];
  oldest_ = (oldest_ + 1) % steps_.size();
  const Places& step = steps_[oldest_];
  step[kChoiceEnds]->wait();
  const double in_step = step[kChoiceBegins]->seconds_since(*step[kPassEnds]);
  if (any_ended_) seconds_.push_back(in_step + step[kPassBegins]->seconds_since(*before[kChoiceEnds]));
  any_ended_ = true;
}

}  // namespace headrace
