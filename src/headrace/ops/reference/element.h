// Element access of tensor views: reads any float dtype and stride as double. Slow, for reference ops only.
#pragma once
#include "headrace/core/tensor.h"

namespace headrace::reference {

// Returns the address of a view's first element as T*; T must match the dtype.
template <class T>
T* data(const TensorView& view) {
  return static_cast<T*>(view.data());
}

template <class... Index>
void* address_of(const TensorView& view, Index... index) {
  int64_t offset = 0;
  int i = 0;
  ((offset += static_cast<int64_t>(index) * view.stride(i++)), ...);
  return static_cast<char*>(view.data()) + offset * size_of(view.dtype());
}

template <class... Index>
double get(const TensorView& view, Index... index) {
  return number_at(address_of(view, index...), view.dtype());
}

template <class... Index>
void set(const TensorView& view, double value, Index... index) {
  set_number(address_of(view, index...), view.dtype(), value);
}

// Returns `value` after a round trip through `dtype`.
inline double rounded_to(DType dtype, double value) {
  switch (dtype) {
    case DType::kBF16: return static_cast<float>(BF16(static_cast<float>(value)));
    case DType::kF16: return static_cast<float>(F16(static_cast<float>(value)));
    case DType::kF32: return static_cast<float>(value);
    case DType::kE4M3: return static_cast<float>(E4M3(static_cast<float>(value)));
    default: return value;
  }
}

}  // namespace headrace::reference
