// What the tensor-core products share: 16-byte loads, the order of the sum, and how results are stored.
//
// A product takes 16 neighbours of `in`: Hopper's warpgroups read them as they lie in memory, and on Hopper the result
// of one product does not depend on how its 16 elements are shared out among lanes and positions (a test compares the
// kernels' bits). Kernels that feed mma.sync all share them out alike (first_of_lane), since older devices may not
// have that property. The sum is cut in kSegments parts: element k belongs to part k / kPartLen % kSegments; each part
// is one chain of products in ascending k, and the parts are added in ascending order. All kernels that follow this
// give the same bits. The parts are those that a chain of products of few rows (gemm_sequence.cu) has by its nature.
#pragma once
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"

namespace headrace::cuda {

constexpr int kSegments = 16, kPartLen = 64, kPassLen = kSegments * kPartLen;
constexpr int kChunkLen = 32;  // that four lanes load at once, 16 bytes each

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

// Of 16 neighbours of a row four lanes hold four each: the first that this lane has.
__device__ inline int first_of_lane(int lane) { return lane % 2 * 8 + lane / 2 % 2 * 4; }

// The 16 elements that four lanes hold of each row: low rows, high rows, and eight rows of W.
template <class T>
__device__ inline void multiply_16(float (&d)[4], const uint2& low, const uint2& high, const uint2& w) {
  mma_m16n8k16<T>(d, low.x, high.x, low.y, high.y, w.x, w.y);
}

// What one load brings, 8 neighbours of 32 to each of four lanes, becomes each lane's four of the first 16 and of the
// second. Loads of 8 bytes would need no exchange, but be twice as many.
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

// The 32 elements that four lanes hold of each row in pieces of 16 bytes: two products of elements that do not lie
// side by side, for kernels with an order of their own.
template <class T>
__device__ inline void multiply_chunk(float (&d)[4], const uint4& low, const uint4& high, const uint4& w) {
  mma_m16n8k16<T>(d, low.x, high.x, low.y, high.y, w.x, w.y);
  mma_m16n8k16<T>(d, low.z, high.z, low.w, high.w, w.z, w.w);
}

// Weights pass through once: they shall not displace what is read again, in the L2 neither, where a step's states, keys
// and instructions can stay until the next one.
__device__ inline uint4 load_streaming(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(kReadOnce));
  return v;
}

// An element that the kernel before may have written while this one had begun: never from this multiprocessor's cache.
__device__ inline float load_fresh(const void* data, DType type, int64_t at) {
  if (type == DType::kF32) return __ldcg(static_cast<const float*>(data) + at);
  const unsigned short bits = __ldcg(static_cast<const unsigned short*>(data) + at);
  return type == DType::kBF16 ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
}
__device__ inline float load_fresh(const Rows& x, int64_t row, int64_t column) {
  return load_fresh(x.data, x.type, x.at(row) + column);
}

// Rows of one result, with what is added before they are rounded.
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
