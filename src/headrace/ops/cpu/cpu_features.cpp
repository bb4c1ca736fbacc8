#include "headrace/ops/cpu/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headrace::cpu {

#if defined(__x86_64__)
namespace {

bool tile_state_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool cpu_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25,
                     kAll = kAmxBf16 | kAmxTile | kAmxInt8;
  return (d & kAll) == kAll;
}

// Clang 14 does not know the names of two features, so they are read from CPUID.
bool cpu_has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool cpu_has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvx512Bf16) != 0;
}

}  // namespace

// __builtin_cpu_supports also checks that the operating system saves the registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() { return has_avx512() && cpu_has_avx512_bf16() && __builtin_cpu_supports("avx512vnni"); }

bool has_amx() {
  static const bool granted = has_avx512_bf16() && cpu_has_amx() && tile_state_granted();
  return granted;
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bf16() { return false; }
bool has_amx() { return false; }
#endif

}  // namespace headrace::cpu
