// Detects the instruction sets that this processor and operating system support.
#pragma once

namespace headrace::cpu {

bool has_avx2();         // with FMA and F16C
bool has_avx512();       // F, BW, DQ, VL
bool has_avx512_bf16();  // and BF16 and VNNI, which come together since Cooper Lake and Zen 4
// AVX-512 with BF16 and VNNI, and AMX tiles with bf16. Requests the tile state from the kernel once per process:
// without that permission the first tile instruction would end the process.
bool has_amx();

}  // namespace headrace::cpu
