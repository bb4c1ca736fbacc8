#include "headrace/core/tensor.h"

#include <utility>

#include "headrace/core/device_runtime.h"

namespace headrace {

bool TensorView::is_contiguous() const {
  int64_t step = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return false;
    step *= shape_[i];
  }
  return true;
}

TensorView TensorView::narrow(int dim, int64_t begin, int64_t end) const {
  HR_REQUIRE(dim >= 0 && dim < rank() && 0 <= begin && begin <= end && end <= shape_[dim], ErrorCode::kInvalidArgument,
             "tensor: range [", begin, ", ", end, ") of dimension ", dim, " is outside shape ", shape_);
  Shape shape = shape_;
  shape[dim] = end - begin;
  return {static_cast<char*>(data_) + begin * strides_[dim] * size_of(dtype_), dtype_, shape, strides_, device_};
}

TensorView TensorView::select(int64_t i) const {
  const TensorView one = slice(i, i + 1);
  std::array<int64_t, Shape::kMaxRank> dims{}, steps{};
  for (int d = 1; d < rank(); ++d) {
    dims[static_cast<size_t>(d - 1)] = shape_[d];
    steps[static_cast<size_t>(d - 1)] = strides_[d];
  }
  const auto count = static_cast<size_t>(rank() - 1);
  return {one.data(), dtype_, Shape(std::span<const int64_t>(dims.data(), count)),
          Shape(std::span<const int64_t>(steps.data(), count)), device_};
}

namespace {

// Sets the strides of shape `to` over the memory of `view`; false if that is impossible. Dense adjacent dimensions form
// one run, and a dimension of `to` must stay inside a run.
bool reshaped_strides(const TensorView& view, const Shape& to, Shape& result) {
  int i = view.rank() - 1, o = to.rank() - 1;
  while (o >= 0 && to[o] == 1) result[o--] = 1;
  while (i >= 0) {
    int64_t run = view.dim(i), step = view.stride(i);
    for (--i; i >= 0 && (run == 1 || view.dim(i) == 1 || view.stride(i) == run * step); --i) {
      if (run == 1) step = view.stride(i);
      run *= view.dim(i);
    }
    for (; o >= 0 && (run > 1 || to[o] == 1); --o) {
      if (run % to[o] != 0) return false;
      result[o] = step;
      run /= to[o];
      step *= to[o];
    }
    if (run > 1) return false;
  }
  return o < 0;
}

}  // namespace

TensorView TensorView::reshape(const Shape& shape) const {
  HR_REQUIRE(shape.numel() == numel(), ErrorCode::kInvalidArgument, "tensor: shape ", shape_, " has ", numel(),
             " elements, shape ", shape, " has ", shape.numel());
  if (numel() == 0 || is_contiguous()) return {data_, dtype_, shape, device_};
  Shape strides = shape;
  HR_REQUIRE(reshaped_strides(*this, shape, strides), ErrorCode::kInvalidArgument, "tensor: strides ", strides_,
             " of shape ", shape_, " do not allow shape ", shape, " without a copy");
  return {data_, dtype_, shape, strides, device_};
}

void TensorView::check_type(DType dtype, int rank_wanted, std::string_view name) const {
  HR_REQUIRE(dtype_ == dtype, ErrorCode::kInvalidArgument, name, ": dtype is ", name_of(dtype_), ", expected ",
             name_of(dtype));
  HR_REQUIRE(rank() == rank_wanted, ErrorCode::kInvalidArgument, name, ": shape ", shape_, " has ", rank(),
             " dimensions, expected ", rank_wanted);
}

namespace {

size_t checked_bytes(DType dtype, const Shape& shape) {
  int64_t bytes = size_of(dtype);
  bool fits = true;
  for (int i = 0; i < shape.rank(); ++i) fits &= shape[i] >= 0 && !__builtin_mul_overflow(bytes, shape[i], &bytes);
  HR_REQUIRE(fits, ErrorCode::kInvalidArgument, "tensor: shape is ", shape,
             ", expected sizes of 0 or more and at most 2^63 - 1 bytes");
  return static_cast<size_t>(bytes);
}

}  // namespace

Tensor::Tensor(DType dtype, const Shape& shape, DeviceRuntime& runtime) : runtime_(&runtime) {
  view_ = TensorView(runtime.allocate(checked_bytes(dtype, shape)), dtype, shape, runtime.device());
}

Tensor Tensor::zeros(DType dtype, const Shape& shape, DeviceRuntime& runtime) {
  Tensor tensor(dtype, shape, runtime);
  runtime.fill_zero(tensor.data(), static_cast<size_t>(tensor.bytes()));
  return tensor;
}

Tensor::Tensor(Tensor&& other) noexcept
    : view_(std::exchange(other.view_, {})), runtime_(std::exchange(other.runtime_, nullptr)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    this->~Tensor();
    view_ = std::exchange(other.view_, {});
    runtime_ = std::exchange(other.runtime_, nullptr);
  }
  return *this;
}

Tensor::~Tensor() {
  if (runtime_ != nullptr) runtime_->release(view_.data(), static_cast<size_t>(view_.bytes()));
}

Tensor copied_to(DeviceRuntime& runtime, Tensor host) {
  if (runtime.device().type == DeviceType::kCPU) return host;
  Tensor copy(host.dtype(), host.shape(), runtime);
  runtime.copy_to_device(copy.data(), host.data(), static_cast<size_t>(host.bytes()));
  return copy;
}

namespace {

void* element_of(const TensorView& view, int64_t index) {
  int64_t at = 0;
  for (int i = view.rank() - 1; i >= 0; --i) {
    at += index % view.dim(i) * view.stride(i);
    index /= view.dim(i);
  }
  return static_cast<char*>(view.data()) + at * size_of(view.dtype());
}

}  // namespace

double number_at(const void* element, DType dtype) {
  switch (dtype) {
    case DType::kF32: return *static_cast<const float*>(element);
    case DType::kF64: return *static_cast<const double*>(element);
    case DType::kBF16: return static_cast<float>(*static_cast<const BF16*>(element));
    case DType::kF16: return static_cast<float>(*static_cast<const F16*>(element));
    case DType::kI32: return *static_cast<const int32_t*>(element);
    case DType::kI64: return static_cast<double>(*static_cast<const int64_t*>(element));
    case DType::kU8: return *static_cast<const uint8_t*>(element);
    case DType::kE4M3: return static_cast<float>(*static_cast<const E4M3*>(element));
    case DType::kI8: return *static_cast<const int8_t*>(element);
  }
  return 0;
}

void set_number(void* element, DType dtype, double value) {
  switch (dtype) {
    case DType::kF32: *static_cast<float*>(element) = static_cast<float>(value); return;
    case DType::kF64: *static_cast<double*>(element) = value; return;
    case DType::kBF16: *static_cast<BF16*>(element) = BF16(static_cast<float>(value)); return;
    case DType::kF16: *static_cast<F16*>(element) = F16(static_cast<float>(value)); return;
    case DType::kI32: *static_cast<int32_t*>(element) = static_cast<int32_t>(value); return;
    case DType::kI64: *static_cast<int64_t*>(element) = static_cast<int64_t>(value); return;
    case DType::kU8: *static_cast<uint8_t*>(element) = static_cast<uint8_t>(value); return;
    case DType::kE4M3: *static_cast<E4M3*>(element) = E4M3(static_cast<float>(value)); return;
    case DType::kI8: *static_cast<int8_t*>(element) = static_cast<int8_t>(value); return;
  }
}

double element_as_double(const TensorView& view, int64_t index) {
  return number_at(element_of(view, index), view.dtype());
}

void set_element(const TensorView& view, int64_t index, double value) {
  set_number(element_of(view, index), view.dtype(), value);
}

}  // namespace headrace
