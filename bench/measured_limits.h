// The limits that a share is counted against, measured in the same run.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace headrace::bench {

inline constexpr int64_t kLimitBytes = int64_t{2} << 30;  // no cache answers for so much memory

// Median seconds of `runs` calls after one that is not counted.
double median_seconds(int runs, const std::function<void()>& call);

// Bytes per second that `threads` threads read over `bytes` of memory, all of it resident.
double read_bandwidth(int threads, int64_t bytes = kLimitBytes);
// As above with a software prefetch of every line ahead of its load, as kernels that stream weights have it.
double prefetched_read_bandwidth(int threads, int64_t bytes = kLimitBytes);

// Bytes per second that `threads` threads read and write over `bytes` of memory, both counted.
double read_write_bandwidth(int threads, int64_t bytes = kLimitBytes);

// FLOP per second of oneDNN on bf16 512 x 4096 x 4096 with packed weights. Absent when oneDNN is not built in, or does
// not multiply bf16 on this machine.
std::optional<double> matrix_rate(int threads);
std::string_view why_no_matrix_rate();  // which of the two

}  // namespace headrace::bench
