// The GPUs of this machine, as doctor reports them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/ops/cuda_module.h"

namespace headrace::app {

struct GpuReport {
  struct Gpu {
    CudaDevice device;
    int64_t free_bytes = 0;
    std::string why_not;  // it cannot be used; empty where it can
  };
  std::vector<Gpu> gpus;    // in the order of their indices
  std::string driver;       // the release of NVIDIA's driver, such as 580.95.05; empty where the system does not say
  int32_t driver_cuda = 0;  // the newest CUDA that it supports: 13000 for 13.0
  std::string why_none;     // empty where there are GPUs
};

// Starts every GPU.
GpuReport report_gpus();

// Lines "gpu ..." and "driver ...".
std::string lines_of(const GpuReport& report);
// The members gpus, driver, driver_cuda and why_no_gpu of a JSON object.
std::string json_of(const GpuReport& report);

}  // namespace headrace::app
