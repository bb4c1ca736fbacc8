#!/usr/bin/env bash
# pull, list, show, rm and what downloads a model by its name, against a hub of our own.
# Usage: pull_test.sh HEADRACE SMALL_HUB
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
unset HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HUB_OFFLINE TRANSFORMERS_OFFLINE
export no_proxy="*" HOME="$work" HF_HUB_CACHE="$work/hub"
trap 'rm -rf "$work"' EXIT
model="$(cd "$(dirname "$0")/../../demo_models/fairy-hybrid" && pwd)"
coproc hub { exec "$2" --gated org/gated=hf_x org/tale="$model" org/gated="$model" 2>/dev/null; }
read -r HF_ENDPOINT <&"${hub[0]}"
export HF_ENDPOINT
host="${HF_ENDPOINT#http://}"
folder="$HF_HUB_CACHE/models--org--tale"
write=(generate org/tale -p "Once upon a time" -n 16 --temperature 0 -t 1)
bundled=$("$headrace" generate -p "Once upon a time" -n 16 --temperature 0 -t 1)

# By its name alone: what is not here is downloaded, and said.
check "a model that is not here" "org/tale: downloading 24.0 MB from $HF_ENDPOINT" "$(message "$headrace" "${write[@]}")"
check "the same text from it, and not a word the second time" "$bundled|" \
  "$("$headrace" "${write[@]}")|$(message "$headrace" "${write[@]}")"
snapshot="$folder/snapshots/$(cat "$folder/refs/main")"
check "pull prints the directory" "$snapshot" "$("$headrace" pull org/tale 2>/dev/null)"
check "and says that nothing is missing" "org/tale: all 24.0 MB are here" "$(message "$headrace" pull org/tale)"
check "as JSON" "plan progress done|0" \
  "$("$headrace" pull org/tale --json | sed -n 's/^{"event": "\([a-z]*\)".*/\1/p' | xargs)|$("$headrace" pull org/tale --json | sed -n 's/.*"missing_bytes": \([0-9]*\)}/\1/p')"
check "the list" "org/tale Qwen3_5 cache" "$("$headrace" list | awk '/^org\/tale/ {print $1, $2, $NF}')"
check "show" "Qwen3_5ForCausalLM|11.9 million|bfloat16|4096 tokens|has a template|24.0 MB|${snapshot##*/}|$snapshot" \
  "$("$headrace" show org/tale | sed 's/^[a-z]* *//' | paste -sd'|')"
check "show as JSON" 1 "$("$headrace" show org/tale --json | grep -c "\"parameters\": 11857952, .*\"chat_template\": true, \"bytes\": [0-9]*, \"revision\": \"${snapshot##*/}\", \"path\": \"$snapshot\"}$")"
check "show of a bundled model" 1 "$("$headrace" show puzzle-llada --json | grep -c '"revision": null')"

# Removal.
check "bundled models stay, and are here" "fairy-hybrid: comes with headrace: only models of Hugging Face's cache are removed|fairy-hybrid: comes with headrace: there is nothing to download" \
  "$(message "$headrace" rm fairy-hybrid | cut -d' ' -f2-)|$(message "$headrace" pull fairy-hybrid | cut -d' ' -f2-)"
check "rm asks" "2 1" "$(status "$headrace" rm org/tale </dev/null) $(message "$headrace" rm org/tale </dev/null | grep -c 'standard input is no terminal; --yes removes')"
if [[ "$(script -qec "echo yes" /dev/null 2>/dev/null | tr -d '\r\n')" == yes ]]; then
  check "and takes no for an answer" 1 "$(echo n | script -qec "'$headrace' rm org/tale" /dev/null | grep -c 'Nothing was removed')"
fi
check "the model is still here" "" "$(message "$headrace" "${write[@]}")"
check "rm" "Removed org/tale: 24.0 MB are free again." "$("$headrace" rm org/tale --yes)"
check "and it is gone" "no|3" "$([[ -e "$folder" ]] && echo yes || echo no)|$(status "$headrace" rm org/tale --yes)"
check "show and random weights download nothing" "3 3 no" \
  "$(status "$headrace" show org/tale) $(status "$headrace" "${write[@]}" --random-weights 1) $([[ -e "$folder" ]] && echo yes || echo no)"

# Refusals: one sentence, and what to do.
check "offline" "headrace: org/tale: is not downloaded, because HF_HUB_OFFLINE is set; headrace list names the models that are here|3" \
  "$(HF_HUB_OFFLINE=1 message "$headrace" pull org/tale)|$(HF_HUB_OFFLINE=1 status "$headrace" "${write[@]}")"
check "a name that the hub lacks" "headrace: org/none: no such model directory, nor is it in $work/hub; org/none: $HF_ENDPOINT has no such model, or it is private: set HF_TOKEN to a token that may read it" \
  "$(message "$headrace" generate org/none -p x)"
check "a revision that the hub lacks" "headrace: org/tale: has no revision 'v9' on $HF_ENDPOINT" "$(message "$headrace" pull org/tale --revision v9)"
check "no name" "headrace: '../x' is no name of a model on a hub, expected ORG/NAME or ORG/NAME@REVISION" "$(message "$headrace" pull ../x)"
check "a hub that is not there" "3 1" "$(HF_ENDPOINT=http://127.0.0.1:1 status "$headrace" pull org/tale) $(HF_ENDPOINT=http://127.0.0.1:1 message "$headrace" pull org/tale | grep -c '^headrace: 127.0.0.1:1: cannot be reached: ')"
check "a gated model" 1 "$(message "$headrace" pull org/gated | grep -c "^headrace: org/gated: is gated: accept its terms at $HF_ENDPOINT/org/gated, then set HF_TOKEN")"
check "with its token" "0" "$(status "$headrace" pull org/gated --token hf_x)"
"$headrace" rm org/gated --yes >/dev/null
check "of the environment" "0" "$(HF_TOKEN=hf_x status "$headrace" pull org/gated)"
"$headrace" rm org/gated --yes >/dev/null
mkdir -p "$work/.cache/huggingface" && echo hf_x >"$work/.cache/huggingface/token"
check "of the file that a login leaves" "0" "$(status "$headrace" pull org/gated)"
exec {hub[1]}>&- && wait "$hub_PID"

# A slow hub: an interrupt ends the download at once, what came is kept, and the next one goes on behind it.
coproc slow { exec "$2" --bytes-per-s 4000000 org/tale="$model" 2>/dev/null; }
read -r HF_ENDPOINT <&"${slow[0]}"
env --default-signal=INT "$headrace" pull org/tale >"$work/out" 2>"$work/err" &
download=$!
for _ in {1..100}; do
  [[ $(cat "$folder"/blobs/*.incomplete 2>/dev/null | wc -c) -gt 1000000 ]] && break
  sleep 0.05
done
began=$(date +%s%N)
kill -INT $download
wait $download
check "an interrupted download" "130" "$?"
check "ends within a second" "yes" "$([[ $(($(date +%s%N) - began)) -lt 1000000000 ]] && echo yes)"
check "says so" "headrace: stopped; what came is kept, and the same command continues" "$(tail -n 1 "$work/err")"
check "makes no snapshot" "no" "$([[ -e "$folder/snapshots" ]] && echo yes || echo no)"
check "keeps what came" "yes" "$([[ $(cat "$folder"/blobs/*.incomplete | wc -c) -gt 1000000 ]] && echo yes)"
exec {slow[1]}>&- && wait "$slow_PID"
coproc fast { exec "$2" org/tale="$model" 2>/dev/null; }
read -r HF_ENDPOINT <&"${fast[0]}"
check "and the next one goes on" 1 "$(message "$headrace" pull org/tale | grep -c '^org/tale: downloading the missing [0-9.]* MB of 24.0 MB from ')"
check "to the same text" "$bundled" "$("$headrace" "${write[@]}")"
exec {fast[1]}>&- && wait "$fast_PID"

[[ $failures -eq 0 ]] && echo "all good"
exit "$failures"
