// Sets of candidates as integers: how many, and their weight. Sums over a block, and searches in a sequence of them.
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

// With those of the lanes before.
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

// With those of the threads before, of `warps` whole warps that have not ended; the last thread's in `all`.
__device__ inline Mass up_to_thread(const Mass& own, int warps, Mass& all) {
  __shared__ Mass of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Mass with = up_to_lane(own);
  __syncthreads();  // what was there before has been read
  if (lane == 31) of_warp[warp] = with;
  __syncthreads();
  const Mass sums = up_to_lane(lane < warps ? of_warp[lane] : Mass{});
  all = of_lane(sums, 31);
  const Mass before = of_lane(sums, max(warp - 1, 0));
  if (warp > 0) with += before;
  return with;
}

// The first index below `count` that fulfils what all after it fulfil too, or the last. For a whole warp: each lane
// votes on one of 32 parts.
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

// What a search looks for: the first candidate with which all up to it fulfil the condition.
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

// Where a search ends in a sequence of masses.
struct Hit {
  int index;
  Mass before, own;
};

// Bins in shared memory, in the order of candidates, for all threads of a block. Weights lie in halves: an atomic sum
// of 64 bits there is a loop.
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

  // Afterwards at() is the sum of `before` and of the bins up to that one.
  __device__ void add_up(const Mass& before = {}) {
    constexpr int kEach = kBins / kThreads;
    const int first = static_cast<int>(threadIdx.x) * kEach;
    Mass own{}, all;
    __syncthreads();  // all have added
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
  // After add_up(before). The last bin that has any where the condition is never fulfilled.
  __device__ Hit find(const Search& search, const Mass& before = {}) const {
    const int index = index_of(search, before.count);
    Hit hit{index, index > 0 ? at(index - 1) : before, at(index)};
    hit.own -= hit.before;
    return hit;
  }

 private:
  // One piece of code for all searches: it is read but a few times.
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
