// Shared by the tensor-core GEMMs: 16-byte loads, the fixed split-K order, and the epilogue.
//
// Fixed split-K order (batch-invariant mode, fixed_splits.h): each split is one chain of k16 MMAs in ascending k, and
// the splits are added in ascending order. All kernels that follow this order give the same bits. The GEMM sequence
// kernel (gemm_sequence.cu) has these splits by its nature.
//
// An MMA takes 16 neighbouring elements of K. WGMMA reads them as they lie in memory. On Hopper the result of an MMA
// does not depend on how lanes and positions share its 16 elements; a test compares the kernels' bits. Older devices
// may not have that property, so all kernels that feed mma.sync share them alike (first_of_lane).
#pragma once
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/gemm/fixed_splits.h"

namespace headrace::cuda {

// d += a b^T for 16 rows of x and 8 rows of W.
template <class T>
__device__ inline void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Four lanes hold four elements each of 16 neighbours of a row. Returns the index of this lane's first.
__device__ inline int first_of_lane(int lane) { return lane % 2 * 8 + lane / 2 % 2 * 4; }

// One MMA over 16 neighbours of K that four lanes hold: rows 0 to 7 of x (`low`), rows 8 to 15 (`high`), eight rows of
// W.
template <class T>
__device__ inline void multiply_16(float (&d)[4], const uint2& low, const uint2& high, const uint2& w) {
  mma_m16n8k16<T>(d, low.x, high.x, low.y, high.y, w.x, w.y);
}

// Exchanges a 16-byte load among four lanes. Each lane loaded 8 neighbours of 32; it gets its four of the first 16 and
// its four of the second 16. 8-byte loads would need no exchange, but twice as many instructions.
struct Pair16 {
  uint2 first, second;
  __device__ explicit Pair16(const uint4& piece) {
    const bool upper = threadIdx.x & 2;  // lanes 2 and 3 hold the second 16
    uint2 other = upper ? make_uint2(piece.x, piece.y) : make_uint2(piece.z, piece.w);
    other.x = __shfl_xor_sync(0xffffffffu, other.x, 2), other.y = __shfl_xor_sync(0xffffffffu, other.y, 2);
    first = upper ? other : make_uint2(piece.x, piece.y);
    second = upper ? make_uint2(piece.z, piece.w) : other;
  }
};

// Two MMAs over the 32 elements that four lanes loaded as 16 bytes each. The elements of one MMA do not lie side by
// side: for kernels that need not follow the order above.
template <class T>
__device__ inline void multiply_chunk(float (&d)[4], const uint4& low, const uint4& high, const uint4& w) {
  mma_m16n8k16<T>(d, low.x, high.x, low.y, high.y, w.x, w.y);
  mma_m16n8k16<T>(d, low.z, high.z, low.w, high.w, w.z, w.w);
}

// Loads 16 bytes of weights, which are read once and must not displace what is read again. That includes the L2, where
// a step's states, keys and instructions can stay until the next step.
__device__ inline uint4 load_streaming(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(kReadOnce));
  return v;
}

// Loads an element that the previous kernel may have written after this one began (PDL): bypasses this SM's L1.
__device__ inline float load_fresh(const void* data, DType type, int64_t at) {
  if (type == DType::kF32) return __ldcg(static_cast<const float*>(data) + at);
  const unsigned short bits = __ldcg(static_cast<const unsigned short*>(data) + at);
  return type == DType::kBF16 ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
}
__device__ inline float load_fresh(const Rows& x, int64_t row, int64_t column) {
  return load_fresh(x.data, x.type, x.at(row) + column);
}

// Epilogue of one GEMM: adds the bias and the residual, if any, in float32 and rounds to y's dtype.
struct Result {
  Rows y, residual;
  const void* bias;
  DType bias_type;

  __device__ void write(int64_t row, int64_t column, float sum) const {
    if (bias != nullptr) sum += load(bias, bias_type, column);
    if (residual.data != nullptr) sum += load_fresh(residual, row, column);
    y.set(row, 0, column, sum);
  }
};

}  // namespace headrace::cuda
