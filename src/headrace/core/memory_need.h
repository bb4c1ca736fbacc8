// Adds the required memory and advice to out-of-memory errors.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"

namespace headrace {

struct MemoryNeed {
  std::string what;                   // "a KV cache of 1600 tokens"
  std::optional<int64_t> bytes = {};  // total, if known
  std::string_view advice;            // what to try: "a smaller max_model_len"
};

// Returns make(). Rethrows its Error kOutOfMemory with the need in front and advice behind: "a KV cache of 1600 tokens
// needs 51.7 kB: <its text>; try a smaller max_model_len".
template <class Make>
decltype(auto) with_need(const MemoryNeed& need, const Make& make) {
  try {
    return make();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kOutOfMemory) throw;
    const std::string bytes = need.bytes ? str(" needs ", human_bytes(*need.bytes)) : "";
    throw Error(ErrorCode::kOutOfMemory, str(need.what, bytes, ": ", e.what(), "; try ", need.advice));
  }
}

}  // namespace headrace
