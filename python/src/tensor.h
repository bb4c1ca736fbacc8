// Views of tensors of Python libraries, without copies.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string_view>
#include <vector>

#include "dlpack_exchange.h"
#include "headrace/core/tensor.h"

namespace headrace::python {

enum class Access : uint8_t { kRead, kWrite };

// Tensors of one call: anything with __dlpack__ or the buffer protocol. They must stay alive as long as this object, as
// arguments of a call do. Needs the GIL.
class BorrowedTensors {
 public:
  // Returns the tensor's view. `op` and `name` begin errors. Throws Error kInvalidArgument if `object` is no tensor,
  // its dtype or device is not one of headrace's, it is read-only and `access` is kWrite, or torch records gradients
  // and it requires one.
  TensorView borrow(nanobind::handle object, std::string_view op, const char* name, Access access);

  // Returns the exchange table of the first tensor's library; null if it has none.
  const dlpack::ExchangeAPI* exchange() const { return exchange_; }

 private:
  const dlpack::ExchangeAPI* exchange_ = nullptr;  // lives as long as its library
  bool is_first_ = true;
  std::vector<nanobind::ndarray<nanobind::ro>> held_;  // of libraries without an exchange table
};

}  // namespace headrace::python
