// Tiles of work in shares that differ by one at most, one for each block. Constant expressions: tested on the host.
#pragma once
#include <cstdint>

namespace headrace::cuda {

// A few rows over some ten million keys have more tiles than 2^32 / blocks: products of the two take 64 bits.
struct EvenSplits {
  unsigned tiles = 0, blocks = 1;

  // The first tile of a block's share, which ends where the next one's begins. Those behind the last have none.
  constexpr unsigned begin(unsigned block) const {
    return block < blocks ? static_cast<unsigned>(uint64_t{tiles} * block / blocks) : tiles;
  }
  // Whose share a tile is in.
  constexpr unsigned block_of(unsigned tile) const {
    return static_cast<unsigned>(((uint64_t{tile} + 1) * blocks - 1) / tiles);
  }
};

}  // namespace headrace::cuda
