#include "headrace/ops/cpu/parallel_scratch.h"

#include <memory>
#include <new>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/parallel.h"

namespace headrace::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr long kOnStack = 4096;  // floats; small rows take less time than an allocation each

struct Free {
  void operator()(float* memory) const { ::operator delete(memory, kAlignment); }
};

std::unique_ptr<float, Free> allocate(long floats) {
  const auto bytes = static_cast<size_t>(floats) * sizeof(float);
  auto* const memory = static_cast<float*>(::operator new(bytes, kAlignment, std::nothrow));
  HR_REQUIRE(memory != nullptr, ErrorCode::kOutOfMemory, "cpu kernels: no memory for ", human_bytes(bytes),
             " of scratch");
  return std::unique_ptr<float, Free>(memory);
}

}  // namespace

void parallel_for_with_scratch(int threads, long count, long floats, void (*fn)(void* context, long i, float* scratch),
                               void* context) {
  if (floats > kOnStack) {
    parallel_for(threads, count, [&](int64_t i) { fn(context, i, allocate(floats).get()); });
    return;
  }
  parallel_for(threads, count, [&](int64_t i) {
    alignas(64) float scratch[kOnStack];
    fn(context, i, scratch);
  });
}

}  // namespace headrace::cpu
