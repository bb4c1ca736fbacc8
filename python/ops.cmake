# Sources of headrace.ops. The module is built for size, but an op's arguments are converted before every kernel.
set(op_sources src/op_call.cpp src/op_requests.cpp src/ops_attention.cpp src/ops_gdn.cpp src/ops_rows.cpp src/tensor.cpp)
target_sources(headrace_python PRIVATE src/op_streams.cpp src/op_threads.cpp src/ops.cpp ${op_sources})
set_source_files_properties(${op_sources} PROPERTIES COMPILE_OPTIONS -O2)
