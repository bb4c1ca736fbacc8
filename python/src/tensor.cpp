#include "tensor.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "headrace/core/error.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;
using dlpack::BorrowedTensor, dlpack::ExchangeAPI;

struct Name {
  std::string_view op;
  const char* argument;
};
void append_to(std::string& out, const Name& name) { out += str(name.op, ": ", name.argument); }

std::string type_name_of(nb::handle object) { return nb::str(object.type().attr("__name__")).c_str(); }

const ExchangeAPI* found_exchange(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), ExchangeAPI::kCapsule)) return nullptr;
  auto* api = static_cast<ExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), ExchangeAPI::kCapsule));
  while (api != nullptr && api->major != ExchangeAPI::kMajor) api = api->previous;
  return api != nullptr && api->borrow != nullptr ? api : nullptr;
}

// Returns the table of a type. Looks it up once: the list holds the types, so that no other type gets their address.
const ExchangeAPI* exchange_of(nb::handle object) {
  struct Known {
    PyObject* type;
    const ExchangeAPI* api;
  };
  static auto& known = *new std::vector<Known>;  // guarded by the GIL, and never destroyed: types outlive the module
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  for (const Known& entry : known) {
    if (entry.type == type) return entry.api;
  }
  const ExchangeAPI* api = found_exchange(type);
  Py_INCREF(type);
  known.push_back({type, api});
  return api;
}

// Only torch's tensors have this attribute. Ops under torch.no_grad() are not recorded.
void refuse_gradient(nb::handle object, const Name& name) {
  static PyObject* const attribute = PyUnicode_InternFromString("requires_grad");
  const nb::object requires_grad = nb::steal(PyObject_GetAttr(object.ptr(), attribute));
  if (!requires_grad.is_valid()) return PyErr_Clear();
  if (requires_grad.ptr() != Py_True) return;
  const bool records = nb::cast<bool>(nb::module_::import_("torch").attr("is_grad_enabled")());
  HR_REQUIRE(!records, ErrorCode::kInvalidArgument, name,
             " requires a gradient, and headrace's ops have none; expected a detached tensor, or a call under "
             "torch.no_grad() or torch.inference_mode()");
}

// "complex64"; "another float8" of those that DLPack numbers.
std::string name_of(dlpack::DataType type) {
  constexpr std::array<const char*, 7> kNames = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string lanes = type.lanes == 1 ? "" : str("x", int{type.lanes});
  return str(type.code < kNames.size() ? kNames[type.code] : "another float", int{type.bits}, lanes);
}

DType dtype_of(dlpack::DataType type, const Name& name) {
  if (type.lanes == 1) {
    switch (type.code << 8 | type.bits) {
      case dlpack::kFloat << 8 | 32: return DType::kF32;
      case dlpack::kFloat << 8 | 16: return DType::kF16;
      case dlpack::kFloat << 8 | 64: return DType::kF64;
      case dlpack::kBFloat << 8 | 16: return DType::kBF16;
      case dlpack::kFloat8E4M3FN << 8 | 8: return DType::kE4M3;
      case dlpack::kInt << 8 | 8: return DType::kI8;
      case dlpack::kInt << 8 | 32: return DType::kI32;
      case dlpack::kInt << 8 | 64: return DType::kI64;
      case dlpack::kUInt << 8 | 8: return DType::kU8;
      default: break;
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              str(name, ": dtype is ", name_of(type), ", expected a float or integer dtype of headrace"));
}

headrace::Device device_of(dlpack::Device device, const Name& name) {
  switch (device.type) {
    case dlpack::kCPU:
    case dlpack::kCUDAHost: return {};
    case dlpack::kCUDA:
    case dlpack::kCUDAManaged: return {DeviceType::kCUDA, device.index};
    default:
      throw Error(ErrorCode::kUnsupported,
                  str(name, " is on a device of DLPack type ", device.type, ", expected the CPU or a CUDA device"));
  }
}

// A null view means "not given" to ops, so a tensor without elements gets an address.
void* address_of(const BorrowedTensor& tensor) {
  alignas(64) static char nothing[64];
  if (tensor.data == nullptr) return nothing;
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

TensorView view_of(const BorrowedTensor& tensor, const Name& name) {
  HR_REQUIRE(tensor.rank <= Shape::kMaxRank, ErrorCode::kInvalidArgument, name, " has ", tensor.rank,
             " dimensions, expected at most ", Shape::kMaxRank);
  const auto rank = static_cast<size_t>(tensor.rank);
  const Shape shape(std::span<const int64_t>(tensor.shape, rank));
  const DType dtype = dtype_of(tensor.dtype, name);
  const headrace::Device device = device_of(tensor.device, name);
  if (tensor.strides == nullptr) return {address_of(tensor), dtype, shape, device};
  return {address_of(tensor), dtype, shape, Shape(std::span<const int64_t>(tensor.strides, rank)), device};
}

nb::ndarray<nb::ro> held_array(nb::handle object, const Name& name, Access access) {
  nb::ndarray<nb::ro> readable;
  HR_REQUIRE(nb::try_cast(object, readable, /*convert=*/false), ErrorCode::kInvalidArgument, name, " is a ",
             type_name_of(object), ", expected a tensor (torch, numpy, or anything with __dlpack__)");
  if (access == Access::kRead) return readable;
  nb::ndarray<> writable;
  HR_REQUIRE(nb::try_cast(object, writable, /*convert=*/false), ErrorCode::kInvalidArgument, name,
             " is read-only, and this op writes it");
  return readable;
}

}  // namespace

TensorView BorrowedTensors::borrow(nb::handle object, std::string_view op, const char* argument, Access access) {
  const Name name{op, argument};
  const ExchangeAPI* exchange = exchange_of(object);
  if (std::exchange(is_first_, false)) exchange_ = exchange;
  BorrowedTensor tensor;
  if (exchange != nullptr) {
    refuse_gradient(object, name);
    if (exchange->borrow(object.ptr(), &tensor) != 0) nb::raise_python_error();
    return view_of(tensor, name);
  }
  const nb::ndarray<nb::ro>& array = held_.emplace_back(held_array(object, name, access));
  const nb::dlpack::dtype dtype = array.dtype();
  tensor = {.data = const_cast<void*>(array.data()),
            .device = {array.device_type(), array.device_id()},
            .rank = static_cast<int32_t>(array.ndim()),
            .dtype = {dtype.code, dtype.bits, dtype.lanes},
            .shape = const_cast<int64_t*>(array.shape_ptr()),
            .strides = const_cast<int64_t*>(array.stride_ptr())};
  return view_of(tensor, name);
}

}  // namespace headrace::python
