// The kind of a batch. The values are pymllm's.
#pragma once
#include <cstdint>
#include <string_view>

namespace headrace {

enum class ForwardMode : int32_t {
  kExtend = 1,  // new tokens after a cached prefix (which may be empty)
  kDecode = 2,  // one new token per request
  kMixed = 3,   // both kinds of rows
  kIdle = 4,    // nothing to do: outputs are zeros, nothing is stored
};

constexpr bool is_extend(ForwardMode mode) { return mode == ForwardMode::kExtend || mode == ForwardMode::kMixed; }
constexpr bool is_decode_or_idle(ForwardMode mode) { return !is_extend(mode); }

constexpr std::string_view name_of(ForwardMode mode) {
  switch (mode) {
    case ForwardMode::kExtend: return "extend";
    case ForwardMode::kDecode: return "decode";
    case ForwardMode::kMixed: return "mixed";
    case ForwardMode::kIdle: return "idle";
  }
  return "unknown";
}

}  // namespace headrace
