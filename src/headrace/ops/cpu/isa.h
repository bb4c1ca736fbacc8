// ISA variants of the CPU kernels. Every kernel source of this folder is compiled once per variant, with HR_ISA as the
// variant's name. Its entry point is in headrace::cpu::HR_ISA; everything else has internal linkage. Kernel sources use
// no standard containers or algorithms, and no inline functions of core/: the linker could replace a portable copy by
// one with wider instructions (tools/check_isa_objects rejects that).
#pragma once

// Declares an entry point in the namespace of every variant.
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
