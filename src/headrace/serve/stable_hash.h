// A hash that is the same on every machine and in every build.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325;

// FNV-1a of 64 bits. `start`: the hash of what stands before `bytes`. Finds accidental changes, not malicious ones.
constexpr uint64_t stable_hash(std::string_view bytes, uint64_t start = kHashStart) {
  for (const char c : bytes) start = (start ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return start;
}

// 16 hexadecimal digits.
inline std::string hash_text(uint64_t hash) {
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; hash >>= 4) text[i] = "0123456789abcdef"[hash & 15];
  return text;
}

}  // namespace headrace
