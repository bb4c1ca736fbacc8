// What this processor and operating system can run.
#pragma once

namespace headrace::cpu {

bool has_avx2();         // with FMA and F16C
bool has_avx512();       // F, BW, DQ, VL
bool has_avx512_bf16();  // the same with BF16
// AVX-512 with BF16, and AMX tiles with bf16. Asks the kernel for the tile state once per process: without that
// permission the first tile instruction would end the process.
bool has_amx();

}  // namespace headrace::cpu
