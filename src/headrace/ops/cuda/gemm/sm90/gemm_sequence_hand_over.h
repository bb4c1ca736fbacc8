// Decides which steps of a GEMM sequence get x from the step before by flag-in-data hand-over
// (gemm_sequence_hand_over.cuh; NCCL calls it LL). Pure: a sequence in, offsets out.
#pragma once
#include <array>
#include <span>

#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"
#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

// Guarantee of a grid barrier before a step. kSeen: all that other CTAs wrote before it is visible. kEarlierSeen: all
// that they wrote in steps before the last one is visible. kAsked: nothing; it only says that it is time to load what
// is handed over.
enum class After : uint8_t { kSeen, kEarlierSeen, kAsked };

struct HandOver {
  static constexpr int kBytes = 256 << 10;  // of one generation of the hand-over memory
  static constexpr int kNotHanded = -1;     // x is read from its own memory, after a barrier that makes it visible

  struct Step {
    int x_at = kNotHanded;  // byte offset of x in a generation
    After after = After::kSeen;
  };
  std::array<Step, kMostSequenceSteps> steps{};
};

namespace hand_over_rules {

// Returns the end of a tensor's last row, of 16-bit values or float32.
inline const char* end_of(const TensorView& x) {
  const int64_t elements = (x.dim(0) - 1) * x.stride(0) + x.dim(1);
  return static_cast<const char*>(x.data()) + elements * (x.dtype() == DType::kF32 ? 4 : 2);
}
inline bool overlap(const TensorView& x, const TensorView& y) {
  return x && y && x.data() < static_cast<const void*>(end_of(y)) && y.data() < static_cast<const void*>(end_of(x));
}
inline bool same(const TensorView& x, const TensorView& y) {
  return x && y && x.data() == y.data() && x.dtype() == y.dtype() && x.dim(0) == y.dim(0) && x.dim(1) == y.dim(1) &&
         x.stride(0) == y.stride(0);
}
inline bool is_one_product(const FusedLinearArgs& a) { return a.num_products == 1; }
inline bool has_one_result(const FusedLinearArgs& a) {
  return is_one_product(a) || a.combine == FusedLinearArgs::Combine::kSiluMul;
}

// Returns true if `step` touches a result of `before`, besides its own x. The exception is one GEMM each and the same
// memory layout: then a thread touches only what it wrote itself.
inline bool clashes(const FusedLinearArgs& step, const FusedLinearArgs& before) {
  const bool same_threads = is_one_product(step) && is_one_product(before);
  for (int i = 0; i < before.num_products; ++i) {
    const TensorView& y = before.products[static_cast<size_t>(i)].y;
    const auto clashes_with = [&](const TensorView& other) {
      return overlap(other, y) && !(same_threads && same(other, y));
    };
    if (clashes_with(step.residual)) return true;
    for (int j = 0; j < step.num_products; ++j) {
      if (clashes_with(step.products[static_cast<size_t>(j)].y)) return true;
    }
  }
  return false;
}

}  // namespace hand_over_rules

// Handed-over values say nothing about other memory. So a step still needs its barrier for other results of earlier
// steps that it touches. It may overwrite what earlier steps read, since all of their results have gone into this
// step's x.
inline HandOver plan_hand_over(std::span<const FusedLinearArgs> steps) {
  using namespace hand_over_rules;  // NOLINT: this function's own
  HandOver exchange;
  int64_t used = 0;
  for (size_t to = 1; to < steps.size(); ++to) {
    const FusedLinearArgs &step = steps[to], &last = steps[to - 1];
    const int64_t bytes = (step.x.numel() * 2 + 15) / 16 * 16;
    if (!has_one_result(last) || !same(last.products[0].y, step.x) || clashes(step, last)) continue;
    if (used + bytes > HandOver::kBytes) continue;
    After after = After::kAsked;
    for (size_t before = 0; before + 1 < to; ++before) {
      if (clashes(step, steps[before])) after = After::kEarlierSeen;
    }
    exchange.steps[to] = {.x_at = static_cast<int>(used), .after = after};
    used += bytes;
  }
  return exchange;
}

}  // namespace headrace::cuda
