// parallel_for for kernel sources whose tasks need scratch memory. Compiled once, not per ISA variant. Kernel sources
// have no destructors, because their unwind tables would introduce weak symbols.
#pragma once

namespace headrace::cpu {

// Calls fn(context, i, scratch) for every i in [0, count) on at most `threads` threads. Each call gets `floats`
// uninitialised floats of its own, aligned to 64 bytes. Throws Error kOutOfMemory.
void parallel_for_with_scratch(int threads, long count, long floats, void (*fn)(void* context, long i, float* scratch),
                               void* context);

}  // namespace headrace::cpu
