// Attention masks. KeySpan is the one definition of visibility: every kernel calls it or is tested against a kernel
// that does.
//
// A request's keys are the readable cache [0, ctx_len) followed by the new tokens of this step [0, q_len). Each token
// sees one interval of the new tokens and the cache minus at most one hole, both cut by the layer's window.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define HR_HOST_DEVICE __host__ __device__
#else
// Inlined without exception: a copy left behind by an object that is built for AVX-512 must never be linked in
// place of the portable one.
#define HR_HOST_DEVICE [[gnu::always_inline]]
#endif

namespace headrace {

inline constexpr int32_t kNoWindow = INT32_MAX;  // a window that hides nothing, as kernels count it

// One request of a batch. 32-bit fields only, so an array of these is copied to a device as it is.
struct KeySpan {
  enum class Kind : int32_t {
    kCausal,      // row i sees new rows 0..i
    kBlock,       // row i sees new rows to the end of its own block of block_size, counted from position 0
    kFull,        // every row sees every new row
    kPrefixFull,  // prompt rows see the prompt, padding rows the padded prompt, later rows as kBlock
    kNone,        // rows see the cache only
  };
  enum class WindowFrom : int32_t {
    kRow,      // the window counts back from each row
    kSegment,  // every row sees the cached keys from logical(phys0) - window + 1 on; new rows are not windowed
  };

  int32_t q_off = 0, q_len = 1;          // its rows in the packed batch
  int32_t ctx_len = 0;                   // readable cached tokens
  int32_t phys0 = 0;                     // physical position of its row 0
  int32_t log_shift = 0;                 // logical = physical before the hole, physical - log_shift after it
  int32_t hole_begin = 0, hole_end = 0;  // cached positions that no row sees
  Kind kind = Kind::kCausal;
  int32_t block_size = 1;                         // kBlock, kPrefixFull
  int32_t prompt_len = 0, padded_prompt_len = 0;  // kPrefixFull; such a prompt is never chunked
  WindowFrom window_from = WindowFrom::kRow;
  int32_t page_row = 0;                           // its row of the page table
  int32_t encoder_len = 0, encoder_page_row = 0;  // cross-attention: keys [0, encoder_len), no mask

  HR_HOST_DEVICE constexpr int32_t seq_len() const { return ctx_len + q_len; }

  // Position as RoPE and windows count it.
  HR_HOST_DEVICE constexpr int32_t logical(int32_t physical) const {
    return physical < hole_begin ? physical : physical - log_shift;
  }

  // Row i sees the new rows [first_new(i, window), new_keys(i)).
  HR_HOST_DEVICE constexpr int32_t new_keys(int32_t i) const {
    const int32_t at = phys0 + i;
    switch (kind) {
      case Kind::kCausal: return i + 1;
      case Kind::kBlock: return clamp(block_end(at));
      case Kind::kFull: return q_len;
      case Kind::kPrefixFull:
        return clamp(at < prompt_len ? prompt_len : at < padded_prompt_len ? padded_prompt_len : block_end(at));
      case Kind::kNone: return 0;
    }
    return 0;
  }
  HR_HOST_DEVICE constexpr int32_t first_new(int32_t i, int32_t window) const {
    if (window == kNoWindow || window_from == WindowFrom::kSegment || i < window) return 0;
    return i - window + 1;
  }

  // Row i sees the cached keys [first_cached(i, window), ctx_len) that sees_cached() does not hide.
  HR_HOST_DEVICE constexpr int32_t first_cached(int32_t i, int32_t window) const {
    if (window == kNoWindow) return 0;
    const int32_t from = logical(window_from == WindowFrom::kRow ? phys0 + i : phys0) - window + 1;
    if (from <= 0) return 0;
    return from < hole_begin ? from : from + log_shift;
  }
  HR_HOST_DEVICE constexpr bool sees_cached(int32_t key) const { return key < hole_begin || key >= hole_end; }

 private:
  HR_HOST_DEVICE constexpr int32_t block_end(int32_t at) const { return (at / block_size + 1) * block_size; }
  HR_HOST_DEVICE constexpr int32_t clamp(int32_t end) const { return end - phys0 < q_len ? end - phys0 : q_len; }
};

static_assert(KeySpan{.q_len = 8, .phys0 = 4, .kind = KeySpan::Kind::kBlock, .block_size = 4}.new_keys(3) == 4);
static_assert(KeySpan{.q_len = 8, .phys0 = 4, .kind = KeySpan::Kind::kBlock, .block_size = 4}.new_keys(4) == 8);

// Attention types of layers. A type is folded into a request's KeySpan before a kernel reads it.
enum class AttentionType : int32_t {
  kDecoder,               // "decoder": leaves the span unchanged
  kDecoderBidirectional,  // "decoder_bidirectional": a causal span becomes full
  kEncoderOnly,           // "encoder_only": full, no context, nothing is stored
};

constexpr const char* name_of(AttentionType type) {
  switch (type) {
    case AttentionType::kDecoder: return "decoder";
    case AttentionType::kDecoderBidirectional: return "decoder_bidirectional";
    case AttentionType::kEncoderOnly: return "encoder_only";
  }
  return "unknown";
}

HR_HOST_DEVICE constexpr KeySpan folded(KeySpan span, AttentionType type) {
  if (type == AttentionType::kDecoderBidirectional && span.kind == KeySpan::Kind::kCausal) {
    span.kind = KeySpan::Kind::kFull;
  }
  if (type == AttentionType::kEncoderOnly) {
    span.kind = KeySpan::Kind::kFull;
    span.ctx_len = span.hole_begin = span.hole_end = 0;
  }
  return span;
}

}  // namespace headrace
