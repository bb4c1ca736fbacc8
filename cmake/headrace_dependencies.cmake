# Libraries from the system's packages. The attention library needs the system's threads alone.
find_package(Threads REQUIRED)

if(HEADRACE_ENGINE)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
  find_package(simdjson REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(fmt REQUIRED)
  find_package(spdlog REQUIRED)
  find_package(Boost 1.81 REQUIRED)  # Asio and Beast, headers alone
  find_package(CURL REQUIRED)
  find_package(OpenSSL REQUIRED)  # libcrypto's hashes; libcurl links it already
  find_package(tomlplusplus REQUIRED)
  pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)
  if(HEADRACE_ONEDNN)
    find_package(dnnl REQUIRED)
    find_package(OpenMP REQUIRED COMPONENTS CXX)  # oneDNN's threads, of which it is told to start none
  endif()
endif()
if(HEADRACE_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()
