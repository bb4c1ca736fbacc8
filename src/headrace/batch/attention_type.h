// Attention types of layers. A type is folded into a request's KeySpan before a kernel reads it.
#pragma once
#include "headrace/batch/key_span.h"

namespace headrace {

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
