#!/usr/bin/env bash
# The program from outside: exit statuses, the same text again, JSON, closed pipes.
set -u
headrace="$1"
failures=0
check() {  # check NAME EXPECTED FOUND
  if [[ "$2" != "$3" ]]; then
    echo "FAILED $1: expected '$2', found '$3'"
    failures=$((failures + 1))
  fi
}
status() { "$@" >/dev/null 2>&1; echo $?; }

one=$("$headrace" generate -p "Once upon a time" -n 32 --temperature 0 -t 1)
check "same text again" "$one" "$("$headrace" generate -p "Once upon a time" -n 32 --temperature 0 -t 1)"
check "same text with two threads" "$one" "$("$headrace" generate -p "Once upon a time" -n 32 --temperature 0 -t 2)"
check "json holds the ids" 8 "$("$headrace" generate -p "Once" -n 8 --temperature 0 --json | grep -o '"ids": \[[^]]*\]' | tr -cd ', ' | tr -d ' ' | wc -c | awk '{print $1 + 1}')"
check "version" 0 "$(status "$headrace" --version)"
check "no command" 2 "$(status "$headrace")"
check "unknown flag" 2 "$(status "$headrace" generate -p x --no-such-flag)"
check "bad parameter" 2 "$(status "$headrace" generate -p x --temperature -1)"
check "unknown backend" 2 "$(status "$headrace" generate -p x --backend cuda)"
check "adapter of another model" 3 "$(status "$headrace" generate -p x --adapter "$(dirname "$0")/../golden/dream_lora")"
check "missing model" 3 "$(status "$headrace" generate /nonexistent -p x)"
"$headrace" generate -p "Once" -n 200 --temperature 0 --ignore-eos 2>/tmp/headrace_pipe.$$ | head -c 10 >/dev/null
check "closed pipe" "0 " "${PIPESTATUS[0]} $(cat /tmp/headrace_pipe.$$)"
rm -f /tmp/headrace_pipe.$$
message=$("$headrace" generate -p x --backend cuda 2>&1)
check "one sentence" 1 "$(wc -l <<<"$message")"
[[ $failures -eq 0 ]] && echo "all good"
exit "$failures"
