// A block of tokens in the middle of its denoising, as plain data, and what a pass changes in it. Host and device share
// this one definition; the strategies' own state machines are what it is tested against.
#pragma once
#include <cstdint>

#include "headrace/batch/key_span.h"
#include "headrace/ops/random_draw.h"
#include "headrace/ops/token_draw.h"
#include "headrace/ops/token_scores.h"

// A device runs this once between two steps, when weights have displaced its instructions: what counts is how many
// there are.
#ifdef __CUDA_ARCH__  // the host's compiler does not know it
#define HR_ROLLED _Pragma("unroll 1")
#else
#define HR_ROLLED
#endif

namespace headrace {

// What a pass says of undecided positions, a row each in their order.
struct BlockCandidates {
  const int32_t* ids = nullptr;   // the tokens that were drawn
  const float* logits = nullptr;  // theirs
  const float* stats = nullptr;   // [rows, 4], as TokenConfidenceArgs has them
};

// Which candidates a pass keeps.
struct BlockRule {
  enum class Score : int32_t {
    kConfidence,  // probability of the candidate; larger is better
    kMargin,      // best minus second-best probability
    kEntropy,     // minus the entropy, in nats: at most the threshold passes
    kLeftmost,    // none passes by itself, and the first is the best
  };
  enum class Passes : int32_t { kAbove, kAtLeast };
  Score score = Score::kConfidence;
  Passes passes = Passes::kAbove;
  float threshold = 1;
  int32_t steps = 0;  // passes that a block is decided in at most, its masks shared out evenly; 0: as many as it takes

  HR_HOST_DEVICE bool accepts(float value) const {
    if (score == Score::kLeftmost) return false;
    if (score == Score::kEntropy) return -value <= threshold;
    return passes == Passes::kAbove ? value > threshold : value >= threshold;
  }
  // Candidates that a pass keeps at least, of `masks`, after `passed` passes.
  HR_HOST_DEVICE int32_t least(int32_t masks, int32_t passed) const {
    const int32_t left = steps - passed;
    return left > 1 ? (masks + left - 1) / left : steps > 0 ? masks : 1;
  }
  // Of a token with that logit, from its row of token_confidence's statistics.
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

// Of a request that denoises one block at a time. An array of these is copied to a device as it is.
struct DenoiseState {
  static constexpr int32_t kMaxBlock = 64, kMaxEndIds = 8;

  // What a block sees, and with that what a pass runs.
  enum class Sees : int32_t {
    kBefore,  // what is cached before it: the open block runs, and once the block before it, to be stored
    kCanvas,  // all of prompt and output, which run and are stored in every pass
    // The same; but after the first pass over a block it runs alone, and sees its own rows in place of what is stored
    // of it.
    kKeptCanvas,
    // What is cached before it, and of its own parts, which are decided one after the other: all as they are while the
    // open part's first token is undecided, since the row before it decides that one. Later passes run the open part
    // alone, beside the others as they were stored.
    kParts,
    kWholeParts,  // the same, but every pass runs and sees the whole block
  };
  // Of parts, what the next pass is.
  enum class Pass : int32_t {
    kWhole,  // the block
    kPart,   // the open part alone
    kClean,  // the block, complete; its last row decides the next one's first token
  };

  int32_t running = 0;  // 0: nothing is left to do, and no row is run
  Sees sees = Sees::kBefore;
  int32_t begin = 0;       // position of the open block
  int32_t editable = 0;    // its tokens before this one are prompt
  int32_t num_cached = 0;  // of kBefore: begin, or the block before it waits for its store: begin - block_size
  int32_t canvas_len = 0;  // of canvases: tokens
  int32_t shift = 0;       // but for kBefore: the logits of so many rows before a position decide it, 0 or 1; parts: 1
  int32_t part_size = 0;   // of parts: tokens of one, which divides the block
  int32_t part = 0;        // where the open one begins, in the block
  int32_t steps_before_part = 0;  // of num_steps
  Pass pass = Pass::kWhole;
  int32_t limit = 0;      // positions from here on are never decided
  int32_t num_steps = 0;  // passes that the open block was denoised in
  int32_t page_row = 0;
  int32_t first_logit = 0;               // of the step that runs: num_samples() rows
  uint32_t masked[kMaxBlock / 32] = {};  // bit p: token p of the open block is undecided
  BlockRule rule;
  TokenDraw draw;     // but for the random number
  uint64_t seed = 0;  // which that follows from
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
  // Of parts: finds the open one and what the next pass is, from the undecided tokens.
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

  // Whether the next pass runs the whole canvas.
  HR_HOST_DEVICE bool runs_canvas() const {
    return running != 0 && (sees == Sees::kCanvas || (sees == Sees::kKeptCanvas && num_steps == 0));
  }
  // Rows of the next pass, and of any pass at most.
  HR_HOST_DEVICE int32_t num_rows(int32_t block_size) const {
    if (running == 0) return 0;
    if (runs_canvas()) return canvas_len;
    if (has_parts()) return pass == Pass::kPart ? part_size : block_size;
    return sees == Sees::kBefore ? begin - num_cached + block_size : block_end(block_size) - begin;
  }
  HR_HOST_DEVICE int32_t most_rows(int32_t block_size) const {
    return has_canvas() ? canvas_len : sees == Sees::kBefore ? 2 * block_size : block_size;
  }
  // Position of the first of them, and how many from there on are stored.
  HR_HOST_DEVICE int32_t first_position() const {
    if (has_parts()) return pass == Pass::kPart ? begin + part : begin;
    return sees == Sees::kBefore ? num_cached : runs_canvas() ? 0 : begin;
  }
  HR_HOST_DEVICE int32_t num_stored(int32_t block_size) const {
    if (sees == Sees::kBefore) return begin - num_cached;
    if (has_parts()) return sees == Sees::kParts || pass == Pass::kClean ? num_rows(block_size) : 0;
    return runs_canvas() ? canvas_len : 0;
  }
  // Of the undecided positions, in their order, that so many first ones have logits in the next pass: all, but where
  // later passes run the block alone, the row before its first position is in the first one only, and decides it then.
  // Of parts, those of the open one, or the position behind the block.
  HR_HOST_DEVICE int32_t num_samples(int32_t block_size) const {
    if (has_parts() && pass == Pass::kClean) return 1;
    const int32_t masks = num_masked(has_parts() ? part + part_size : block_size);
    return sees == Sees::kKeptCanvas && shift > 0 && num_steps == 0 && masks > 0 ? 1 : masks;
  }
  // The row of the pass whose logits decide token p of the open block.
  HR_HOST_DEVICE int32_t row_of(int32_t p) const { return begin + p - shift - first_position(); }
  // How the token at p of the open block, or behind it, is drawn in the next pass. Random numbers are counted from the
  // position before, whose row decides it in autoregressive decoding, and from the passes that have looked at it.
  HR_HOST_DEVICE TokenDraw draw_of(int32_t p) const {
    TokenDraw of_token = draw;
    const bool behind = has_parts() && pass == Pass::kClean;
    if (draw.temperature > 0) {
      of_token.uniform = uniform(seed, begin + p - 1, behind ? 0 : num_steps - steps_before_part);
    }
    return of_token;
  }
  // Who sees whom in the next pass, whose rows begin at `row0` of the step.
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
  // Which of `tokens`, as advance() has them, the first row of the next pass takes in.
  HR_HOST_DEVICE int32_t first_token(int32_t block_size) const {
    return has_canvas() ? first_position() : block_size + first_position() - begin;
  }

  // The pass is over: `candidates` are those of its samples; `tokens` [2, block_size] the block before and the open
  // one, or [canvas_len]. Keeps the candidates that pass the rule, and at least its least, ties to the lowest position;
  // an end token ends the request behind it; a complete block is followed by the next one, all `mask_id`, unless the
  // limit is reached; one of parts has a pass of its own before.
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
  // Of a canvas, whose last block may be short.
  HR_HOST_DEVICE int32_t block_end(int32_t block_size) const {
    return begin + block_size < canvas_len ? begin + block_size : canvas_len;
  }
  HR_HOST_DEVICE void open_next(int32_t block_size, int32_t mask_id, int32_t* tokens) {
    begin += block_size;
    editable = 0;
    num_steps = steps_before_part = 0;
    HR_ROLLED
    for (int32_t p = 0; p < block_size; ++p) set_masked(p, begin + p < limit ? 1 : 0);
    if (has_canvas()) return;  // it has its masks from the start
    HR_ROLLED
    for (int32_t p = 0; p < block_size; ++p) {
      tokens[p] = tokens[block_size + p];
      tokens[block_size + p] = mask_id;
    }
  }
  HR_HOST_DEVICE void accept(const BlockCandidates& from, int32_t block_size, int32_t* tokens) {
    const int32_t masks = num_samples(block_size), least = rule.least(masks, num_steps);
    uint32_t kept[kMaxBlock / 32] = {};  // by candidate
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
