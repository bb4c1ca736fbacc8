// Sets of candidates as integers: count and weight. Sums over a CTA, and searches in a sequence of them.
#pragma once
#include <cstdint>

namespace headrace::cuda::sampling {

constexpr unsigned kAllLanes = 0xffffffffu;

struct Mass {
  uint64_t weight;
  uint32_t count;

  __device__ Mass& operator+=(const Mass& other) {
    weight += other.weight;
    count += other.count;
    return *this;
  }
  __device__ Mass& operator-=(const Mass& other) {
    weight -= other.weight;
    count -= other.count;
    return *this;
  }
};

__device__ inline Mass over_warp(Mass m) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    m += {__shfl_xor_sync(kAllLanes, m.weight, distance), __shfl_xor_sync(kAllLanes, m.count, distance)};
  }
  return m;
}

// Returns the inclusive prefix sum over the lanes.
__device__ inline Mass up_to_lane(Mass m) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Mass other{__shfl_up_sync(kAllLanes, m.weight, distance), __shfl_up_sync(kAllLanes, m.count, distance)};
    if (static_cast<int>(threadIdx.x % 32) >= distance) m += other;
  }
  return m;
}

__device__ inline Mass of_lane(const Mass& m, int lane) {
  return {__shfl_sync(kAllLanes, m.weight, lane), __shfl_sync(kAllLanes, m.count, lane)};
}

// Returns the inclusive prefix sum over `warps` whole warps that have not exited. `all` gets the total.
__device__ inline Mass up_to_thread(const Mass& own, int warps, Mass& all) {
  __shared__ Mass of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Mass with = up_to_lane(own);
  __syncthreads();  // the previous contents have been read
  if (lane == 31) of_warp[warp] = with;
  __syncthreads();
  const Mass sums = up_to_lane(lane < warps ? of_warp[lane] : Mass{});
  all = of_lane(sums, 31);
  const Mass before = of_lane(sums, max(warp - 1, 0));
  if (warp > 0) with += before;
  return with;
}

// Returns the first index below `count` that satisfies a monotone condition, or the last index if none does. Called by
// a whole warp: each lane tests one of 32 sections.
template <class Condition>
__device__ int first_index(int count, const Condition& fulfils) {
  int from = 0, to = count;
  while (to - from > 1) {
    const int step = (to - from + 31) / 32, end = min(from + (static_cast<int>(threadIdx.x % 32) + 1) * step, to);
    const unsigned votes = __ballot_sync(kAllLanes, end == to || fulfils(end - 1));
    from += (__ffs(static_cast<int>(votes)) - 1) * step;
    to = min(from + step, to);
  }
  return from;
}

// Search target: the first candidate at which the mass of all candidates up to it satisfies the condition.
struct Search {
  enum class Until : uint8_t { kCount, kWeight, kMoreWeight } until;
  double target;

  __device__ bool reached(const Mass& mass) const {
    switch (until) {
      case Until::kCount: return static_cast<double>(mass.count) >= target;
      case Until::kWeight: return static_cast<double>(mass.weight) >= target;
      default: return static_cast<double>(mass.weight) > target;
    }
  }
};

// Result of a search in a sequence of masses.
struct Hit {
  int index;
  Mass before, own;
};

// Histogram in shared memory, bins in the order of candidates, for all threads of a CTA. Weights are stored as 32-bit
// halves, because a 64-bit shared-memory atomic add is a loop.
template <int kThreads, int kBins>
struct Histogram {
  uint32_t count[kBins], low[kBins], high[kBins];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) put(i, {});
    __syncthreads();
  }
  __device__ void add(uint32_t bin, uint64_t weight) {
    atomicAdd(&count[bin], 1);
    if (weight == 0) return;
    const auto part = static_cast<uint32_t>(weight);
    const uint32_t sum = atomicAdd(&low[bin], part) + part;
    const uint32_t rest = static_cast<uint32_t>(weight >> 32) + (sum < part ? 1 : 0);
    if (rest > 0) atomicAdd(&high[bin], rest);
  }
  __device__ Mass at(int bin) const { return {uint64_t{high[bin]} << 32 | low[bin], count[bin]}; }
  __device__ void put(int bin, const Mass& mass) {
    count[bin] = mass.count, low[bin] = static_cast<uint32_t>(mass.weight);
    high[bin] = static_cast<uint32_t>(mass.weight >> 32);
  }

  // Replaces each bin by `before` plus the sum of the bins up to it.
  __device__ void add_up(const Mass& before = {}) {
    constexpr int kEach = kBins / kThreads;
    const int first = static_cast<int>(threadIdx.x) * kEach;
    Mass own{}, all;
    __syncthreads();  // all threads have added
    for (int i = first; i < first + kEach; ++i) own += at(i);
    Mass sum = up_to_thread(own, kThreads / 32, all);
    sum -= own;
    sum += before;
    for (int i = first; i < first + kEach; ++i) {
      sum += at(i);
      put(i, sum);
    }
    __syncthreads();
  }
  // Requires add_up(before). Returns the last non-empty bin if the condition is never satisfied.
  __device__ Hit find(const Search& search, const Mass& before = {}) const {
    const int index = index_of(search, before.count);
    Hit hit{index, index > 0 ? at(index - 1) : before, at(index)};
    hit.own -= hit.before;
    return hit;
  }

 private:
  // One copy of the code for all searches: instruction fetches dominate.
  __device__ __noinline__ int index_of(Search search, uint32_t before) const {
    const Mass end = at(kBins - 1);
    const bool ever = search.reached(end);
    return first_index(kBins, [&](int i) {
      const Mass mass = at(i);
      return mass.count > before && (ever ? search.reached(mass) : mass.count >= end.count);
    });
  }
};

}  // namespace headrace::cuda::sampling
