# cmake -D SOURCE=folder -D VERSION=version -D OUTPUT=header -P write_commit.cmake: writes the version, and the commit of SOURCE,
# "unknown" where SOURCE is no checkout of its own. The header keeps its time where nothing changed.
set(commit "")
execute_process(COMMAND git rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(REAL_PATH "${SOURCE}" source)
if(top STREQUAL source)  # else a tarball, perhaps within somebody else's checkout
  execute_process(COMMAND git describe --always --tags --abbrev=12 WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define HEADRACE_VERSION \"${VERSION}\"\n#define HEADRACE_COMMIT \"${commit}\"\n")
