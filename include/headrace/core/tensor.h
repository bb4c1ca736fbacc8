// Tensors, and what they are made of: devices, shapes and typed views. Tensor owns memory; TensorView refers to it with
// a runtime dtype, View<T, R> with a static one.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "headrace/core/dtype.h"
#include "headrace/core/error.h"

namespace headrace {

enum class DeviceType : uint8_t { kCPU, kCUDA };

struct Device {
  DeviceType type = DeviceType::kCPU;
  int32_t index = 0;
  bool operator==(const Device&) const = default;
};
std::string to_string(Device device);  // "cpu", "cuda:0"

// Memory and streams of a device (device_runtime.h).
class DeviceRuntime;
// The CPU's runtime: stateless, so one object serves the process.
DeviceRuntime& cpu_runtime();

// A short list of dimensions. Value type; rank 0 is a scalar.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);  // Error kInvalidArgument past eight dimensions

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return dims_[static_cast<size_t>(i)]; }
  int64_t numel() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};
void append_to(std::string& out, const Shape& shape);  // "[2, 3]"
std::ostream& operator<<(std::ostream& out, const Shape& shape);

// Strides of a dense row-major array of `shape`.
Shape contiguous_strides(const Shape& shape);

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
