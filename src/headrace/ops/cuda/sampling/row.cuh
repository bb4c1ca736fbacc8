// A row of logits whose token is drawn: the order of its candidates, what they weigh, and in which bins they are.
#pragma once
#include <cstring>

#include "headrace/ops/cuda/sampling/mass.cuh"
#include "headrace/ops/sample_tokens.h"

namespace headrace::cuda::sampling {

constexpr int kBins = 3072;
constexpr int kSample = 8192;  // ids that are looked at to guess where the top k end
constexpr int kSampleParts = 32;
constexpr int kList = 4096;       // the longest list of candidates that a block sorts
constexpr double kUnit = 0x1p44;  // of weights: a vocabulary of 2^19 fits 64 bits
constexpr float kNoWeight = 32;   // exp(-32) is no multiple of 2^-44 any more

// CUDA's functions on 64 bits want another type.
__device__ inline unsigned long long* as_unsigned(uint64_t* x) { return reinterpret_cast<unsigned long long*>(x); }
__device__ inline const unsigned long long* as_unsigned(const uint64_t* x) {
  return reinterpret_cast<const unsigned long long*>(x);
}

// What another kernel wrote: never from this multiprocessor's cache.
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

// The order of candidates as integers: the largest logit has the lowest.
__device__ inline uint32_t place_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // no negative zero
  return (bits & 0x80000000u) != 0 ? bits : ~(bits | 0x80000000u);
}
__device__ inline float logit_at(uint32_t place) {
  return __uint_as_float((place & 0x80000000u) != 0 ? place : ~place & 0x7fffffffu);
}

// Bins that follow one another, as what the bits of a distance may be: less `first`, at most `width`.
struct Distances {
  uint32_t first, width;
  __device__ bool has(float distance) const { return __float_as_uint(distance) - first <= width; }
};

struct alignas(8) BinRange {
  int first = 0, last = -1;
  __device__ bool empty() const { return last < first; }
};

// Of so many parts of a sample the largest logits reach at least as far as the row's top k, but for some rows of
// 100,000: twice as many as are expected there, and eight.
__host__ __device__ inline int sample_rank(int top_k, int vocab) {
  const int64_t rank = int64_t{2} * top_k * kSample / vocab + 8;
  return static_cast<int>(rank < top_k ? rank : top_k);
}
// Whether the top k say all, and a sample says where they are: it need not be known what other candidates weigh.
__host__ __device__ inline bool is_short(const TokenDraw& draw, int vocab) {
  return draw.top_k > 0 && (vocab <= kList || sample_rank(draw.top_k, vocab) <= kSampleParts) && !(draw.min_p > 0) &&
         !(draw.top_p < 1 && draw.top_p_of == TopPOf::kAll);
}

struct Row {
  const float* logits;
  int vocab, excluded;
  float largest;
  TokenDraw draw;

  // NaN, which is no candidate, for no id.
  __device__ float logit(int id) const { return id < vocab && id != excluded ? __ldcg(logits + id) : NAN; }
  __device__ float farthest() const { return kNoWeight * draw.temperature; }
  __device__ bool may_weigh(float x) const { return largest - x <= farthest(); }
  __device__ uint64_t weight(float x) const {
    const double shifted = static_cast<double>(x) - static_cast<double>(largest);
    const double weight = exp(shifted / static_cast<double>(draw.temperature));
    return weight > 0 ? __double2ull_rn(fmin(weight, 1.0) * kUnit) : 0;
  }

  // Of the distance from the largest logit the exponent, from 2^-16 to 2^8, and seven bits more.
  __device__ int bin(float x) const {
    return min(max((__float_as_int(largest - x) >> kDropped) - kFirst, 0), kBins - 1);
  }
  // The distances of candidates in these bins.
  __device__ Distances distances(const BinRange& bins) const {
    if (bins.empty()) return {0xffffffffu, 0};  // a NaN, which no difference is
    const auto most = static_cast<int64_t>(__float_as_int(farthest()));
    const int64_t first = bins.first == 0 ? 0 : int64_t{bins.first + kFirst} << kDropped,
                  end = bins.last == kBins - 1 ? most + 1 : int64_t{bins.last + 1 + kFirst} << kDropped;
    const int64_t last = min(end - 1, most);
    if (last < first) return {0xffffffffu, 0};
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(last - first)};
  }
  // The first place of this bin and of all after it.
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

// A block's way over the logits of ids in [begin, end), NaN at its end. The first loads begin at once, others a step
// ahead.
template <int kThreads>
class Walk {
 public:
  __device__ Walk(const Row& row, int begin, int end) : row_(row), at_(begin), end_(end) { load(); }

  enum class Code : uint8_t { kShort, kLong };  // kLong: there is one piece of it, since it takes long to read
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
