// Eight elements at a time: 16 bytes of a 16-bit type.
#pragma once
#include <type_traits>

#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/pairs.cuh"

namespace headrace::cuda {

constexpr int kPiece = 8;

template <class T>
struct Piece {
  float v[kPiece];

  // Of what an earlier kernel wrote: never from this multiprocessor's cache.
  __device__ static Piece load(const T* from) {
    return of([](const auto* at) { return __ldcg(at); }, from);
  }
  // Of what no kernel writes.
  __device__ static Piece load_constant(const T* from) {
    return of([](const auto* at) { return __ldg(at); }, from);
  }
  __device__ void store(T* to) const {
    if constexpr (std::is_same_v<T, float>) {
      reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
      *reinterpret_cast<uint4*>(to) = {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
                                       pack2<T>(v[6], v[7])};
    }
  }

 private:
  template <class Load>
  __device__ static Piece of(const Load& load, const T* from) {
    Piece piece;
    if constexpr (std::is_same_v<T, float>) {
      const auto* at = reinterpret_cast<const float4*>(from);
      const float4 a = load(at), b = load(at + 1);
      piece.v[0] = a.x, piece.v[1] = a.y, piece.v[2] = a.z, piece.v[3] = a.w;
      piece.v[4] = b.x, piece.v[5] = b.y, piece.v[6] = b.z, piece.v[7] = b.w;
    } else {
      const uint4 bits = load(reinterpret_cast<const uint4*>(from));
      const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack2<T>(words[i]);
        piece.v[2 * i] = pair.x, piece.v[2 * i + 1] = pair.y;
      }
    }
    return piece;
  }
};

template <class T>
__device__ inline T* row_of(const Rows& x, int64_t token, int64_t head = 0) {
  return static_cast<T*>(x.data) + x.at(token, head);
}

// Whether rows of `x` begin at multiples of 16 bytes and their length is a multiple of a piece.
inline bool in_pieces(const TensorView& x) {
  if (reinterpret_cast<uintptr_t>(x.data()) % 16 != 0 || x.dim(x.rank() - 1) % kPiece != 0) return false;
  for (int i = 0; i + 1 < x.rank(); ++i) {
    if (x.stride(i) % kPiece != 0) return false;
  }
  return x.stride(x.rank() - 1) == 1;
}

// Calls f with a value of the element type.
template <class F>
void for_type(DType type, const F& f) {
  switch (type) {
    case DType::kBF16: return f(__nv_bfloat16());
    case DType::kF16: return f(__half());
    default: return f(float());
  }
}

}  // namespace headrace::cuda
