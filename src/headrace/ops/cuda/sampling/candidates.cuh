// Candidates of a row in sorted order, as far as the token depends on them: a sorted list, or a search of the whole
// row.
#pragma once
#include "headrace/ops/cuda/sampling/row.cuh"

namespace headrace::cuda::sampling {

// Candidates to list: two ranges of bins; the second may be empty.
struct Plan {
  BinRange ranges[2];
  Mass begin, gap;  // mass of the candidates before the first range, and between the ranges
  uint64_t split;   // candidates in the first range
  Mass all;         // all candidates with a weight; unknown if the row is_short()
};

struct alignas(16) RowState {
  uint64_t weight[kBins];
  uint32_t count[kBins];
  Mass likely;      // with min_p: candidates of at least min_p times the first one's weight
  uint32_t listed;  // entries found; may exceed kList, the capacity
  Plan plan;
};

// Loads a row's bins and turns them into prefix sums: at() of `bins` is then a sum. The row must not be is_short().
template <int kThreads>
__device__ void add_up(const RowState& state, Histogram<kThreads, kBins>& bins) {
#pragma unroll
  for (int i = 0; i < kBins / kThreads; ++i) {
    const int bin = i * kThreads + static_cast<int>(threadIdx.x);
    bins.put(bin, {__ldcg(as_unsigned(state.weight + bin)), __ldcg(state.count + bin)});
  }
  bins.add_up();
}

// Result of a search: a logit, the candidates that share it, and the mass of those before them.
struct Found {
  uint32_t place;
  Mass above;
  uint64_t weight;  // per candidate
  uint32_t there;
  int first;  // index of the first one in a list
};

// Bitonic sort, ascending. `size` is a power of two, at least 64. Called by `threads` threads of whole warps, of which
// size / 2 have work; the other threads must have exited. A warp works on its own 64 elements as long as possible,
// without CTA barriers. Ends in a barrier.
__device__ inline void sort(uint64_t* x, int size, int threads) {
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      if (distance > 32 || (distance == 32 && run > 64)) {
        __syncthreads();
      } else {
        __syncwarp();
      }
      for (int i = threadIdx.x; i < size / 2; i += threads) {
        const int low = 2 * i - (i & (distance - 1)), high = low + distance;
        const uint64_t a = x[low], b = x[high];
        if ((a > b) == ((low & run) == 0)) x[low] = b, x[high] = a;
      }
    }
  }
  __syncthreads();
}

// Sorted list of candidates. The first threads() threads of a CTA build it, the others have exited; then one warp
// searches.
class SortedList {
 public:
  struct Memory {
    uint64_t entries[kList];  // candidate's place in the upper half, its id in the lower half
    uint64_t up_to[kList];    // inclusive prefix sums of the weights
  };

  __device__ static int size(int count) { return count <= 64 ? 64 : 1 << (32 - __clz(count - 1)); }
  __device__ static int threads(int count, int of_block) { return min(size(count) / 2, of_block); }

  __device__ SortedList(const Row& row, const Plan& plan, const uint64_t* from, int count, Memory& memory)
      : row_(row), plan_(plan), memory_(memory), count_(count) {
    const int num_threads = threads(count, static_cast<int>(blockDim.x));
    for (int i = threadIdx.x; i < size(count); i += num_threads) {
      memory.entries[i] = i < count ? __ldcg(as_unsigned(from + i)) : ~uint64_t{0};
    }
    sort(memory.entries, size(count), num_threads);
    add_up(num_threads);
  }
  __device__ Mass all() const {
    if (!row_.is_short()) return plan_.all;
    return {memory_.up_to[count_ - 1], static_cast<uint32_t>(count_)};
  }
  __device__ Found find(const Search& search) const {
    const int hit = first_index(count_, [&](int at) { return search.reached(up_to(at)); });
    const uint32_t at = place(hit);
    int first = hit, last = hit;
    if (hit > 0 && place(hit - 1) == at) first = first_index(count_, [&](int i) { return place(i) >= at; });
    if (hit + 1 < count_ && place(hit + 1) == at) {
      last = first_index(count_, [&](int i) { return i + 1 == count_ || place(i + 1) > at; });
    }
    const uint64_t weight = memory_.up_to[hit] - (hit > 0 ? memory_.up_to[hit - 1] : 0);
    const auto with = static_cast<uint32_t>(hit - first + 1);
    Mass above = up_to(hit);
    above -= {with * weight, with};
    return {at, above, weight, static_cast<uint32_t>(last - first + 1), first};
  }
  __device__ int id_of(const Found& found, uint32_t rank) const {
    return static_cast<int>(static_cast<uint32_t>(memory_.entries[found.first + static_cast<int>(rank)]));
  }

 private:
  __device__ uint32_t place(int at) const { return static_cast<uint32_t>(memory_.entries[at] >> 32); }
  __device__ void add_up(int num_threads) {
    const int each = (count_ + num_threads - 1) / num_threads, first = static_cast<int>(threadIdx.x) * each;
    Mass own{}, all;
    for (int i = first; i < min(first + each, count_); ++i) {
      memory_.up_to[i] = row_.weight(logit_at(place(i)));
      own.weight += memory_.up_to[i];
    }
    uint64_t sum = up_to_thread(own, num_threads / 32, all).weight - own.weight;
    for (int i = first; i < min(first + each, count_); ++i) memory_.up_to[i] = sum += memory_.up_to[i];
    __syncthreads();
  }
  __device__ Mass up_to(int at) const {
    Mass mass{memory_.up_to[at], static_cast<uint32_t>(at) + 1};
    mass += plan_.begin;
    if (static_cast<uint64_t>(at) >= plan_.split) mass += plan_.gap;
    return mass;
  }

  const Row& row_;
  const Plan& plan_;
  Memory& memory_;
  int count_;
};

// Searches all candidates of a row in global memory with a whole CTA. A search histograms a range of places and repeats
// with the bin in which it ends.
template <int kThreads>
class WholeRow {
  static constexpr int kPartBits = 11, kParts = 1 << kPartBits;

 public:
  using Parts = Histogram<kThreads, kParts>;
  union Memory {
    Histogram<kThreads, kBins> bins;
    Parts parts;
  };

  __device__ WholeRow(const Row& row, const Plan& plan, const RowState& state, Memory& memory)
      : row_(row), plan_(plan), state_(state), memory_(memory), parts_(memory.parts) {}
  // Short rows: more than any top k.
  __device__ Mass all() const { return row_.is_short() ? Mass{0, 0xffffffff} : plan_.all; }
  __device__ Found find(const Search& search) const {
    Range range{row_.first_place(0), row_.first_place(plan_.ranges[0].last + 1) - 1, {}};
    if (!row_.is_short()) {
      __syncthreads();  // the previous bins have been read
      add_up(state_, memory_.bins);
      const Hit hit = memory_.bins.find(search);
      range = {row_.first_place(hit.index), row_.first_place(hit.index + 1) - 1, hit.before};
    }
    return narrowed<true>(range, search, [](float x, int) { return place_of(x); });
  }
  __device__ int id_of(const Found& found, uint32_t rank) const {
    const Range ids{0, static_cast<uint32_t>(row_.vocab) - 1, {}};
    const Search search{Search::Until::kCount, static_cast<double>(rank) + 1};
    const auto id_there = [&](float x, int id) { return place_of(x) == found.place ? static_cast<uint32_t>(id) : ~0u; };
    return static_cast<int>(narrowed<false>(ids, search, id_there).place);
  }

 private:
  struct Range {
    uint32_t first, last;
    Mass before;
  };

  // Narrows `range` to the place where the search ends; place(logit, id) may lie outside it. Candidates of one place
  // have equal weights, which count if kWeighs.
  template <bool kWeighs, class PlaceOf>
  __device__ Found narrowed(Range range, const Search& search, const PlaceOf& place) const {
    for (;;) {
      const uint32_t width = range.last - range.first;
      const int shift = max(32 - __clz(static_cast<int>(width)) - kPartBits, 0);
      count_parts(range.first, width, shift, kWeighs && shift > 0, place);
      if (kWeighs && shift == 0) weigh_places(range.first);
      parts_.add_up(range.before);
      const Hit hit = parts_.find(search, range.before);
      range.first += static_cast<uint32_t>(hit.index) << shift;
      range.last = min(range.last, range.first + ((1u << shift) - 1));
      range.before = hit.before;
      if (shift > 0) continue;
      return {range.first, hit.before, kWeighs ? row_.weight(logit_at(range.first)) : 0, hit.own.count, 0};
    }
  }
  template <class PlaceOf>
  __device__ void count_parts(uint32_t first, uint32_t width, int shift, bool weighs, const PlaceOf& place) const {
    __syncthreads();  // the previous contents have been read
    parts_.clear();
    float weighed = NAN;  // equal logits are often adjacent
    uint64_t weight = 0;
    using Way = Walk<kThreads>;
    Way(row_, 0, row_.vocab).template over<Way::Code::kLong>([&](float x, int id) {
      const uint32_t at = place(x, id) - first;
      if (at > width || !row_.may_weigh(x)) return;
      if (weighs && x != weighed) weighed = x, weight = row_.weight(x);
      parts_.add(at >> shift, weight);
    });
    __syncthreads();
  }
  // Computes the weights of bins that hold one place each.
  __device__ void weigh_places(uint32_t first) const {
    for (int i = threadIdx.x; i < kParts; i += kThreads) {
      const uint32_t count = parts_.count[i];
      const uint64_t weight = count > 0 ? count * row_.weight(logit_at(first + static_cast<uint32_t>(i))) : 0;
      parts_.low[i] = static_cast<uint32_t>(weight), parts_.high[i] = static_cast<uint32_t>(weight >> 32);
    }
    __syncthreads();
  }

  const Row& row_;
  const Plan& plan_;
  const RowState& state_;
  Memory& memory_;
  Parts& parts_;
};

// Returns how many of the equal candidates at the end of a search belong to it: enough for `needed` weight, at least
// one.
__device__ inline uint32_t equals_for(double needed, uint64_t weight, uint32_t there) {
  const double count = weight > 0 ? ceil(needed / static_cast<double>(weight)) : 1;
  return static_cast<uint32_t>(fmin(fmax(count, 1.0), static_cast<double>(there)));
}

// Draws the row's token and returns its id. Called by all threads that search `candidates`. `likely` is empty without
// min_p.
template <class Candidates>
__device__ int drawn(const Row& row, const Mass& likely, const Candidates& candidates) {
  using Until = Search::Until;
  const TokenDraw& draw = row.draw;
  const Mass all = candidates.all();
  Mass kept = all;
#pragma unroll 1  // one copy of the code for the three searches: instruction fetches dominate
  for (const Until until : {Until::kCount, Until::kWeight, Until::kMoreWeight}) {
    if (until == Until::kCount && (draw.top_k <= 0 || static_cast<uint32_t>(draw.top_k) >= all.count)) continue;
    if (until == Until::kWeight && draw.top_p >= 1) continue;
    if (until == Until::kMoreWeight && likely.count > 0 && likely.count < kept.count) kept = likely;
    const Search search = until == Until::kCount    ? row.top_k()
                          : until == Until::kWeight ? row.share_of(draw.top_p_of == TopPOf::kAll ? all : kept)
                                                    : row.token_of(kept.weight);
    const Found end = candidates.find(search);
    const double needed =
        search.target - static_cast<double>(until == Until::kCount ? end.above.count : end.above.weight);
    if (until == Until::kMoreWeight) {
      if (end.there == 1) return candidates.id_of(end, 0);
      const double rank = end.weight > 0 ? floor(needed / static_cast<double>(end.weight)) : 0;
      const auto last = static_cast<double>(min(end.there, max(kept.count - end.above.count, 1u)) - 1);
      return candidates.id_of(end, static_cast<uint32_t>(fmin(fmax(rank, 0.0), last)));
    }
    const uint32_t equals = end.there == 1 ? 1 : equals_for(needed, until == Until::kCount ? 1 : end.weight, end.there);
    Mass with = end.above;
    with += {equals * end.weight, equals};
    if (with.count < kept.count) kept = with;
  }
  return 0;  // unreachable
}

}  // namespace headrace::cuda::sampling
