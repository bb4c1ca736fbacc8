#!/bin/bash
# A benchmark of a device says in one sentence that there is none and ends with the program's status.
said=$(CUDA_VISIBLE_DEVICES= "$1" 2>&1 >/dev/null)
status=$?
[ $status = 6 ] || { echo "status $status, expected 6: $said"; exit 1; }
why='no NVIDIA driver is installed|the NVIDIA driver is too old: .+|no device can be used: .+'
[ "$(wc -l <<<"$said")" = 1 ] && [[ "$said" =~ ^headrace:\ cuda:\ ($why)$ ]] || { echo "no sentence that says why: $said"; exit 1; }
