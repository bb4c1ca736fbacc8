// The merges of a byte-level BPE: (left, right) -> (rank, merged). Built once, then read; const methods are
// thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// Open addressing with linear probing: a lookup is one cache line, and there are two per merge of every word.
class MergeTable {
 public:
  struct Merge {
    int32_t left, right;  // token ids
    int32_t rank;         // lower merges first
    int32_t merged;       // the token that the two become
  };

  explicit MergeTable(size_t num_merges);

  // A pair that is listed twice keeps its last rank, as in the `tokenizers` package. At most num_merges different
  // pairs.
  void insert(const Merge& merge);

  // nullptr if the two do not merge. Owned by the table.
  const Merge* find(int32_t left, int32_t right) const {
    for (size_t i = home(left, right);; i = (i + 1) & mask_) {
      const Merge& slot = slots_[i];
      if (slot.left == left && slot.right == right) return &slot;
      if (slot.left == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr int32_t kEmpty = -1;  // no token id is negative

  size_t home(int32_t left, int32_t right) const {
    const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    return static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> 32) & mask_;  // Fibonacci hashing
  }

  size_t mask_;  // the number of slots, a power of two and at least twice the merges, minus 1
  std::vector<Merge> slots_;
};

}  // namespace headrace
