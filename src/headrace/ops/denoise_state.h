// State of a token block under denoising, as plain data, and its update after a forward pass. Host and device share
// this one definition. Tests compare it with the strategies' own state machines.
#pragma once
#include <cstdint>

#include "headrace/batch/key_span.h"
#include "headrace/ops/random_draw.h"
#include "headrace/ops/token_draw.h"
#include "headrace/ops/token_scores.h"

// Disables unrolling on the device. A device runs this code once between two steps, after the weights have evicted it
// from the instruction cache, so code size determines its time.
#ifdef __CUDA_ARCH__  // the host compiler does not know the pragma
#define HR_ROLLED _Pragma("unroll 1")
#else
#define HR_ROLLED
#endif

namespace headrace {

// Sampling results of a pass, one row per undecided position, in order of position.
struct BlockCandidates {
  const int32_t* ids = nullptr;   // the sampled tokens
  const float* logits = nullptr;  // their logits
  const float* stats = nullptr;   // [rows, 4], as in TokenConfidenceArgs
};

// Rule that selects the candidates to accept after a pass.
struct BlockRule {
  enum class Score : int32_t {
    kConfidence,  // probability of the candidate; larger is better
    kMargin,      // best minus second-best probability
    kEntropy,     // minus the entropy, in nats; accepted if the entropy is at most the threshold
    kLeftmost,    // none is accepted by threshold; the first has the highest rank
  };
  enum class Passes : int32_t { kAbove, kAtLeast };
  Score score = Score::kConfidence;
  Passes passes = Passes::kAbove;
  float threshold = 1;
  int32_t steps = 0;  // most passes per block, its masks spread evenly over them; 0: no limit

  HR_HOST_DEVICE bool accepts(float value) const {
    if (score == Score::kLeftmost) return false;
    if (score == Score::kEntropy) return -value <= threshold;
    return passes == Passes::kAbove ? value > threshold : value >= threshold;
  }
  // Returns how many of `masks` candidates a pass accepts at least, after `passed` passes.
  HR_HOST_DEVICE int32_t least(int32_t masks, int32_t passed) const {
    const int32_t left = steps - passed;
    return left > 1 ? (masks + left - 1) / left : steps > 0 ? masks : 1;
  }
  // Returns the score of a token from its logit and its row of token_confidence's statistics.
  HR_HOST_DEVICE float value_of(float logit, const float* stats) const {
    switch (score) {
      case Score::kConfidence: return TokenScores::confidence(logit - stats[0] - stats[1]);
      case Score::kMargin: return TokenScores::margin(stats[0], stats[1], stats[2]);
      case Score::kEntropy: return -stats[3];
      case Score::kLeftmost: return 0;
    }
    return 0;
  }
};

// State of a request that denoises one block at a time. Arrays of it are copied to a device as they are.
struct DenoiseState {
  static constexpr int32_t kMaxBlock = 64, kMaxEndIds = 8;

  // Attention scope of a block, which also determines the rows of each pass.
  enum class Sees : int32_t {
    kBefore,  // Cached tokens before the block. A pass runs the open block and, once, the previous block to store it.
    kCanvas,  // The whole canvas, prompt and output. Every pass runs and stores it.
    // As kCanvas, but passes after the first of a block run the block alone. The block then attends to its new rows in
    // place of its stored ones.
    kKeptCanvas,
    // Cached tokens before the block, and the block itself. The block's parts are decided one after another. While the
    // open part's first token is undecided, a pass runs the whole block, because the row before the part decides that
    // token. Later passes run the open part alone, beside the stored rows of the other parts.
    kParts,
    kWholeParts,  // as kParts, but every pass runs and sees the whole block
  };
  // Next pass, with parts.
  enum class Pass : int32_t {
    kWhole,  // the whole block
    kPart,   // the open part alone
    kClean,  // the complete block; its last row decides the next block's first token
  };

  int32_t running = 0;  // 0: the request is done and has no rows
  Sees sees = Sees::kBefore;
  int32_t begin = 0;       // position of the open block
  int32_t editable = 0;    // tokens of the block before this index are prompt
  int32_t num_cached = 0;  // kBefore: begin, or begin - block_size while the previous block waits to be stored
  int32_t canvas_len = 0;  // kCanvas, kKeptCanvas: tokens of the canvas
  int32_t shift = 0;       // the logits of this many rows before a position decide it: 0 or 1; parts: 1; kBefore: 0
  int32_t part_size = 0;   // parts: tokens per part; divides the block size
  int32_t part = 0;        // parts: first token of the open part, relative to the block
  int32_t steps_before_part = 0;  // parts: num_steps when the open part was opened
  Pass pass = Pass::kWhole;
  int32_t limit = 0;      // positions from here on are never decided
  int32_t num_steps = 0;  // denoising passes of the open block so far
  int32_t page_row = 0;
  int32_t first_logit = 0;               // first of num_samples() logits rows in the current step
  uint32_t masked[kMaxBlock / 32] = {};  // bit p: token p of the open block is undecided
  BlockRule rule;
  TokenDraw draw;     // all fields except `uniform`
  uint64_t seed = 0;  // determines `uniform`
  int32_t num_end_ids = 0;
  int32_t end_ids[kMaxEndIds] = {};

  HR_HOST_DEVICE bool is_masked(int32_t p) const { return (masked[p / 32] >> (p % 32) & 1) != 0; }
  HR_HOST_DEVICE void set_masked(int32_t p, uint32_t value) {
    masked[p / 32] = (masked[p / 32] & ~(1u << p % 32)) | value << p % 32;
  }
  HR_HOST_DEVICE int32_t num_masked(int32_t block_size) const {
    int32_t count = 0;
    HR_ROLLED
    for (int32_t p = 0; p < block_size; ++p) count += is_masked(p) ? 1 : 0;
    return count;
  }

  HR_HOST_DEVICE bool has_canvas() const { return sees == Sees::kCanvas || sees == Sees::kKeptCanvas; }
  HR_HOST_DEVICE bool has_parts() const { return sees == Sees::kParts || sees == Sees::kWholeParts; }
  // With parts: finds the open part and the kind of the next pass from the undecided tokens.
  HR_HOST_DEVICE void find_part(int32_t block_size) {
    int32_t first = 0;
    HR_ROLLED
    while (first < block_size && !is_masked(first)) ++first;
    if (first == block_size) {
      pass = Pass::kClean;
      return;
    }
    const int32_t open = first / part_size * part_size;
    if (open != part) part = open, steps_before_part = num_steps;
    pass = sees == Sees::kParts && num_steps > 0 && first > part ? Pass::kPart : Pass::kWhole;
  }

  // Returns true if the next pass runs the whole canvas.
  HR_HOST_DEVICE bool runs_canvas() const {
    return running != 0 && (sees == Sees::kCanvas || (sees == Sees::kKeptCanvas && num_steps == 0));
  }
  // Returns the rows of the next pass; most_rows() returns the upper bound for any pass.
  HR_HOST_DEVICE int32_t num_rows(int32_t block_size) const {
    if (running == 0) return 0;
    if (runs_canvas()) return canvas_len;
    if (has_parts()) return pass == Pass::kPart ? part_size : block_size;
    return sees == Sees::kBefore ? begin - num_cached + block_size : block_end(block_size) - begin;
  }
  HR_HOST_DEVICE int32_t most_rows(int32_t block_size) const {
    return has_canvas() ? canvas_len : sees == Sees::kBefore ? 2 * block_size : block_size;
  }
  // Returns the position of the next pass's first row; num_stored() returns how many rows from there on are stored.
  HR_HOST_DEVICE int32_t first_position() const {
    if (has_parts()) return pass == Pass::kPart ? begin + part : begin;
    return sees == Sees::kBefore ? num_cached : runs_canvas() ? 0 : begin;
  }
  HR_HOST_DEVICE int32_t num_stored(int32_t block_size) const {
    if (sees == Sees::kBefore) return begin - num_cached;
    if (has_parts()) return sees == Sees::kParts || pass == Pass::kClean ? num_rows(block_size) : 0;
    return runs_canvas() ? canvas_len : 0;
  }
  // Returns the number of undecided positions, counted from the first, whose logits the next pass computes. Usually
  // these are all. With kKeptCanvas and shift 1, the first pass decides only the first one, because later passes lack
  // the row before it. With parts, they end with the open part; a clean pass decides the position behind the block.
  HR_HOST_DEVICE int32_t num_samples(int32_t block_size) const {
    if (has_parts() && pass == Pass::kClean) return 1;
    const int32_t masks = num_masked(has_parts() ? part + part_size : block_size);
    return sees == Sees::kKeptCanvas && shift > 0 && num_steps == 0 && masks > 0 ? 1 : masks;
  }
  // Returns the row of the pass whose logits decide token p of the open block.
  HR_HOST_DEVICE int32_t row_of(int32_t p) const { return begin + p - shift - first_position(); }
  // Returns how the token at p, in or just behind the open block, is drawn in the next pass. The random number depends
  // on the position before p, whose row decides p in autoregressive decoding, and on the passes so far.
  HR_HOST_DEVICE TokenDraw draw_of(int32_t p) const {
    TokenDraw of_token = draw;
    const bool behind = has_parts() && pass == Pass::kClean;
    if (draw.temperature > 0) {
      of_token.uniform = uniform(seed, begin + p - 1, behind ? 0 : num_steps - steps_before_part);
    }
    return of_token;
  }
  // Returns the attention span of the next pass, whose rows begin at `row0` of the step.
  HR_HOST_DEVICE KeySpan span(int32_t row0, int32_t block_size) const {
    KeySpan s{.q_off = row0, .q_len = num_rows(block_size)};
    if (s.q_len == 0) return s;
    s.phys0 = first_position(), s.page_row = page_row;
    const bool part_alone = has_parts() && pass == Pass::kPart;
    if (!has_canvas() && !part_alone) {
      s.ctx_len = s.phys0, s.kind = KeySpan::Kind::kBlock, s.block_size = block_size;
      return s;
    }
    s.kind = KeySpan::Kind::kFull;
    if (runs_canvas()) return s;
    s.ctx_len = part_alone ? begin + block_size : canvas_len;
    s.hole_begin = s.phys0, s.hole_end = s.phys0 + s.q_len;
    return s;
  }
  // Returns the index in advance()'s `tokens` of the first row's input token in the next pass.
  HR_HOST_DEVICE int32_t first_token(int32_t block_size) const {
    return has_canvas() ? first_position() : block_size + first_position() - begin;
  }

  // Updates the state after a pass. `candidates` are the results of its num_samples() samples. `tokens` is [2,
  // block_size], the previous and the open block, or [canvas_len].
  // Accepts the candidates that pass the rule, and at least rule.least() of them; ties go to the lowest position. An
  // end token ends the request behind it. A complete block is followed by a new block of `mask_id`, unless the limit is
  // reached. With parts, a clean pass over the complete block comes first.
  HR_HOST_DEVICE void advance(const BlockCandidates& candidates, int32_t block_size, int32_t mask_id, int32_t* tokens) {
    if (running == 0) return;
    int32_t* open = tokens + (has_canvas() ? begin : block_size);
    if (has_parts() && pass == Pass::kClean) {
      open_next(block_size, mask_id, tokens);
      open[0] = candidates.ids[0], set_masked(0, 0);
    } else {
      accept(candidates, block_size, open);
      num_cached = begin;
      ++num_steps;
    }
    stop_at_end_id(block_size, open);
    const bool complete = num_masked(block_size) == 0;
    if (complete && begin + block_size >= limit) {
      running = 0;
    } else if (has_parts()) {
      find_part(block_size);
    } else if (complete) {
      open_next(block_size, mask_id, tokens);
    }
  }

 private:
  // Returns the end of the open block on a canvas; the last block may be shorter.
  HR_HOST_DEVICE int32_t block_end(int32_t block_size) const {
    return begin + block_size < canvas_len ? begin + block_size : canvas_len;
  }
  HR_HOST_DEVICE void open_next(int32_t block_size, int32_t mask_id, int32_t* tokens) {
    begin += block_size;
    editable = 0;
    num_steps = steps_before_part = 0;
    HR_ROLLED
    for (int32_t p = 0; p < block_size; ++p) set_masked(p, begin + p < limit ? 1 : 0);
    if (has_canvas()) return;  // a canvas holds its masks from the start
    HR_ROLLED
    for (int32_t p = 0; p < block_size; ++p) {
      tokens[p] = tokens[block_size + p];
      tokens[block_size + p] = mask_id;
    }
  }
  HR_HOST_DEVICE void accept(const BlockCandidates& from, int32_t block_size, int32_t* tokens) {
    const int32_t masks = num_samples(block_size), least = rule.least(masks, num_steps);
    uint32_t kept[kMaxBlock / 32] = {};  // bit per candidate
    float values[kMaxBlock];
    int32_t count = 0;
    HR_ROLLED
    for (int32_t i = 0; i < masks; ++i) {
      values[i] = rule.value_of(from.logits[i], from.stats + int64_t{4} * i);
      if (!rule.accepts(values[i])) continue;
      kept[i / 32] |= 1u << i % 32;
      ++count;
    }
    HR_ROLLED
    while (count < least && count < masks) {
      int32_t top = -1;
      float value = 0;
      HR_ROLLED
      for (int32_t i = 0; i < masks; ++i) {
        if ((kept[i / 32] >> i % 32 & 1) != 0) continue;
        if (top < 0 || values[i] > value) top = i, value = values[i];
      }
      kept[top / 32] |= 1u << top % 32;
      ++count;
    }
    HR_ROLLED
    for (int32_t p = 0, i = 0; p < block_size && i < masks; ++p) {
      if (!is_masked(p)) continue;
      if ((kept[i / 32] >> i % 32 & 1) != 0) tokens[p] = from.ids[i], set_masked(p, 0);
      ++i;
    }
  }
  HR_HOST_DEVICE void stop_at_end_id(int32_t block_size, const int32_t* tokens) {
    HR_ROLLED
    for (int32_t p = editable; p < block_size && begin + p < limit; ++p) {
      if (is_masked(p)) continue;
      HR_ROLLED
      for (int32_t e = 0; e < num_end_ids; ++e) {
        if (tokens[p] == end_ids[e]) limit = begin + p + 1;
      }
    }
    HR_ROLLED
    for (int32_t p = 0; p < block_size; ++p) {
      if (begin + p >= limit) set_masked(p, 0);
    }
  }
};

}  // namespace headrace

#undef HR_ROLLED
