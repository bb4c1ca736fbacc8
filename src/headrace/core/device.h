// Device types and indices.
#pragma once
#include <cstdint>
#include <string>

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

}  // namespace headrace
