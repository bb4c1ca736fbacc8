#!/usr/bin/env bash
# Where the program looks for the side library: never in the current directory of its own accord; and what it says of one
# that it cannot load.
# Usage: loading_test.sh BIN PLANTED; PLANTED: a libheadrace_cuda.so that says so when it is loaded
set -u
bin="$1"
planted="$2"
failures=0
fail() {
  echo "FAILED $1"
  failures=$((failures + 1))
}
"$(dirname "$0")/../../tools/check_rpaths" "$bin"/* || fail "paths of what was built"

# In a directory where somebody left a library of that name; the doctor looks for devices.
doctor() { (cd "$(dirname "$planted")" && env "$@" "$bin/headrace" doctor 2>&1) | grep -c 'planted library was loaded'; }
[[ $(doctor -u LD_LIBRARY_PATH) -eq 0 ]] || fail "a library in the current directory was loaded"
if [[ ! -e "$bin/libheadrace_cuda.so" ]]; then  # else that one is found first
  [[ $(doctor LD_LIBRARY_PATH=.) -eq 1 ]] || fail "the planted library cannot be loaded at all, so that nothing was tested"
fi

# One that is found and cannot be loaded: why not, and not that no other place has one.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$bin/headrace" "$work/"
printf 'no library, whatever its name says, and longer than a header: %0200d' 0 >"$work/libheadrace_cuda.so"
said=$("$work/headrace" doctor 2>&1 | grep '^gpu ')
[[ "$said" == *"cuda: the CUDA part of headrace could not be loaded: $work/libheadrace_cuda.so: "* ]] || fail "a library that is none: $said"

[[ $failures -eq 0 ]] && echo "all good"
exit "$failures"
