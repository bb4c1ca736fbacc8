#!/usr/bin/env bash
# A device that fails in the midst of a text: what was made so far stays, and one sentence and the status say why it ends.
# Usage: failing_device_test.sh HEADRACE LIBRARY; LIBRARY: a libheadrace_cuda.so whose device fails so
set -u
failures=0
check() {  # check NAME EXPECTED FOUND
  if [[ "$2" != "$3" ]]; then
    echo "FAILED $1: expected '$2', found '$3'"
    failures=$((failures + 1))
  fi
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1" "$2" "$work/"  # the library beside the program is the one that it loads
generate() {
  "$work/headrace" generate "$(dirname "$0")/../../demo_models/fairy-hybrid" -p "Once upon a time" -n 32 --temperature 0 \
    --dtype float32 -t 1 --max-num-batched-tokens 64 "$@" 2>"$work/said"
}
whole=$(generate --device cpu)
made=$(generate --device cuda --no-graphs)
check "the status of a device that failed" 6 $?
check "one sentence" "headrace: cuda: waiting for the device failed: an illegal memory access was encountered" "$(cat "$work/said")"
check "the text made until then, and no more" "beginning" \
  "$([[ -n "$made" && "$whole" == "$made"?* ]] && echo beginning || echo "'$made' of '$whole'")"
json=$(generate --device cuda --no-graphs --json)
check "no report of a text that is not whole" "6 " "$? $json"

export FULL_DEVICE=1
check "a full device that is asked for by name" "4 headrace: cuda: cudaSetDevice failed: out of memory" \
  "$(generate --device cuda >"$work/text"; echo "$? $(cat "$work/said")")"
full=$(generate --device auto)
check "the text of the CPU in place of a full device" "$whole" "$full"
check "a warning says so" \
  "headrace: warning: device auto: cuda:0 cannot be used, the CPU runs the model: cuda: cudaSetDevice failed: out of memory" \
  "$(cat "$work/said")"
check "doctor names a full device and why it cannot be used" \
  "gpu      cuda:0 a device that fails, 1.1 GB, compute capability 9.0: cannot be used: cuda: cudaSetDevice failed: out of memory" \
  "$("$work/headrace" doctor | grep '^gpu ')"

[[ $failures -eq 0 ]] && echo "all good"
exit "$failures"
