// Elements of views: any float as a double, slow and right for every dtype and stride.
#pragma once
#include "headrace/core/tensor.h"

namespace headrace::reference {

// The first element of a view, as the type that its dtype stands for.
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

// `value` as it comes back after being stored as `dtype`.
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
