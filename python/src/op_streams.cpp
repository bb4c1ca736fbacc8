#include "op_streams.h"

#include <map>
#include <utility>

#include "headrace/ops/cuda_module.h"

namespace headrace::python {
namespace {

struct CallerStreams {
  std::mutex mutex;
  std::map<std::pair<int32_t, void*>, std::unique_ptr<CallerStream>> entries;
};

}  // namespace

CallerStream& caller_stream(int32_t device, void* stream) {
  static auto& streams = *new CallerStreams;  // never destroyed: the driver may end before the process does
  const std::lock_guard lock(streams.mutex);
  std::unique_ptr<CallerStream>& entry = streams.entries[{device, stream}];
  if (!entry) {
    auto made = std::make_unique<CallerStream>();
    made->runtime = cuda_module().make_runtime_on(device, stream);
    entry = std::move(made);
  }
  return *entry;
}

bool is_capturing(void* stream) { return cuda_module().is_capturing(stream); }

}  // namespace headrace::python
