// Tiling of a mixture of experts: rows of a tile, tokens and channels at a time. Pure: sizes in, choice out.
#pragma once
#include <algorithm>
#include <cstdint>

namespace headrace::cuda {

enum class ExpertKernel : uint8_t { kPlain, kTensorCores, kSm90 };

// Most rows of a tile, for few or many tokens per expert: of the kernels without TMA, and of the sm_90 kernel.
inline constexpr int kFewTileRows = 16, kManyTileRows = 64;
inline constexpr int kFewRowsSm90 = 64, kManyRowsSm90 = 176;
inline constexpr int kDownColumnsSm90 = 256;  // columns of a tile of many rows of down

// Returns the rows of a tile: larger ones pay from some tokens per expert on. `slots`: choices of all tokens.
constexpr int32_t expert_tile_rows(ExpertKernel kernel, int64_t slots, int64_t experts) {
  const int64_t rows = slots / experts;
  switch (kernel) {
    case ExpertKernel::kSm90: return rows < 48 ? kFewRowsSm90 : kManyRowsSm90;
    case ExpertKernel::kTensorCores: return rows < 32 ? kFewTileRows : kManyTileRows;
    default: return kFewTileRows;
  }
}

struct ExpertWork {
  int64_t tokens, chosen;                // chosen: experts of a token
  int64_t channels, intermediate;        // of a token, and between the two GEMMs
  int64_t element_bytes, sorting_bytes;  // of an element; of what a slot adds to the sorting
  int64_t room;                          // bytes of scratch memory
  bool sm90;                             // for the sm_90 kernel
  // Most scratch bytes of one token's slots: the results of gate and up, those of `of_channels` channels of down, and
  // their place in the sorting.
  constexpr int64_t bytes_per_token(int64_t of_channels) const {
    return chosen * ((intermediate + of_channels) * element_bytes + sorting_bytes);
  }
};

// Tokens, and channels of down, to process at a time. tokens is 0 if one token needs more than the room.
struct ExpertChunk {
  int64_t tokens, channels;
};

// Halves the channels before the tokens, as long as whole tiles are left: fewer tokens at a time read all weights
// again.
constexpr ExpertChunk choose_expert_chunk(const ExpertWork& w) {
  constexpr int64_t kMostOfGrid = 65535;  // gridDim.y: tokens of a sum, or tiles (no more than slots)
  int64_t channels = w.channels;
  while (w.tokens * w.bytes_per_token(channels) > w.room && w.sm90 && channels % (int64_t{2} * kDownColumnsSm90) == 0) {
    channels /= 2;
  }
  const int64_t most = std::min(w.room / w.bytes_per_token(channels), kMostOfGrid / (w.sm90 ? 1 : w.chosen));
  if (most < 1) return {.tokens = 0, .channels = channels};
  const int64_t count = std::max<int64_t>(1, (w.tokens + most - 1) / most);
  return {.tokens = (w.tokens + count - 1) / count, .channels = channels};
}

}  // namespace headrace::cuda
