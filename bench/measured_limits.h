// The limits that a share is counted against, measured in the same run.
#pragma once
#include <cstdint>
#include <functional>

namespace headrace::bench {

// Median seconds of `runs` calls after one that is not counted.
double median_seconds(int runs, const std::function<void()>& call);

// Bytes per second that `threads` threads read over 2 GiB.
double read_bandwidth(int threads);

// Bytes per second that `threads` threads read and write over 2 GiB, both counted.
double read_write_bandwidth(int threads);

// FLOP per second of oneDNN on bf16 512 x 4096 x 4096 with packed weights, on the OpenMP runtime's threads.
double matrix_rate();

}  // namespace headrace::bench
