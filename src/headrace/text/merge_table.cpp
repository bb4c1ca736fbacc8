#include "headrace/text/merge_table.h"

#include <bit>

namespace headrace {

MergeTable::MergeTable(size_t num_merges)
    : mask_(std::bit_ceil(2 * num_merges + 1) - 1), slots_(mask_ + 1, Merge{kEmpty, kEmpty, 0, 0}) {}

void MergeTable::insert(const Merge& merge) {
  size_t i = home(merge.left, merge.right);
  while (slots_[i].left != kEmpty && (slots_[i].left != merge.left || slots_[i].right != merge.right))
    i = (i + 1) & mask_;
  slots_[i] = merge;
}

}  // namespace headrace
