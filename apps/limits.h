// What this machine can do, measured.
#pragma once
#include <cstdint>
#include <functional>

namespace headrace::app {

double read_bandwidth(int threads, int64_t bytes);        // bytes per second, median of several passes
double read_write_bandwidth(int threads, int64_t bytes);  // both directions counted
double matmul_rate(int threads);                          // flop/s of oneDNN, bf16 512 x 4096 x 4096
double median_seconds(int repetitions, const std::function<void()>& work);

}  // namespace headrace::app
