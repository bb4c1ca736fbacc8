// Splits tiles of work into shares that differ by at most one, one share per CTA. Constant expressions: tested on the
// host.
#pragma once
#include <cstdint>

namespace headrace::cuda {

// A few rows over some ten million keys have more tiles than 2^32 / blocks, so the product of the two takes 64 bits.
struct EvenSplits {
  unsigned tiles = 0, blocks = 1;

  // Returns the first tile of a CTA's share, which ends where the next one begins. CTAs from `blocks` on have none.
  constexpr unsigned begin(unsigned block) const {
    return block < blocks ? static_cast<unsigned>(uint64_t{tiles} * block / blocks) : tiles;
  }
  // Returns the CTA whose share contains `tile`.
  constexpr unsigned block_of(unsigned tile) const {
    return static_cast<unsigned>(((uint64_t{tile} + 1) * blocks - 1) / tiles);
  }
};

}  // namespace headrace::cuda
