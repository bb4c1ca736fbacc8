# Warnings and sanitizers for every target of ours.
add_library(headrace_warnings INTERFACE)
target_compile_options(headrace_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-unused-parameter
                       -Wno-missing-field-initializers)  # designated initialisers leave the rest at its default
if(HEADRACE_SANITIZE)
  add_compile_options(-fsanitize=${HEADRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${HEADRACE_SANITIZE})
endif()
