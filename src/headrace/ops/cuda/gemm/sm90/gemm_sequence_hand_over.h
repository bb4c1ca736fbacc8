// Which steps of a chain get their x from the step before as values that say by themselves that they are there
// (gemm_sequence_exchange.cuh). Pure: a chain in, places out.
#pragma once
#include <array>
#include <span>

#include "headrace/ops/cuda/gemm/sm90/gemm_sequence.h"

namespace headrace::cuda {

// What holds behind a meeting of all blocks before a step. kSeen: what they wrote before may be touched. kEarlierSeen:
// what they wrote in steps before the last one. kAsked: only that it is time to ask for what is handed over.
enum class After : uint8_t { kSeen, kEarlierSeen, kAsked };

struct HandOver {
  static constexpr int kBytes = 256 << 10;  // of one generation of values
  static constexpr int kNotHanded = -1;     // x is read where it lies, behind a meeting that makes it seen

  struct Step {
    int x_at = kNotHanded;  // where x lies in a generation, in bytes
    After after = After::kSeen;
  };
  std::array<Step, GemmSequence::kMost> steps{};
};

namespace hand_over_rules {

// Rows of 16-bit values, or of float32.
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

// Whether `step` touches a result of `before`, besides its own x. Where both are results of one product each and lie
// alike, a thread touches only what it wrote itself.
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

// Values that are handed over tell nothing of other memory. So a step meets as it has to for what it touches besides:
// what steps before it wrote. What they read may be written, since all of their values stand in this step's x.
inline HandOver plan_hand_over(std::span<const FusedLinearArgs> chain) {
  using namespace hand_over_rules;  // NOLINT: this function's own
  HandOver exchange;
  int64_t used = 0;
  for (size_t to = 1; to < chain.size(); ++to) {
    const FusedLinearArgs &step = chain[to], &last = chain[to - 1];
    const int64_t bytes = (step.x.numel() * 2 + 15) / 16 * 16;
    if (!has_one_result(last) || !same(last.products[0].y, step.x) || clashes(step, last)) continue;
    if (used + bytes > HandOver::kBytes) continue;
    After after = After::kAsked;
    for (size_t before = 0; before + 1 < to; ++before) {
      if (clashes(step, chain[before])) after = After::kEarlierSeen;
    }
    exchange.steps[to] = {.x_at = static_cast<int>(used), .after = after};
    used += bytes;
  }
  return exchange;
}

}  // namespace headrace::cuda
