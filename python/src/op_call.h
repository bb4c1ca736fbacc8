// OpCall: a call of headrace.ops. It takes tensors, checks them by their Python names, and finds the kernels of their
// device.
#pragma once
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/op_set.h"
#include "module.h"
#include "op_streams.h"
#include "op_threads.h"
#include "released_gil.h"
#include "tensor.h"

namespace headrace::python {

enum class DTypes : uint8_t {
  kFloat,  // float32, bfloat16, float16
  kPool,   // of kFloat, float8_e4m3fn, int8
  kF32,
  kI32,
  kI64,
};

inline constexpr int64_t kAnySize = -1;  // of a dimension

// One call of an op. Its tensors must outlive it. Needs the GIL except for run().
class OpCall {
 public:
  explicit OpCall(std::string_view op, Determinism determinism = Determinism::kFast)
      : op_(op), determinism_(determinism) {}

  // Returns the tensor's view. Errors kInvalidArgument name the op and `name`: no tensor, another dtype or number of
  // dimensions, another device than the first tensor's, read-only.
  TensorView read(nanobind::handle tensor, const char* name, DTypes dtypes, int rank) {
    return take(tensor, name, dtypes, rank, Access::kRead);
  }
  TensorView write(nanobind::handle tensor, const char* name, DTypes dtypes, int rank) {
    return take(tensor, name, dtypes, rank, Access::kWrite);
  }
  // Returns a null view for None.
  TensorView read_if(nanobind::handle tensor, const char* name, DTypes dtypes, int rank) {
    return tensor.is_none() ? TensorView() : read(tensor, name, dtypes, rank);
  }
  TensorView write_if(nanobind::handle tensor, const char* name, DTypes dtypes, int rank) {
    return tensor.is_none() ? TensorView() : write(tensor, name, dtypes, rank);
  }

  // Throws Error kInvalidArgument unless the view, if not null, has this shape and a dense last dimension.
  void expect_shape(const char* name, const TensorView& view, std::initializer_list<int64_t> shape) const;
  void expect_dtype(const char* name, const TensorView& view, DType dtype) const;
  void expect_dense(const char* name, const TensorView& view) const;

  std::string_view op() const { return op_; }
  headrace::Device device() const { return device_.value(); }  // after the first tensor
  // "paged_attention: q", for errors.
  std::string named(const char* name) const { return str(op_, ": ", name); }

  // Runs one op of the device's table with the GIL released. On a GPU it is queued on the current stream of the first
  // tensor's library.
  template <class Args>
  void run(void (*OpSet::*op)(const Args&, const OpContext&), const Args& args) const {
    OpContext context{.threads = op_threads(), .determinism = determinism_};
    const OpSet& ops = this->ops();
    CallerStream* const stream = device().type == DeviceType::kCPU ? nullptr : &caller_stream();
    const ReleasedGil released;
    std::unique_lock<std::mutex> lock;
    if (stream != nullptr) {
      lock = std::unique_lock(stream->mutex);
      context.stream = stream->runtime->stream();
    }
    (ops.*op)(args, context);
  }

  // On a GPU: the current stream of the first tensor's library, as cudaStream_t, and its entry. Error kUnsupported if
  // the library does not tell it.
  void* stream() const;
  CallerStream& caller_stream() const;

 private:
  TensorView take(nanobind::handle tensor, const char* name, DTypes dtypes, int rank, Access access);
  const OpSet& ops() const;

  std::string_view op_;
  Determinism determinism_;
  std::optional<headrace::Device> device_;  // of the first tensor
  BorrowedTensors tensors_;
};

}  // namespace headrace::python
