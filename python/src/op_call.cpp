#include "op_call.h"

#include <algorithm>
#include <array>

#include "headrace/core/error.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"

namespace headrace::python {
namespace {

bool is_one_of(DType dtype, DTypes dtypes) {
  const bool is_float = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  switch (dtypes) {
    case DTypes::kFloat: return is_float;
    case DTypes::kPool: return is_float || dtype == DType::kE4M3 || dtype == DType::kI8;
    case DTypes::kF32: return dtype == DType::kF32;
    case DTypes::kI32: return dtype == DType::kI32;
    case DTypes::kI64: return dtype == DType::kI64;
  }
  return false;
}

const char* name_of(DTypes dtypes) {
  switch (dtypes) {
    case DTypes::kFloat: return "float32, bfloat16 or float16";
    case DTypes::kPool: return "float32, bfloat16, float16, float8_e4m3fn or int8";
    case DTypes::kF32: return "float32";
    case DTypes::kI32: return "int32";
    case DTypes::kI64: return "int64";
  }
  return "another";
}

std::string text_of(std::initializer_list<int64_t> shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + (size == kAnySize ? "any" : str(size));
  return str("[", text, "]");
}

// Returns true if elements share memory; also for some layouts in which none do, those that are no nested blocks.
bool may_share_elements(const TensorView& view) {
  struct Axis {
    int64_t stride, size;
  };
  std::array<Axis, Shape::kMaxRank> axes = {};
  int count = 0;
  for (int i = 0; i < view.rank(); ++i) {
    if (view.dim(i) == 0) return false;
    if (view.dim(i) > 1) axes[static_cast<size_t>(count++)] = {view.stride(i), view.dim(i)};
  }
  std::sort(axes.begin(), axes.begin() + count, [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t last = 0;  // offset of the last element of the axes so far
  for (int i = 0; i < count; ++i) {
    const Axis& axis = axes[static_cast<size_t>(i)];
    if (axis.stride <= last) return true;
    last += axis.stride * (axis.size - 1);
  }
  return false;
}

}  // namespace

TensorView OpCall::take(nanobind::handle tensor, const char* name, DTypes dtypes, int rank, Access access) {
  const TensorView view = tensors_.borrow(tensor, op_, name, access);
  HR_REQUIRE(is_one_of(view.dtype(), dtypes), ErrorCode::kInvalidArgument, op_, ": ", name, ": dtype is ",
             headrace::name_of(view.dtype()), ", expected ", name_of(dtypes));
  HR_REQUIRE(view.rank() == rank, ErrorCode::kInvalidArgument, op_, ": ", name, ": shape is ", view.shape(),
             ", expected ", rank, " dimensions");
  HR_REQUIRE(access == Access::kRead || !may_share_elements(view), ErrorCode::kInvalidArgument, op_, ": ", name,
             ": shape ", view.shape(), " has strides ", view.strides(),
             ", by which elements share memory; expected none of those in what is written");
  if (!device_) device_ = view.device();
  HR_REQUIRE(view.device() == *device_, ErrorCode::kInvalidArgument, op_, ": ", name, " is on ",
             to_string(view.device()), ", expected ", to_string(*device_), ", where the first tensor is");
  return view;
}

void OpCall::expect_shape(const char* name, const TensorView& view, std::initializer_list<int64_t> shape) const {
  if (!view) return;
  bool same = view.rank() == static_cast<int>(shape.size());
  for (int i = 0; same && i < view.rank(); ++i) {
    const int64_t wanted = shape.begin()[i];
    same = wanted == kAnySize || wanted == view.dim(i);
  }
  HR_REQUIRE(same, ErrorCode::kInvalidArgument, op_, ": ", name, ": shape is ", view.shape(), ", expected ",
             text_of(shape));
  const int last = view.rank() - 1;
  HR_REQUIRE(last < 0 || view.dim(last) <= 1 || view.stride(last) == 1, ErrorCode::kInvalidArgument, op_, ": ", name,
             ": the last dimension's stride is ", view.stride(last), ", expected 1");
}

void OpCall::expect_dtype(const char* name, const TensorView& view, DType dtype) const {
  HR_REQUIRE(!view || view.dtype() == dtype, ErrorCode::kInvalidArgument, op_, ": ", name, ": dtype is ",
             headrace::name_of(view.dtype()), ", expected ", headrace::name_of(dtype));
}

void OpCall::expect_dense(const char* name, const TensorView& view) const {
  HR_REQUIRE(!view || view.is_contiguous(), ErrorCode::kInvalidArgument, op_, ": ", name, ": shape ", view.shape(),
             " has strides ", view.strides(), ", expected a dense tensor");
}

const OpSet& OpCall::ops() const {
  static const OpSet& cpu = cpu::select_kernel_set();
  return device().type == DeviceType::kCPU ? cpu : cuda_module().ops("cuda");
}

void* OpCall::stream() const {
  const dlpack::ExchangeAPI* exchange = tensors_.exchange();
  HR_REQUIRE(
      exchange != nullptr, ErrorCode::kUnsupported, op_, ": tensors on ", to_string(device()),
      " are of a library that does not tell its stream by __dlpack_c_exchange_api__, expected a torch that does, "
      "such as 2.15");
  void* stream = nullptr;
  if (exchange->current_stream(dlpack::kCUDA, device().index, &stream) != 0) nanobind::raise_python_error();
  return stream;
}

CallerStream& OpCall::caller_stream() const { return python::caller_stream(device().index, stream()); }

}  // namespace headrace::python
