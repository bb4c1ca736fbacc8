# `cmake --install` gives the attention library: headers, archives and the package `headrace`; and, as components of
# their own, the program (apps/) and the CUDA part where it is built.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(layers core batch cache ops attention)
set(HEADRACE_PC_LIBRARIES "")  # of pkg-config, as the linker wants them: users before what they use
foreach(layer IN LISTS layers)
  if(NOT TARGET headrace_${layer})
    continue()
  endif()
  string(PREPEND HEADRACE_PC_LIBRARIES "-lheadrace_${layer} ")
  install(TARGETS headrace_${layer} EXPORT headraceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attention)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headrace/${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headrace
          COMPONENT attention)
endforeach()
install(EXPORT headraceTargets NAMESPACE headrace:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headrace COMPONENT attention)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/headraceConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/headraceConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headraceConfig.cmake ${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headrace COMPONENT attention)
file(RELATIVE_PATH HEADRACE_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(${PROJECT_SOURCE_DIR}/cmake/headrace.pc.in ${PROJECT_BINARY_DIR}/headrace.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/headrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT attention)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT attention)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT attention FILES_MATCHING PATTERN "*.md")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT attention FILES_MATCHING PATTERN "*.cpp" PATTERN async_llm.cpp EXCLUDE)
if(TARGET headrace_cuda)
  install(TARGETS headrace_cuda LIBRARY DESTINATION lib COMPONENT cuda)  # bin/headrace looks in ../lib
endif()
