// Packed access: eight elements at a time, 16 bytes of a 16-bit type.
#pragma once
#include <type_traits>

#include "headrace/core/tensor.h"
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/arch/pairs.cuh"

namespace headrace::cuda {

constexpr int kVec8 = 8;

template <class T>
struct Vec8 {
  float v[kVec8];

  // Loads what an earlier kernel wrote: bypasses this SM's L1.
  __device__ static Vec8 load(const T* from);
  // Loads what no kernel writes.
  __device__ static Vec8 load_constant(const T* from);
  // Stores to any memory.
  __device__ void store(T* to) const {
    if constexpr (std::is_same_v<T, float>) {
      reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
      *reinterpret_cast<uint4*>(to) = packed();
    }
  }
  // Stores to global memory only. The compiler splits some plain stores into four of 4 bytes.
  __device__ void store_global(T* to) const {
    if constexpr (std::is_same_v<T, float>) {
      store(to);
    } else {
      __stcg(reinterpret_cast<uint4*>(to), packed());
    }
  }

 private:
  __device__ uint4 packed() const {
    return {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]), pack2<T>(v[6], v[7])};
  }
};

// Eight elements as they lie in memory. Only piece() waits for the load, so several loads can be in flight.
template <class T>
struct RawVec8 {
  uint4 bits[sizeof(T) * kVec8 / 16];

  __device__ static RawVec8 load(const T* from) {
    return of([](const uint4* at) { return __ldcg(at); }, from);
  }
  __device__ static RawVec8 load_constant(const T* from) {
    return of([](const uint4* at) { return __ldg(at); }, from);
  }
  __device__ Vec8<T> piece() const {
    Vec8<T> x;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(bits) / 16); ++i) {
      const uint32_t words[] = {bits[i].x, bits[i].y, bits[i].z, bits[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<T, float>) {
          x.v[4 * i + j] = __uint_as_float(words[j]);
        } else {
          const float2 pair = unpack2<T>(words[j]);
          x.v[2 * j] = pair.x, x.v[2 * j + 1] = pair.y;
        }
      }
    }
    return x;
  }

 private:
  template <class Load>
  __device__ static RawVec8 of(const Load& load, const T* from) {
    RawVec8 x;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(x.bits) / 16); ++i)
      x.bits[i] = load(reinterpret_cast<const uint4*>(from) + i);
    return x;
  }
};

template <class T>
__device__ inline Vec8<T> Vec8<T>::load(const T* from) {
  return RawVec8<T>::load(from).piece();
}
template <class T>
__device__ inline Vec8<T> Vec8<T>::load_constant(const T* from) {
  return RawVec8<T>::load_constant(from).piece();
}

template <class T>
__device__ inline T* row_of(const Rows& x, int64_t token, int64_t head = 0) {
  return static_cast<T*>(x.data) + x.at(token, head);
}

// Returns true if rows of `x` begin at multiples of 16 bytes and have a multiple of 8 elements.
inline bool is_vec8(const TensorView& x) {
  if (reinterpret_cast<uintptr_t>(x.data()) % 16 != 0 || x.dim(x.rank() - 1) % kVec8 != 0) return false;
  for (int i = 0; i + 1 < x.rank(); ++i) {
    if (x.stride(i) % kVec8 != 0) return false;
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

// Access to rows of T that are is_vec8(), eight elements at a time.
template <class T>
struct PackedAccess {
  static constexpr int kWidth = kVec8;
  using Values = Vec8<T>;
  __device__ static Values load(const Rows& x, int64_t token, int64_t head, int64_t d) {
    return Values::load(row_of<T>(x, token, head) + d);
  }
  __device__ static void store(const Values& values, const Rows& to, int64_t token, int64_t head, int64_t d) {
    values.store(row_of<T>(to, token, head) + d);
  }
  __device__ static constexpr bool is_16_bit(const Rows&) { return sizeof(T) == 2; }
};

// Access to rows of any dtype and alignment, one element at a time.
struct ElementAccess {
  static constexpr int kWidth = 1;
  struct Values {
    float v[1];
  };
  __device__ static Values load(const Rows& x, int64_t token, int64_t head, int64_t d) {
    return {{x.get(token, head, d)}};
  }
  __device__ static void store(const Values& values, const Rows& to, int64_t token, int64_t head, int64_t d) {
    to.set(token, head, d, values.v[0]);
  }
  __device__ static bool is_16_bit(const Rows& x) { return x.type != DType::kF32; }
};

// Calls f with PackedAccess of the element type if `packed`, else with ElementAccess.
template <class F>
void for_access(bool packed, DType type, const F& f) {
  if (!packed) return f(ElementAccess());
  for_type(type, [&]<class T>(T) { f(PackedAccess<T>()); });
}

}  // namespace headrace::cuda
