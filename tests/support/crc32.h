// CRC-32 as zlib computes it, for vectors of bytes.
#pragma once
#include <cstdint>
#include <span>

namespace headrace::test {

inline uint32_t crc32(std::span<const unsigned char> bytes) {
  uint32_t crc = ~0U;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0);
  }
  return ~crc;
}

}  // namespace headrace::test
