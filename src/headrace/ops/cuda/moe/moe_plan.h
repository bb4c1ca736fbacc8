// How the work of a mixture of experts is cut: rows of a tile, tokens and channels at a time. Pure: sizes in, choice
// out.
#pragma once
#include <algorithm>
#include <cstdint>

namespace headrace::cuda {

enum class ExpertKernel : uint8_t { kPlain, kTensorCores, kSm90 };

// Rows of a tile: of the kernels without TMA, and up to so many of the Hopper kernel's.
inline constexpr int kFewTileRows = 16, kManyTileRows = 64;
inline constexpr int kFewRowsSm90 = 64, kManyRowsSm90 = 176;
inline constexpr int kDownColumnsSm90 = 256;  // of a tile of many rows of down

// Larger tiles pay from some rows per expert on. `slots`: choices of all tokens.
constexpr int32_t expert_tile_rows(ExpertKernel kernel, int64_t slots, int64_t experts) {
  const int64_t rows = slots / experts;
  switch (kernel) {
    case ExpertKernel::kSm90: return rows < 48 ? kFewRowsSm90 : kManyRowsSm90;
    case ExpertKernel::kTensorCores: return rows < 32 ? kFewTileRows : kManyTileRows;
    default: return kFewTileRows;
  }
}

struct ExpertWork {
  int64_t tokens, chosen;                // experts of a token
  int64_t channels, intermediate;        // of a row, and between the two products
  int64_t element_bytes, sorting_bytes;  // of a number; of what a slot adds to the sorting
  int64_t room;                          // bytes of scratch memory
  bool sm90;                             // the kernel's
  // Of one token's slots, at most: what gate and up make of it and, of so many channels, down; where they are sorted
  // to.
  constexpr int64_t bytes_per_token(int64_t of_channels) const {
    return chosen * ((intermediate + of_channels) * element_bytes + sorting_bytes);
  }
};

// So many tokens, and of down so many channels, at a time; no tokens: one takes more than the room.
struct ExpertParts {
  int64_t tokens, channels;
};

// Halves channels, as long as whole tiles are left of them, before tokens: the latter reads all weights again.
constexpr ExpertParts expert_parts(const ExpertWork& w) {
  constexpr int64_t kMostOfGrid = 65535;  // a grid's second side: tokens of a sum, or no more tiles than slots
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
