// The arrays of an AttnMetadata where a device's kernels can read them.
#pragma once
#include "headrace/batch/key_span.h"

namespace headrace {

struct StateSlots;
struct StateSnapshot;

// Device addresses; refers to memory of the DeviceBatch that made it. Kernels read lengths, slots and kinds from here
// alone, so a captured graph stays valid when their contents change; the host's arrays size the launch.
struct DeviceMetadata {
  const KeySpan* spans = nullptr;
  const StateSlots* state_slots = nullptr;
  const StateSnapshot* snapshots = nullptr;
};

}  // namespace headrace
