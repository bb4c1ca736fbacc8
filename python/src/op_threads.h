// Threads of ops on the CPU.
#pragma once

namespace headrace::python {

// Returns the number of threads that an op on the CPU may use: set_op_threads()'s, at first all cores of the process.
int op_threads();
// Error kInvalidArgument below 1.
void set_op_threads(int threads);

}  // namespace headrace::python
