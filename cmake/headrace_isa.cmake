# CPU kernels: one source per op, built once per instruction set. Flags are per object library, never per
# function: target attributes do not reach the lambdas inside. Each build sees HR_ISA, the name of the namespace
# that its entry points live in (headrace::cpu::HR_ISA), and HR_ISA_<NAME> = 1.
set(HEADRACE_ISA_FLAGS_portable "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(HEADRACE_ISAS portable avx2 avx512 amx)
  set(HEADRACE_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(HEADRACE_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(HEADRACE_ISA_FLAGS_amx ${HEADRACE_ISA_FLAGS_avx512} -mavx512bf16 -mamx-tile -mamx-bf16)
else()
  set(HEADRACE_ISAS portable)
endif()

# Adds one object library per instruction set to `target`; sources are relative to the caller.
function(headrace_isa_sources target)
  foreach(isa IN LISTS HEADRACE_ISAS)
    set(objects ${target}_${isa})
    add_library(${objects} OBJECT ${ARGN})
    target_compile_features(${objects} PUBLIC cxx_std_20)
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_compile_options(${objects} PRIVATE -O3 -ffp-contract=fast -fno-math-errno ${HEADRACE_ISA_FLAGS_${isa}})
    string(TOUPPER ${isa} upper)
    target_compile_definitions(${objects} PRIVATE HR_ISA=${isa} HR_ISA_${upper}=1)
    target_link_libraries(${objects} PRIVATE headrace_warnings)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
    string(TOUPPER ${isa} upper)
    target_compile_definitions(${target} PRIVATE HR_HAVE_${upper}=1)
  endforeach()
endfunction()
