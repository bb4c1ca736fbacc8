# One library per folder of src/headrace. A folder links only folders that come before it in HEADRACE_LAYERS:
# a dependency on a later one fails at configure time. tools/check_layers reads the includes themselves. A folder's public
# headers are in include/headrace.
set(HEADRACE_LAYERS core batch cache ops attention gguf text chat request weights layers models sampling
                    decoding engine llm http hub serve)

# headrace_library(NAME SOURCES ... [DEPENDS folders...] [PRIVATE targets...])
function(headrace_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  list(FIND HEADRACE_LAYERS ${name} rank)
  if(rank LESS 0)
    message(FATAL_ERROR "headrace: '${name}' is no layer; layers are: ${HEADRACE_LAYERS}")
  endif()
  foreach(dep IN LISTS arg_DEPENDS)
    list(FIND HEADRACE_LAYERS ${dep} dep_rank)
    if(dep_rank LESS 0 OR NOT dep_rank LESS rank)
      message(FATAL_ERROR "headrace: '${name}' may not depend on '${dep}'")
    endif()
  endforeach()
  add_library(headrace_${name} STATIC ${arg_SOURCES})
  add_library(headrace::${name} ALIAS headrace_${name})
  set_target_properties(headrace_${name} PROPERTIES EXPORT_NAME ${name})
  if(HEADRACE_SANITIZE)  # what is optimised further compiles twice as long as it saves in the tests
    target_compile_options(headrace_${name} PRIVATE -O1)
  endif()
  target_compile_features(headrace_${name} PUBLIC cxx_std_20)
  target_include_directories(headrace_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                     $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                                                     $<INSTALL_INTERFACE:include>)
  list(TRANSFORM arg_DEPENDS PREPEND headrace_)
  target_link_libraries(headrace_${name} PUBLIC ${arg_DEPENDS}
                                         PRIVATE $<BUILD_INTERFACE:headrace_warnings> ${arg_PRIVATE})
endfunction()
