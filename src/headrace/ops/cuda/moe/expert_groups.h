// Tokens sorted by the expert that they chose, cut into tiles for the grouped GEMM.
#pragma once
#include <algorithm>
#include <cstdint>

#include "headrace/ops/cuda/runtime/stream.h"
#include "headrace/ops/expert_routing.h"

namespace headrace::cuda {

// `count` neighbours in the sorted order, all of one expert. Tiles past the last one have no rows.
struct ExpertTile {
  int32_t expert, begin, count;
};

// A slot is one choice of a token: slot / k is the token. The pointers are to device memory and not owned.
struct ExpertGroups {
  const int32_t* experts = nullptr;  // [slots]; kNoExpert: the slot is not computed
  int32_t slots = 0, num_experts = 0, tile_rows = 0;
  enum class Tiling : uint8_t {
    kSorted,  // tiles of neighbours in the sorted order
    kPerSlot  // a tile for each slot, unsorted: an expert that is chosen twice is read twice
  } tiling = Tiling::kSorted;
  // For kSorted only:
  int32_t* order = nullptr;      // [slots]: the slot at each place of the sorted order, as far as the tiles reach
  ExpertTile* tiles = nullptr;   // [most_tiles()]
  int32_t* num_tiles = nullptr;  // [1]: number of tiles that have rows

  constexpr int32_t most_tiles() const {
    return tiling == Tiling::kPerSlot ? slots : std::min(slots, slots / tile_rows + num_experts);
  }
#ifdef __CUDACC__
  __device__ int32_t tiles_to_run() const { return tiling == Tiling::kPerSlot ? slots : __ldcg(num_tiles); }
  __device__ ExpertTile tile(int32_t i) const {
    if (tiling == Tiling::kPerSlot) {
      const int32_t expert = __ldcg(experts + i);
      return {expert, i, expert == kNoExpert ? 0 : 1};
    }
    const auto* words = reinterpret_cast<const int32_t*>(tiles + i);
    return {__ldcg(words), __ldcg(words + 1), __ldcg(words + 2)};
  }
  __device__ int32_t slot_at(int32_t place) const { return tiling == Tiling::kPerSlot ? place : __ldcg(order + place); }
#endif
};

// Fills `order`, `tiles` and `num_tiles` of a kSorted group. As few tiles as hold an expert's rows share them evenly.
// The order within an expert is unspecified. Throws kUnsupported for more than 4096 experts.
void group_slots(const ExpertGroups& groups, const Stream& stream);

}  // namespace headrace::cuda
