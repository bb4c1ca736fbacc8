# headrace_commit(TARGET FILE): TARGET's source FILE, and no other, is compiled again when another commit is checked out.
# It includes "headrace_commit.h", which defines HEADRACE_VERSION and HEADRACE_COMMIT.
function(headrace_commit target file)
  set(header ${CMAKE_CURRENT_BINARY_DIR}/commit/headrace_commit.h)
  set(write ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D VERSION=${PROJECT_VERSION} -D OUTPUT=${header}
            -P ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake)
  execute_process(COMMAND ${write})  # for tools that read sources before anything is built
  execute_process(COMMAND git rev-parse --git-path logs/HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                  OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(log)
    get_filename_component(log ${log} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  endif()
  if(EXISTS "${log}")  # a line longer with each commit and each checkout
    add_custom_command(OUTPUT ${header} COMMAND ${write} DEPENDS ${log} ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake VERBATIM)
    target_sources(${target} PRIVATE ${header})
  endif()
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/commit)
  set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
