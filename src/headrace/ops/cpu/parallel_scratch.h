// parallel_for for kernel sources whose tasks need scratch memory. Built once and not per instruction set: a source of
// a set has no destructors, and with them no unwinding tables that would bring weak symbols.
#pragma once

namespace headrace::cpu {

// Calls fn(context, i, scratch) for every i in [0, count) on at most `threads` threads; each call gets `floats`
// uninitialised floats of its own, aligned to 64 bytes. Error kOutOfMemory.
void parallel_for_with_scratch(int threads, long count, long floats, void (*fn)(void* context, long i, float* scratch),
                               void* context);

}  // namespace headrace::cpu
