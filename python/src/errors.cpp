// headrace::Error becomes a class of headrace/errors.py.
#include "headrace/core/error.h"

#include "module.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kModelFile: return "model_file";
    case ErrorCode::kOutOfMemory: return "out_of_memory";
    case ErrorCode::kNoDevice: return "no_device";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kCuda: return "cuda";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kInternal: return "internal";
  }
  return "internal";
}

}  // namespace

nb::object exception_of(const Error& error) {
  return nb::module_::import_("headrace.errors").attr("error_of")(name_of(error.code()), error.what());
}

void add_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const nb::object exception = exception_of(error);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}

}  // namespace headrace::python
