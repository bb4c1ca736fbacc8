// The C interface by which a tensor library shows its tensors (DLPack 1, https://dmlc.github.io/dlpack): the attribute
// __dlpack_c_exchange_api__ of a tensor's type is a capsule of ExchangeAPI. Names are ours, the layout is the
// standard's.
#pragma once
#include <cstdint>

namespace headrace::python::dlpack {

enum DeviceCode : int32_t { kCPU = 1, kCUDA = 2, kCUDAHost = 3, kCUDAManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kBool = 6, kFloat8E4M3FN = 10 };

struct Device {
  int32_t type = kCPU, index = 0;
};
struct DataType {
  uint8_t code = kFloat, bits = 32;
  uint16_t lanes = 1;
};

// Shape and strides belong to the tensor; strides are in elements.
struct BorrowedTensor {
  void* data = nullptr;
  Device device;
  int32_t rank = 0;
  DataType dtype;
  int64_t* shape = nullptr;
  int64_t* strides = nullptr;  // null: dense
  uint64_t byte_offset = 0;
};

struct ExchangeAPI {
  static constexpr const char* kCapsule = "dlpack_exchange_api";
  static constexpr uint32_t kMajor = 1;

  uint32_t major, minor;
  ExchangeAPI* previous;  // of an older version, or null
  void (*allocate)();     // the next three are not used here: their types do not matter
  void (*from_object)();
  void (*to_object)();
  // Fills `out` from a tensor of the type that has this table; null if the library cannot. -1: a Python error is set.
  int (*borrow)(void* object, BorrowedTensor* out);
  // The stream on which the library queues work for the device now. -1: a Python error is set.
  int (*current_stream)(int32_t device_type, int32_t device_index, void** out);
};

}  // namespace headrace::python::dlpack
