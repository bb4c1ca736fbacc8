# CPU kernels: one source per op, built once per instruction set. Flags are per object library, never per
# function: target attributes do not reach the lambdas inside. Each build sees HR_ISA, the name of the namespace
# that its entry points live in (headrace::cpu::HR_ISA), and HR_ISA_<NAME> = 1.
set(HEADRACE_ISAS all CACHE STRING
    "CPU kernel sets: all, runnable (on this machine), native (portable and the best runnable one), or a list of names")
set(HEADRACE_ISA_FLAGS_portable "")
set(headrace_isas portable)  # every set of this processor family, the best last
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(headrace_isas portable avx2 avx512 avx512bf16 amx)
  set(HEADRACE_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(HEADRACE_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(HEADRACE_ISA_FLAGS_avx512bf16 ${HEADRACE_ISA_FLAGS_avx512} -mavx512bf16 -mavx512vnni)
  set(HEADRACE_ISA_FLAGS_amx ${HEADRACE_ISA_FLAGS_avx512bf16} -mamx-tile -mamx-bf16 -mamx-int8)
endif()

# The sets of `isas` that run on the machine that builds, as /proc/cpuinfo says; all of them where there is none.
function(headrace_runnable_isas result isas)
  if(NOT CMAKE_CROSSCOMPILING AND EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo cpu_flags REGEX "^flags" LIMIT_COUNT 1)
    set(flag_avx2 avx2)
    set(flag_avx512 avx512bw)
    set(flag_avx512bf16 avx512_bf16)
    set(flag_amx amx_int8)
    foreach(isa IN LISTS isas)
      if(DEFINED flag_${isa} AND NOT "${cpu_flags} " MATCHES " ${flag_${isa}} ")
        list(REMOVE_ITEM isas ${isa})
      endif()
    endforeach()
  endif()
  set(${result} ${isas} PARENT_SCOPE)
endfunction()

if(HEADRACE_ISAS STREQUAL "runnable")
  headrace_runnable_isas(headrace_isas "${headrace_isas}")
elseif(HEADRACE_ISAS STREQUAL "native")
  headrace_runnable_isas(runnable "${headrace_isas}")
  list(POP_BACK runnable best)
  set(headrace_isas portable ${best})
  list(REMOVE_DUPLICATES headrace_isas)
elseif(NOT HEADRACE_ISAS STREQUAL "all")
  foreach(isa IN LISTS HEADRACE_ISAS)
    if(NOT isa IN_LIST headrace_isas)
      message(FATAL_ERROR "headrace: HEADRACE_ISAS has '${isa}', expected all, runnable, native, or some of ${headrace_isas}")
    endif()
  endforeach()
  set(headrace_isas portable ${HEADRACE_ISAS})  # portable runs everywhere
  list(REMOVE_DUPLICATES headrace_isas)
endif()
message(STATUS "CPU kernel sets: ${headrace_isas}")

# headrace_isa_sources(TARGET DISPATCH file SOURCES files...): adds one object library per instruction set to TARGET.
# DISPATCH is the one source that sees which sets are built, as HR_HAVE_<NAME>. Files are relative to the caller.
function(headrace_isa_sources target)
  cmake_parse_arguments(arg "" "DISPATCH" "SOURCES" ${ARGN})
  set(optimisation -O3)
  if(HEADRACE_SANITIZE)  # a third of the time to compile
    set(optimisation -O1)
  endif()
  foreach(isa IN LISTS headrace_isas)
    set(objects ${target}_${isa})
    add_library(${objects} OBJECT ${arg_SOURCES})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD OFF)  # kernels are optimised apart, and in parallel
    target_compile_features(${objects} PUBLIC cxx_std_20)
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_compile_options(${objects} PRIVATE ${optimisation} -ffp-contract=fast -fno-math-errno ${HEADRACE_ISA_FLAGS_${isa}})
    string(TOUPPER ${isa} upper)
    target_compile_definitions(${objects} PRIVATE HR_ISA=${isa} HR_ISA_${upper}=1)
    target_link_libraries(${objects} PRIVATE headrace_warnings)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
    set_property(SOURCE ${arg_DISPATCH} APPEND PROPERTY COMPILE_DEFINITIONS HR_HAVE_${upper}=1)
  endforeach()
endfunction()
