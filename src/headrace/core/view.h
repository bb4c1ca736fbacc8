// Typed tensor views: element type and rank are known at compile time.
#pragma once
#include <array>
#include <cstdint>

#include "headrace/core/dtype.h"

namespace headrace {

// A view of memory that it does not own. Sizes and strides in elements.
template <class T, int R>
class View {
 public:
  View() = default;
  View(T* data, std::array<int64_t, R> dims, std::array<int64_t, R> strides)
      : data_(data), dims_(dims), strides_(strides) {}

  T* data() const { return data_; }
  int64_t dim(int i) const { return dims_[static_cast<size_t>(i)]; }
  int64_t stride(int i) const { return strides_[static_cast<size_t>(i)]; }

  template <class... Index>
  requires(sizeof...(Index) == R) T& operator()(Index... index) const { return data_[offset(index...)]; }
  // The memory at a leading index; the last dimension is contiguous from there when its stride is 1.
  template <class... Index>
  requires(sizeof...(Index) < R) T* row(Index... index) const { return data_ + offset(index...); }

 private:
  template <class... Index>
  int64_t offset(Index... index) const {
    int64_t at = 0;
    size_t i = 0;
    ((at += static_cast<int64_t>(index) * strides_[i++]), ...);
    return at;
  }

  T* data_ = nullptr;
  std::array<int64_t, R> dims_{}, strides_{};
};

}  // namespace headrace
