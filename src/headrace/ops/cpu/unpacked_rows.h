// Ops that read rows of a packed matrix as floats. Compiled once, not per ISA variant.
#pragma once
#include "headrace/ops/cpu/linear.h"
#include "headrace/ops/embedding.h"

namespace headrace::cpu {

// GEMM of float activations with a packed weight: dequantises some rows of it at a time, all bits kept, for `kernel`.
// args must be checked.
void linear_of_unpacked(const LinearArgs& args, const OpContext& context, void (*kernel)(const LinearParams&));

// Lookup in a packed table. args must be checked.
void embedding_of_packed(const EmbeddingArgs& args, const OpContext& context);

}  // namespace headrace::cpu
