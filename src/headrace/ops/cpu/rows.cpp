// Row-wise ops. All are memory-bound; tasks are fixed blocks of tokens.
#include "headrace/ops/cpu/rows.h"

#include <math.h>

#include "headrace/ops/cpu/parallel_scratch.h"
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu::HR_ISA {
namespace {

constexpr long kTokensPerTask = 16, kChunk = 256;

template <class Params>
[[gnu::always_inline]] inline long task_end(const Params& p, long begin) {
  return begin + kTokensPerTask < p.tokens ? begin + kTokensPerTask : p.tokens;
}

[[gnu::always_inline]] inline long tasks_of(long tokens) { return (tokens + kTokensPerTask - 1) / kTokensPerTask; }

float sum_of_squares(const float* x, long n) {
  Vec acc = {};
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = load(x + i);
    acc += v * v;
  }
  float tail = 0;
  for (; i < n; ++i) tail = __builtin_fmaf(x[i], x[i], tail);
  return sum(acc) + tail;
}

[[gnu::always_inline]] inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

void norm_row(const RMSNormParams& p, long token, long head, float* x, const float* weight) {
  load_row(x, p.x.data, token * p.x.token_stride + head * p.x.head_stride, p.dim, p.x.type);
  const float factor = 1.0f / sqrtf(sum_of_squares(x, p.dim) / static_cast<float>(p.dim) + p.eps);
  float* gate = x + round_up_to_lanes(p.dim);
  if (p.gate.data != nullptr) {
    load_row(gate, p.gate.data, token * p.gate.token_stride + head * p.gate.head_stride, p.dim, p.gate.type);
  }
  for (long i = 0; i < p.dim; i += kLanes) {  // scratch rows are padded to whole vectors
    Vec y = load(x + i) * factor * load(weight + i);
    if (p.gate.data != nullptr) {
      const Vec z = load(gate + i);
      y *= z * sigmoid(z);
    }
    store(x + i, y);
  }
  store_row(p.out.data, token * p.out.token_stride + head * p.out.head_stride, x, p.dim, p.out.type);
}

void norm_tokens(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const RMSNormParams*>(context);
  float* weight = scratch + 2 * round_up_to_lanes(p.dim);
  for (long i = 0; i < 3 * round_up_to_lanes(p.dim); ++i) scratch[i] = 0;
  load_row(weight, p.weight, 0, p.dim, p.weight_type);
  for (long i = 0; i < p.dim; ++i) weight[i] += p.weight_offset;
  const long begin = task * kTokensPerTask;
  for (long t = begin; t < task_end(p, begin); ++t) {
    for (long h = 0; h < p.heads; ++h) norm_row(p, t, h, scratch, weight);
  }
}

template <bool kHasAxes>
[[gnu::always_inline]] inline int position_of(const RotaryEmbeddingParams& p, long token, long pair) {
  if constexpr (!kHasAxes) return p.positions[token];
  return p.positions[p.sections.axis_of(static_cast<int>(pair)) * p.axis_stride + token];
}

template <bool kHasAxes>
void rotate_tokens(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const RotaryEmbeddingParams*>(context);
  float *c = scratch, *s = scratch + p.half, *row = scratch + 2 * p.half;
  const long begin = task * kTokensPerTask;
  for (long t = begin; t < task_end(p, begin); ++t) {
    for (long i = 0; i < p.half; ++i) {
      const float angle = static_cast<float>(position_of<kHasAxes>(p, t, i)) * p.inv_freq[i];
      c[i] = cosf(angle) * p.magnitude;
      s[i] = sinf(angle) * p.magnitude;
    }
    for (long h = 0; h < p.heads; ++h) {
      const long at = t * p.x.token_stride + h * p.x.head_stride;
      load_row(row, p.x.data, at, 2 * p.half, p.x.type);
      for (long i = 0; i < p.half; ++i) {
        const float low = row[i], high = row[i + p.half];
        row[i] = low * c[i] - high * s[i];
        row[i + p.half] = high * c[i] + low * s[i];
      }
      store_row(p.x.data, at, row, 2 * p.half, p.x.type);
    }
  }
}

// Near zero, where sigmoids cancel, uses the sixth convergent of Lambert's continued fraction: error 3e-8 at 1.
[[gnu::always_inline]] inline Vec tanh(Vec u) {
  const Vec s = u * u;
  const Vec near = u * (10395.0f + s * (1260.0f + s * 21.0f)) / (10395.0f + s * (4725.0f + s * (210.0f + s)));
  return s < 1.0f ? near : 2.0f * sigmoid(2.0f * u) - 1.0f;
}

[[gnu::always_inline]] inline Vec combine(PointwiseKind kind, Vec x, Vec y) {
  switch (kind) {
    case PointwiseKind::kAdd: return x + y;
    case PointwiseKind::kSiluMul: return x * sigmoid(x) * y;
    case PointwiseKind::kSigmoidMul: return sigmoid(x) * y;
    case PointwiseKind::kMul: return x * y;
    // gelu(x) = x (1 + tanh(u)) / 2 of u = sqrt(2 / pi) (x + 0.044715 x^3), and 1 + tanh(u) = 2 sigmoid(2u).
    case PointwiseKind::kGeluMul: return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x)) * y;
    case PointwiseKind::kSoftCap: return x * tanh(y / x);
    case PointwiseKind::kDivide: return y / x;
  }
  return y;
}

void combine_tokens(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const PointwiseParams*>(context);
  float *x = scratch, *y = scratch + kChunk;
  const long begin = task * kTokensPerTask;
  for (long t = begin; t < task_end(p, begin); ++t) {
    for (long from = 0; from < p.dim; from += kChunk) {
      const long n = from + kChunk < p.dim ? kChunk : p.dim - from;
      for (long i = n / kLanes * kLanes; i < round_up_to_lanes(n); ++i) x[i] = y[i] = 0;
      load_row(y, p.y.data, t * p.y.token_stride + from, n, p.y.type);
      if (p.x_dim == 1 && p.dim != 1) {
        const float factor = load_float(p.x.data, t * p.x.token_stride, p.x.type);
        for (long i = 0; i < n; ++i) x[i] = factor;
      } else {
        load_row(x, p.x.data, t * p.x.token_stride + from, n, p.x.type);
      }
      for (long i = 0; i < n; i += kLanes) store(x + i, combine(p.kind, load(x + i), load(y + i)));
      store_row(p.out.data, t * p.out.token_stride + from, x, n, p.out.type);
    }
  }
}

void gather_tokens(void* context, long task, float* scratch) {
  const auto& p = *static_cast<const EmbeddingParams*>(context);
  const long begin = task * kTokensPerTask;
  for (long t = begin; t < task_end(p, begin); ++t) {
    load_row(scratch, p.table.data, p.ids[t] * p.table.token_stride, p.dim, p.table.type);
    store_row(p.out.data, t * p.out.token_stride, scratch, p.dim, p.out.type);
  }
}

}  // namespace

void rms_norm(const RMSNormParams& params) {
  parallel_for_with_scratch(params.threads, tasks_of(params.tokens), 3 * round_up_to_lanes(params.dim), norm_tokens,
                            const_cast<RMSNormParams*>(&params));
}

void rotary_embedding(const RotaryEmbeddingParams& params) {
  parallel_for_with_scratch(params.threads, tasks_of(params.tokens), 4 * params.half + kLanes,
                            params.has_axes ? rotate_tokens<true> : rotate_tokens<false>,
                            const_cast<RotaryEmbeddingParams*>(&params));
}

void pointwise(const PointwiseParams& params) {
  parallel_for_with_scratch(params.threads, tasks_of(params.tokens), 2 * kChunk, combine_tokens,
                            const_cast<PointwiseParams*>(&params));
}

void embedding(const EmbeddingParams& params) {
  parallel_for_with_scratch(params.threads, tasks_of(params.tokens), params.dim, gather_tokens,
                            const_cast<EmbeddingParams*>(&params));
}

}  // namespace headrace::cpu::HR_ISA
