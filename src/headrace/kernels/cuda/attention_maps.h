// The copy engine's descriptions of the pool of keys and values.
#pragma once
#include <cuda.h>

#include "headrace/kernels/cuda/paged_attention.h"

namespace headrace::cuda {

// Of one side of the pool, whose heads have `dim` elements: boxes of 64 elements, of FP8 of all `kernel_dim` codes, by
// as many slots of a page as a tile of `keys` keys takes.
CUtensorMap map_of(const AttentionParams& p, const PagedSide& side, int dim, int kernel_dim, int keys);

}  // namespace headrace::cuda
