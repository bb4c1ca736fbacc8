// TMA tensor maps of the KV pool.
#pragma once
#include <cuda.h>

#include "headrace/ops/cuda/attention/attention_params.h"

namespace headrace::cuda {

// Returns the tensor map of one side of the pool, whose heads have `dim` elements. A TMA box has 64 elements by the
// slots of a page that a tile of `keys` keys takes. FP8: the box has all `kernel_dim` elements. `columns`: elements of
// a 16-bit box, if not 64; its rows are swizzled within their bytes. Throws kCuda if the driver rejects the map.
CUtensorMap map_of(const AttentionParams& p, const PagedSide& side, int dim, int kernel_dim, int keys,
                   int columns = 64);

// Returns the tensor map of one side of a 16-bit pool. A TMA box has all columns of 64 elements, `keys` keys of each,
// one after the other. If the last column is shorter, or pages are smaller, a box has the one column that begins at the
// first coordinate. Throws kCuda if the driver rejects the map.
CUtensorMap column_map_of(const AttentionParams& p, const PagedSide& side, int dim, int keys);

}  // namespace headrace::cuda
