// The copy engine's descriptions of the pool of keys and values.
#pragma once
#include <cuda.h>

#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

// Of one side of the pool, whose heads have `dim` elements: boxes of 64 elements, of FP8 of all `kernel_dim` codes, by
// as many slots of a page as a tile of `keys` keys takes. `columns`: of a box of floats, where that is not 64; rows of
// it are swizzled within their bytes.
CUtensorMap map_of(const AttentionParams& p, const PagedSide& side, int dim, int kernel_dim, int keys,
                   int columns = 64);

// Of one side of a pool of floats: boxes of all its columns of 64 elements, `keys` keys of each, one behind the other.
// Where the last column has fewer, or pages are smaller, boxes are of the column that begins at the first coordinate.
CUtensorMap column_map_of(const AttentionParams& p, const PagedSide& side, int dim, int keys);

}  // namespace headrace::cuda
