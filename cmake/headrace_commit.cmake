# headrace_commit_library(NAME FILE): a library of one source, which includes "headrace_commit.h" for HEADRACE_VERSION and
# HEADRACE_COMMIT. Nothing else is compiled again when another commit is checked out. The library links no other: what
# links one would write its header, and so compile, only when that other is complete.
function(headrace_commit_library name file)
  set(header ${CMAKE_CURRENT_BINARY_DIR}/commit/headrace_commit.h)
  set(write ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D VERSION=${PROJECT_VERSION} -D OUTPUT=${header}
            -P ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake)
  execute_process(COMMAND ${write})  # for tools that read sources before anything is built
  add_library(${name} STATIC ${file})
  execute_process(COMMAND git rev-parse --git-path logs/HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                  OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(log)
    get_filename_component(log ${log} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  endif()
  if(EXISTS "${log}")  # each commit and each checkout adds a line
    add_custom_command(OUTPUT ${header} COMMAND ${write} DEPENDS ${log} ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake VERBATIM)
    target_sources(${name} PRIVATE ${header})
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/commit ${PROJECT_SOURCE_DIR}/include
                             ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE headrace_warnings)
endfunction()
