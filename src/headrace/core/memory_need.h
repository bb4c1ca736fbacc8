// What the error of a full device or machine says besides the allocation that failed.
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
  std::optional<int64_t> bytes = {};  // of all of it, where that is known
  std::string_view advice;            // what to try: "a smaller max_model_len"
};

// What `make` returns. Its Error kOutOfMemory, which says what is there, is thrown anew with what is needed before it
// and what to try behind: "a KV cache of 1600 tokens needs 51.7 kB: <its text>; try a smaller max_model_len".
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
