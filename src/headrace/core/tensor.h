// Tensor owns memory; TensorView refers to it with a runtime dtype, View<T, R> (view.h) with a static one.
#pragma once
#include <string_view>
#include <type_traits>

#include "headrace/core/device.h"
#include "headrace/core/dtype.h"
#include "headrace/core/error.h"
#include "headrace/core/shape.h"
#include "headrace/core/view.h"

namespace headrace {

// A view of strided memory with a runtime dtype. Copying copies the reference. A default-constructed view is null: no
// memory, dtype float32, shape [].
class TensorView {
 public:
  TensorView() = default;
  TensorView(void* data, DType dtype, const Shape& shape, Device device = {})
      : TensorView(data, dtype, shape, contiguous_strides(shape), device) {}
  TensorView(void* data, DType dtype, const Shape& shape, const Shape& strides, Device device = {})
      : data_(data), dtype_(dtype), device_(device), shape_(shape), strides_(strides) {}

  explicit operator bool() const { return data_ != nullptr; }
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t stride(int i) const { return strides_[i]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype_); }
  bool is_contiguous() const;

  // Returns indices [begin, end) of the first dimension.
  TensorView slice(int64_t begin, int64_t end) const { return narrow(0, begin, end); }
  // Returns indices [begin, end) of dimension `dim`.
  TensorView narrow(int dim, int64_t begin, int64_t end) const;
  // Returns index `i` of the first dimension; rank decreases by one.
  TensorView select(int64_t i) const;
  // Returns the same memory with another shape. Contiguous dimensions may be split or merged; a contiguous last
  // dimension may be split even if rows are strided. Error kInvalidArgument otherwise.
  TensorView reshape(const Shape& shape) const;

  // Returns the typed view. Error kInvalidArgument, naming `name`, if dtype or rank differ.
  template <class T, int R>
  View<T, R> as(std::string_view name) const {
    check_type(DTypeOf<std::remove_const_t<T>>::value, R, name);
    std::array<int64_t, R> dims{}, strides{};
    for (int i = 0; i < R; ++i) {
      dims[static_cast<size_t>(i)] = shape_[i];
      strides[static_cast<size_t>(i)] = strides_[i];
    }
    return View<T, R>(static_cast<T*>(data_), dims, strides);
  }

 private:
  void check_type(DType dtype, int rank, std::string_view name) const;

  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Device device_;
  Shape shape_, strides_;
};

// Owns dense row-major memory on one device. Movable, not copyable.
class Tensor {
 public:
  Tensor() = default;
  // Allocates; contents unspecified. Error kOutOfMemory; kInvalidArgument for a negative size or a byte count that
  // overflows.
  Tensor(DType dtype, const Shape& shape, DeviceRuntime& runtime = cpu_runtime());
  static Tensor zeros(DType dtype, const Shape& shape, DeviceRuntime& runtime = cpu_runtime());

  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor();

  TensorView view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT: a Tensor is accepted wherever a view is
  explicit operator bool() const { return static_cast<bool>(view_); }
  void* data() const { return view_.data(); }
  template <class T>
  T* data_as(std::string_view name = "tensor") const {
    HR_REQUIRE(view_.dtype() == DTypeOf<std::remove_const_t<T>>::value, ErrorCode::kInvalidArgument, name,
               ": dtype is ", name_of(view_.dtype()), ", expected ", name_of(DTypeOf<std::remove_const_t<T>>::value));
    return static_cast<T*>(view_.data());
  }
  DType dtype() const { return view_.dtype(); }
  const Shape& shape() const { return view_.shape(); }
  int64_t dim(int i) const { return view_.dim(i); }
  int64_t numel() const { return view_.numel(); }
  int64_t bytes() const { return view_.bytes(); }

 private:
  TensorView view_;
  DeviceRuntime* runtime_ = nullptr;  // not owned; outlives the tensor
};

// Returns `host` itself if `runtime` is the CPU's, else its copy on the device. Error kOutOfMemory.
Tensor copied_to(DeviceRuntime& runtime, Tensor host);

// number_at: returns the element at a host address as a double. set_number: converts and stores.
double number_at(const void* element, DType dtype);
void set_number(void* element, DType dtype, double value);

// Returns element `index` (row-major count over a CPU view, any strides) as a double.
double element_as_double(const TensorView& view, int64_t index);
// Converts and stores; integers are truncated.
void set_element(const TensorView& view, int64_t index, double value);

}  // namespace headrace
