// Rows of tokens sorted by the expert that they chose, cut into tiles for products.
#pragma once
#include <algorithm>
#include <cstdint>

#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

// `count` neighbours in the sorted order, all of one expert. Tiles past the last one have no rows.
struct ExpertTile {
  int32_t expert, begin, count;
};

// A slot is one choice of a token: slot / k is the token.
struct ExpertGroups {
  const int32_t* experts = nullptr;  // [slots], kNoExpert for slots that nobody makes
  int32_t slots = 0, num_experts = 0, tile_rows = 0;
  int32_t* order = nullptr;      // [slots]: the slot at each place of the sorted order, as far as the tiles go
  ExpertTile* tiles = nullptr;   // [most_tiles()]
  int32_t* num_tiles = nullptr;  // [1]: those that have rows

  constexpr int32_t most_tiles() const { return std::min(slots, slots / tile_rows + num_experts); }
};

// Fills `order`, `tiles` and `num_tiles`. An expert's rows are shared out evenly among as few tiles as hold them.
// Within an expert the order is unspecified.
void group_slots(const ExpertGroups& groups, const Stream& stream);

}  // namespace headrace::cuda
