#!/bin/bash
# A benchmark of a device says in one sentence that there is none and ends with the program's status.
said=$(CUDA_VISIBLE_DEVICES= "$1" 2>&1 >/dev/null)
status=$?
[ $status = 6 ] || { echo "status $status, expected 6: $said"; exit 1; }
[ "$(wc -l <<<"$said")" = 1 ] && [[ "$said" == "headrace: "* ]] || { echo "no sentence: $said"; exit 1; }
