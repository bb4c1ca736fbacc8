// Vectors as tensors on the CPU.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "headrace/core/tensor.h"

namespace headrace::testing_support {

inline Tensor ids_of(const std::vector<int32_t>& ids) {
  Tensor tensor(DType::kI32, {std::ssize(ids)});
  std::ranges::copy(ids, tensor.data_as<int32_t>());
  return tensor;
}

inline Tensor numbers_of(const std::vector<float>& numbers) {
  Tensor tensor(DType::kF32, {std::ssize(numbers)});
  std::ranges::copy(numbers, tensor.data_as<float>());
  return tensor;
}

}  // namespace headrace::testing_support
