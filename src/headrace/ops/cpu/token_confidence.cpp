// One task per row. A row is read once, in chunks that stay in the first-level cache: first the chunk's two largest
// values, then the sums of its exponentials relative to the largest value so far. Chunk sums are added in double.
#include "headrace/ops/cpu/token_confidence.h"

#include <math.h>

#include "headrace/ops/cpu/parallel_scratch.h"
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu::HR_ISA {
namespace {

constexpr long kChunk = 1024;

struct RowState {
  float largest = -HUGE_VALF, second = -HUGE_VALF;
  long best = -1;
  double sum = 0, weighted = 0;  // sum of e = exp(x - largest), and of e * (x - largest)
};

// Returns the two largest values of all lanes; NaN is never larger.
[[gnu::always_inline]] inline void two_largest(const float* x, long n, float* first, float* second) {
  Vec m1 = Vec{} - HUGE_VALF, m2 = m1;
  for (long i = 0; i < n; i += kLanes) {
    const Vec v = load(x + i);
    const Vec low = v < m1 ? v : m1;
    m2 = low > m2 ? low : m2;
    m1 = v > m1 ? v : m1;
  }
  *first = *second = -HUGE_VALF;
  for (int lane = 0; lane < kLanes; ++lane) {
    const float pair[] = {m1[lane], m2[lane]};
    for (const float value : pair) {
      if (value > *first) {
        *second = *first;
        *first = value;
      } else if (value > *second) {
        *second = value;
      }
    }
  }
}

// Rescales the sums to a new largest value.
[[gnu::always_inline]] inline void rebase(RowState& s, float largest) {
  if (s.sum != 0) {
    const double shift = static_cast<double>(s.largest) - static_cast<double>(largest), scale = ::exp(shift);
    s.weighted = scale * (s.weighted + shift * s.sum);
    s.sum *= scale;
  }
  s.largest = largest;
}

// Adds x[0, n), the logits of ids from `first_id` on. n must be a multiple of the lanes.
[[gnu::always_inline]] inline void add_chunk(RowState& s, const float* x, long n, long first_id) {
  float m1, m2;
  two_largest(x, n, &m1, &m2);
  if (m1 > s.largest || s.best < 0) {
    s.second = m2 > s.largest ? m2 : s.largest;
    for (long i = 0; i < n && (s.best < 0 || m1 > s.largest); ++i) {
      if (x[i] != m1) continue;
      s.best = first_id + i;
      rebase(s, m1);
    }
  } else {
    s.second = m1 > s.second ? m1 : s.second;
  }
  if (s.largest == -HUGE_VALF) {  // only minus infinity and NaN so far: differences of infinities would be NaN
    for (long i = 0; i < n; ++i) s.sum += x[i] != x[i] ? static_cast<double>(x[i]) : 0.0;
    return;
  }
  Vec sum_of = {}, weighted = {};
  for (long i = 0; i < n; i += kLanes) {
    const Vec d = load(x + i) - s.largest, e = exp(d);
    sum_of += e;
    weighted += e == 0.0f ? Vec{} : e * d;  // minus infinity times 0 would be NaN
  }
  s.sum += static_cast<double>(sum(sum_of));
  s.weighted += static_cast<double>(sum(weighted));
}

// Reads the logits of ids [begin, end).
[[gnu::always_inline]] inline RowState read_ids(const TokenConfidenceParams& p, const float* logits, long begin,
                                                long end, float* scratch) {
  RowState s;
  for (long from = begin; from < end; from += kChunk) {
    const long n = from + kChunk < end ? kChunk : end - from;
    const bool holds_excluded = p.excluded >= from && p.excluded < from + n;
    const float* x = logits + from;
    if (holds_excluded || n % kLanes != 0) {
      for (long i = 0; i < n; ++i) scratch[i] = x[i];
      for (long i = n; i < round_up_to_lanes(n); ++i) scratch[i] = -HUGE_VALF;
      if (holds_excluded) scratch[p.excluded - from] = -HUGE_VALF;
      x = scratch;
    }
    add_chunk(s, x, round_up_to_lanes(n), from);
  }
  return s;
}

void read_row(void* context, long row, float* scratch) {
  const auto& p = *static_cast<const TokenConfidenceParams*>(context);
  const float* logits = p.logits + row * p.row_stride;
  RowState s = read_ids(p, logits, 0, p.vocab, scratch);
  RowState behind = read_ids(p, logits, p.vocab, p.width, scratch);
  rebase(behind, s.largest);
  s.sum += behind.sum;
  s.weighted += behind.weighted;
  const double log_sum = ::log(s.sum);
  float* stats = p.stats + row * p.stats_stride;
  const long first_id = p.excluded == 0 ? 1 : 0;  // best of a row of minus infinities and NaN alone
  p.best[row * p.best_stride] = static_cast<int>(s.largest == -HUGE_VALF ? first_id : s.best);
  stats[0] = s.largest;
  stats[1] = static_cast<float>(log_sum);
  stats[2] = s.second;
  stats[3] = static_cast<float>(log_sum - s.weighted / s.sum);
}

}  // namespace

void token_confidence(const TokenConfidenceParams& params) {
  parallel_for_with_scratch(params.threads, params.rows, kChunk, read_row, const_cast<TokenConfidenceParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
