// A row of logits to sample from: the order of its candidates, their weights and their bins.
#pragma once
#include <cstring>

#include "headrace/ops/cuda/sampling/mass.cuh"
#include "headrace/ops/sample_tokens.h"

namespace headrace::cuda::sampling {

constexpr int kBins = 3072;
constexpr int kSample = 8192;  // ids that are sampled to estimate where the top k end
constexpr int kSampleParts = 32;
constexpr int kList = 4096;       // capacity of the list that a CTA sorts
constexpr double kUnit = 0x1p44;  // unit of weights: the sum over 2^19 ids fits 64 bits
constexpr float kNoWeight = 32;   // exp(-32) rounds to 0 in units of 2^-44

// CUDA's 64-bit functions take unsigned long long.
__device__ inline unsigned long long* as_unsigned(uint64_t* x) { return reinterpret_cast<unsigned long long*>(x); }
__device__ inline const unsigned long long* as_unsigned(const uint64_t* x) {
  return reinterpret_cast<const unsigned long long*>(x);
}

// Loads data written by an earlier kernel, bypassing the L1 cache.
template <class T>
__device__ T loaded(const T* from) {
  constexpr int kWords = sizeof(T) / 8;
  static_assert(sizeof(T) % 8 == 0 && alignof(T) == 8);
  unsigned long long words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldcg(reinterpret_cast<const unsigned long long*>(from) + i);
  T there;
  memcpy(&there, words, sizeof(T));
  return there;
}

// Maps logits to integers in the order of candidates: the largest logit has the smallest place.
__device__ inline uint32_t place_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // no negative zero
  return (bits & 0x80000000u) != 0 ? bits : ~(bits | 0x80000000u);
}
__device__ inline float logit_at(uint32_t place) {
  return __uint_as_float((place & 0x80000000u) != 0 ? place : ~place & 0x7fffffffu);
}

// A range of consecutive bins as a range of float bits of the distance: bits - first <= width.
struct Distances {
  uint32_t first, width;
  __device__ bool has(float distance) const { return __float_as_uint(distance) - first <= width; }
};

struct alignas(8) BinRange {
  int first = 0, last = -1;
  __device__ bool empty() const { return last < first; }
};

// Returns the rank, among the maxima of kSampleParts parts of a sample, of a logit that bounds the top k from below,
// except in about one row of 100,000. It is twice the expected number of top-k ids in the sample, plus eight.
__host__ __device__ inline int sample_rank(int top_k, int vocab) {
  const int64_t rank = int64_t{2} * top_k * kSample / vocab + 8;
  return static_cast<int>(rank < top_k ? rank : top_k);
}
// Returns true if the top k decide the token and a sample bounds them, so the weights of other candidates are not
// needed.
__host__ __device__ inline bool is_short(const TokenDraw& draw, int vocab) {
  return draw.top_k > 0 && (vocab <= kList || sample_rank(draw.top_k, vocab) <= kSampleParts) && !(draw.min_p > 0) &&
         !(draw.top_p < 1 && draw.top_p_of == TopPOf::kAll);
}

struct Row {
  const float* logits;
  int vocab, excluded;
  float largest;
  TokenDraw draw;

  // Returns NaN, which is not a candidate, for invalid ids.
  __device__ float logit(int id) const { return id < vocab && id != excluded ? __ldcg(logits + id) : NAN; }
  __device__ float farthest() const { return kNoWeight * draw.temperature; }
  __device__ bool may_weigh(float x) const { return largest - x <= farthest(); }
  __device__ uint64_t weight(float x) const {
    const double shifted = static_cast<double>(x) - static_cast<double>(largest);
    const double weight = exp(shifted / static_cast<double>(draw.temperature));
    return weight > 0 ? __double2ull_rn(fmin(weight, 1.0) * kUnit) : 0;
  }

  // Returns the bin: exponent of the distance from the largest logit, from 2^-16 to 2^8, and seven mantissa bits.
  __device__ int bin(float x) const {
    return min(max((__float_as_int(largest - x) >> kDropped) - kFirst, 0), kBins - 1);
  }
  // Returns the distances of candidates in these bins.
  __device__ Distances distances(const BinRange& bins) const {
    if (bins.empty()) return {0xffffffffu, 0};  // bits of a NaN, which no distance has
    const auto most = static_cast<int64_t>(__float_as_int(farthest()));
    const int64_t first = bins.first == 0 ? 0 : int64_t{bins.first + kFirst} << kDropped,
                  end = bins.last == kBins - 1 ? most + 1 : int64_t{bins.last + 1 + kFirst} << kDropped;
    const int64_t last = min(end - 1, most);
    if (last < first) return {0xffffffffu, 0};
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(last - first)};
  }
  // Returns the first place in bin `of` or a later one.
  __device__ uint32_t first_place(int of) const {
    uint32_t from = place_of(largest), to = place_of(-INFINITY) + 1;
    while (from < to) {
      const uint32_t at = from + (to - from) / 2;
      if (bin(logit_at(at)) >= of) {
        to = at;
      } else {
        from = at + 1;
      }
    }
    return from;
  }

  __device__ bool is_short() const { return sampling::is_short(draw, vocab); }
  __device__ Search top_k() const { return {Search::Until::kCount, static_cast<double>(draw.top_k)}; }
  __device__ Search share_of(const Mass& mass) const {
    return {Search::Until::kWeight, static_cast<double>(draw.top_p) * static_cast<double>(mass.weight)};
  }
  __device__ Search token_of(uint64_t weight) const {
    return {Search::Until::kMoreWeight, draw.uniform * static_cast<double>(weight)};
  }

 private:
  static constexpr int kDropped = 16, kFirst = (127 - 16) << (23 - kDropped);
};

// A CTA's pass over the logits of ids in [begin, end); yields NaN past the end. The constructor starts the first loads;
// later loads run one step ahead.
template <int kThreads>
class Walk {
 public:
  __device__ Walk(const Row& row, int begin, int end) : row_(row), at_(begin), end_(end) { load(); }

  // kLong: not unrolled, because f is long and instruction fetches dominate.
  enum class Code : uint8_t { kShort, kLong };
  template <Code kCode, class F>
  __device__ void over(const F& f) {
    while (at_ < end_) {
      float x[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] = next_[i];
      int id = at_ + static_cast<int>(threadIdx.x);
      at_ += kEach * kThreads;
      load();
      if constexpr (kCode == Code::kShort) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) f(x[i], id + i * kThreads);
      } else {
#pragma unroll 1
        for (int i = 0; i < kEach; ++i, id += kThreads) {
          f(x[0], id);
#pragma unroll
          for (int j = 0; j + 1 < kEach; ++j) x[j] = x[j + 1];
        }
      }
    }
  }

 private:
  static constexpr int kEach = 8;

  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int id = at_ + i * kThreads + static_cast<int>(threadIdx.x);
      next_[i] = id < end_ ? row_.logit(id) : NAN;
    }
  }

  const Row& row_;
  int at_, end_;
  float next_[kEach];
};

}  // namespace headrace::cuda::sampling
