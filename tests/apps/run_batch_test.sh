#!/usr/bin/env bash
# headrace run-batch from outside: results, failures of lines, refusals, and runs that end at any moment.
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
message() { "$@" 2>&1 >/dev/null; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
# line ID BODY
line() { printf '{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {%s}}\n' "$1" "$2"; }
batch() { "$headrace" run-batch -i in.jsonl -o out.jsonl --deterministic -c 512 "$@"; }

beginnings=("Once upon a time" "The old woman" "There was a king who" "In a dark forest")
for i in {1..48}; do
  prompt="\"prompt\": \"${beginnings[i % 4]}\""
  case $((i % 6)) in
    0) line "greedy $i" "$prompt, \"max_tokens\": $((i % 24 + 8)), \"temperature\": 0, \"logprobs\": 0" ;;
    1) line "drawn $i" "$prompt, \"max_tokens\": 20, \"temperature\": 0.9" ;;
    2) line "choices $i" "$prompt, \"max_tokens\": 12, \"n\": 3, \"ignore_eos\": true" ;;
    3) line "seed $i" "$prompt, \"max_tokens\": 30, \"seed\": $i, \"stop\": [\"the\", \".\"]" ;;
    4) line "prompts $i" "\"prompt\": [\"She said\", \"${beginnings[i % 4]}\", \"The fox\"], \"max_tokens\": 10" ;;
    5) line "wrong $i" "$prompt, \"top_k\": -7" ;;
  esac
done >in.jsonl

# An undisturbed run, and others that end alike.
start=$(date +%s%N)
check "some lines fail" 1 "$(status batch)"
whole_ms=$((($(date +%s%N) - start) / 1000000))
mv out.jsonl undisturbed
check "nothing is left beside it" "in.jsonl undisturbed" "$(ls | xargs)"
check "results in the order of the requests" "$(grep -o '"custom_id": "[^"]*"' in.jsonl)" \
  "$(grep -o '"custom_id": "[^"]*"' undisturbed)"
check "status of each line" "$(for i in {1..48}; do [[ $((i % 6)) == 5 ]] && echo 400 || echo 200; done | xargs)" \
  "$(grep -oE '"status_code": [0-9]+' undisturbed | cut -d' ' -f2 | xargs)"
batch --max-num-seqs 3 -t 2 >/dev/null
check "the same file with other batches and threads" 0 "$(status cmp out.jsonl undisturbed)"
rm out.jsonl
batch -s 7 >/dev/null
check "another seed, other draws" 1 "$(status cmp out.jsonl undisturbed)"
check "but not where nothing is drawn" "$(grep '"greedy' undisturbed)" "$(grep '"greedy' out.jsonl)"
rm -f out.jsonl

# Killed at ten random moments of the time that a whole run takes, each time continued. A run that ends before it is killed begins anew.
kills=0 kept=0
RANDOM=48
end_of_run() {  # the file of a run that has ended
  check "a run that was killed $kills times gives the same file" 0 "$(status cmp out.jsonl undisturbed)"
  check "and leaves nothing beside it" "in.jsonl out.jsonl undisturbed" "$(ls | xargs)"
  rm -f out.jsonl
}
for _ in {1..60}; do
  ((kills < 10)) || break
  "$headrace" run-batch -i in.jsonl -o out.jsonl --deterministic -c 512 --max-num-seqs 4 >/dev/null 2>&1 &
  program=$!
  moment_ms=$((RANDOM % whole_ms + 50))
  sleep "$((moment_ms / 1000)).$(printf %03d $((moment_ms % 1000)))"
  kill -KILL "$program" 2>/dev/null && kills=$((kills + 1))
  wait "$program" 2>/dev/null
  lines=$(($(cat out.jsonl.partial 2>/dev/null | wc -l) - 1))
  [[ $lines -gt $kept ]] && kept=$lines
  # What a crash may leave of a write: half of the last result, or less.
  if [[ $kills == 5 && $lines -gt 1 ]]; then truncate -s -9 out.jsonl.partial; fi
  if [[ $kills == 7 && $lines -gt 1 ]]; then printf '3f2a 5 200 {"id": "ba' >>out.jsonl.partial; fi
  [[ -e out.jsonl && ! -e out.jsonl.partial ]] && end_of_run
done
check "runs that were killed" 10 $kills
check "killed runs keep what is done" yes "$( ((kept > 2)) && echo yes || echo "$kept lines")"
batch >/dev/null
end_of_run

# Interrupted: what is done is kept, which a sentence says, and only this run goes on.
env --default-signal=INT "$headrace" run-batch -i in.jsonl -o out.jsonl --deterministic -c 512 --max-num-seqs 2 >said 2>&1 &
program=$!
for _ in {1..200}; do
  (($(cat out.jsonl.partial 2>/dev/null | wc -l) > 3)) && break
  sleep 0.05
done
kill -INT "$program"
wait "$program"
check "interrupted" "130 headrace: interrupted: N of 48 requests are done and kept in out.jsonl.partial; the same command goes on" \
  "$? $(sed -E 's/[0-9]+ of/N of/' said)"
partial=$(cat out.jsonl.partial)
refused() { message "$headrace" run-batch -i "$1" -o out.jsonl -c 512 "${@:2}" | sed 's/; repeat its command to go on, or remove the file to begin again$//'; }
check "another mode does not go on" "headrace: out.jsonl.partial: is of an interrupted run with --deterministic yes, this one has none" \
  "$(refused in.jsonl)"
check "nor another seed" "headrace: out.jsonl.partial: is of an interrupted run with --seed 0, this one has 1" \
  "$(refused in.jsonl --deterministic -s 1)"
check "nor another model" "headrace: out.jsonl.partial: is of an interrupted run with another model" \
  "$(refused in.jsonl --deterministic -m fairy-diffusion)"
head -n 9 in.jsonl >short.jsonl
check "nor another input" "headrace: out.jsonl.partial: is of an interrupted run with another input file" \
  "$(refused short.jsonl --deterministic)"
check "refused runs change nothing" "$partial" "$(cat out.jsonl.partial)"
check "and json says what an earlier run has done" "$(($(wc -l <<<"$partial") - 1))" \
  "$(batch --json | grep -oE '"resumed": [0-9]+' | grep -oE '[0-9]+')"
check "the interrupted run gives the same file" 0 "$(status cmp out.jsonl undisturbed)"

# What is refused before a model is loaded.
check "an output that exists" "headrace: out.jsonl: exists; --overwrite replaces it; status 2" "$(message batch); status $(status batch)"
check "unless it is to be replaced" 1 "$(status batch --overwrite)"
rm out.jsonl
check "a folder that is not there" "headrace: nothing/out: cannot be written: there is no directory nothing" \
  "$(message "$headrace" run-batch -i in.jsonl -o nothing/out)"
check "standard input" "headrace: --input-file: is -, expected a file: a run that is interrupted reads its requests again" \
  "$(message "$headrace" run-batch -i - -o out <in.jsonl)"
check "one file for both" "headrace: --output-file: ./in.jsonl is the input file, expected another one" \
  "$(message "$headrace" run-batch -i in.jsonl -o ./in.jsonl)"
cp in.jsonl out.jsonl.partial
check "nor the partial file" "headrace: --output-file: out.jsonl.partial is the input file, expected another one" \
  "$(message "$headrace" run-batch -i out.jsonl.partial -o out.jsonl)"
rm out.jsonl.partial
: >empty
check "no request" "headrace: empty: holds no requests, expected one in each line" "$(message "$headrace" run-batch -i empty -o out)"
{ cat in.jsonl; head -n 1 in.jsonl; } >twice
check "an id that two lines have" "headrace: twice: lines 1 and 49 have the custom_id 'drawn 1', expected one of its own in each line" \
  "$(message "$headrace" run-batch -i twice -o out)"
check "nothing is left of these" "empty in.jsonl said short.jsonl twice undisturbed" "$(ls | xargs)"

# Lines that fail, each with its sentence.
{
  line good '"prompt": "Once", "max_tokens": 2'
  echo 'no json'
  echo
  echo '{"method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}'
  sed 's/completions/chat\/completions/' <<<"$(line chat '"messages": []')"
  line long "\"prompt\": \"$(printf 'a%.0s' {1..2000})\""
  line model '"prompt": "Once", "model": "gpt-2"'
  line stream '"prompt": "Once", "stream": true'
  line ids '"prompt": [1, 99999999]'
  line unknown '"prompt": "Once", "max_tokens": 2, "frobnicate": 1'
} >lines
check "the run goes on" "headrace: warning: the field 'frobnicate' of a request is unknown and ignored; status 1" \
  "$(message "$headrace" run-batch -i lines -o out -c 512); status $(status "$headrace" run-batch -i lines -o out -c 512 --overwrite)"
check "sentences of lines" "$(cat <<'EXPECTED'
200 good null
400 null the line is not valid JSON
400 null custom_id is missing, expected a string
400 chat messages is an empty list, expected one message or more
400 long the prompt has N tokens, the context holds 512 with at least one new token
404 model model is 'gpt-2', expected 'fairy-hybrid'
400 stream stream is true, expected false: a line of a batch has one response
400 ids prompt: token id 99999999 is outside the vocabulary of 4096
200 unknown null
EXPECTED
)" "$(sed -E -e 's/.*"custom_id": (null|"([^"]*)"), "response": \{"status_code": ([0-9]+)/\3 \1 /' -e 's/^([0-9]+) "?([a-z]+)"? .*"message": "([^"]*)".*/\1 \2 \3/' \
  -e 's/^([0-9]+) "?([a-z]+)"? .*"error": null\}$/\1 \2 null/' -e 's/has [0-9]+ tokens/has N tokens/' -e 's/(valid JSON):.*/\1/' out)"
rm out
line a '"prompt": "Once", "max_tokens": 1, "model": "tale"' >named
check "other names of the model" "0 1" \
  "$(status "$headrace" run-batch -i named -o out --served-model-name story,tale) $(grep -c '"model": "tale"' out)"

exit $((failures > 0))
