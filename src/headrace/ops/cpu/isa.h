// Instruction sets of the CPU kernels. Every kernel source of this folder is built once per set, with HR_ISA as
// the name of the set; its entry point lives in headrace::cpu::HR_ISA and everything else in it has internal
// linkage. Such sources use no standard containers or algorithms and no inline function of base: a copy built
// with wider instructions could replace the portable one when linking (tools/check_isa_objects refuses it).
#pragma once

// Declares an entry point in the namespace of every set.
#define HR_DECLARE_PER_ISA(declaration) \
  namespace portable {                  \
  declaration;                          \
  }                                     \
  namespace avx2 {                      \
  declaration;                          \
  }                                     \
  namespace avx512 {                    \
  declaration;                          \
  }                                     \
  namespace avx512bf16 {                \
  declaration;                          \
  }                                     \
  namespace amx {                       \
  declaration;                          \
  }
