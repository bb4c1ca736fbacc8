// Rotary position embedding, half-split pairing.
#pragma once
#include <optional>

#include "headrace/batch/key_span.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Multimodal rotary embedding: a token has a position on each of three axes, time, height and width. The sections say
// which pairs, and how many, rotate by t, h and w. Text has the same position on all three axes, which gives the plain
// rotation.
// Source: Wang et al. 2024 (Qwen2-VL), arXiv 2409.12191, section 2.1. Pairs as in transformers'
// apply_multimodal_rotary_pos_emb (kInRuns: Qwen2-VL) and apply_interleaved_mrope (kInterleaved: Qwen3-VL, Qwen3.5).
struct RotarySections {
  enum class Layout : uint8_t {
    kInRuns,       // the first t pairs rotate by t, the next h by h, the last w by w
    kInterleaved,  // pair i rotates by h if i % 3 == 1 and i < 3 h, by w if i % 3 == 2 and i < 3 w, else by t
  };
  static constexpr int64_t kAxes = 3;

  int32_t t = 0, h = 0, w = 0;
  Layout layout = Layout::kInRuns;

  bool fill(int64_t pairs) const { return t >= 0 && h >= 0 && w >= 0 && int64_t{t} + h + w == pairs; }
  // Returns the axis of a pair: 0, 1 or 2 for t, h or w.
  HR_HOST_DEVICE constexpr int axis_of(int pair) const {
    if (layout == Layout::kInRuns) return pair < t ? 0 : pair < t + h ? 1 : 2;
    const int rest = pair % 3;
    return (rest == 1 && pair < 3 * h) || (rest == 2 && pair < 3 * w) ? rest : 0;
  }

  bool operator==(const RotarySections&) const = default;
};

// Rotates, in place, the pairs (x_i, x_{i + R/2}), i < R/2, of each head's first R elements. The angle is positions[t]
// * inv_freq[i], or positions[axis_of(i), t] * inv_freq[i] if positions have axes. Result: (x_i cos - x_{i+R/2} sin,
// x_{i+R/2} cos + x_i sin) * magnitude. Other elements are unchanged. Angles, sines and products are float32 or wider.
// Source: Su et al. 2021, eq. 34, in the half-split order of Llama and Qwen checkpoints.
struct RotaryEmbeddingArgs {
  TensorView x = {};          // [tokens, heads, dim], a float dtype; rotated in place; rows may be strided
  TensorView positions = {};  // int32 [tokens], or [axes, tokens]
  TensorView inv_freq = {};   // float32 [R / 2]
  float magnitude = 1;        // YaRN's attention factor
  std::optional<RotarySections> sections = std::nullopt;  // of the R / 2 pairs; used if positions have axes

  bool has_axes() const { return positions.rank() == 2; }
};

// Throws Error kInvalidArgument if shapes or dtypes disagree, R exceeds dim, positions have axes without sections, or
// the sections do not add up to R / 2 pairs.
void check(const RotaryEmbeddingArgs& args);

}  // namespace headrace
