#!/usr/bin/env bash
# pull, list, show, rm and what downloads a model by its name, against a hub of our own.
# Usage: pull_test.sh HEADRACE SMALL_HUB TINY_GGUF
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
mkdir -p "$work/packed/F32"
"$3" "$work/packed/tiny-Q8_0.gguf"
"$3" --parts "$work/packed/F32/tiny-F32"
touch "$work/packed/mmproj-F32.gguf" "$work/packed/README.md"
coproc hub { exec "$2" --gated org/gated=hf_x org/tale="$model" org/gated="$model" org/packed="$work/packed" 2>/dev/null; }
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

# One model in GGUF of a repository with several: its file alone, or its parts.
packed=(-p "hello" -n 8 --temperature 0 -t 1)
answer=$("$headrace" generate "$work/packed/tiny-Q8_0.gguf" "${packed[@]}" 2>/dev/null)
check "a GGUF file" "0 1" "$(status "$headrace" generate "$work/packed/tiny-Q8_0.gguf" "${packed[@]}") $([[ -n "$answer" ]] && echo 1)"
check "its parts, too" "$answer" "$("$headrace" generate "$work/packed/F32/tiny-F32-00001-of-00002.gguf" "${packed[@]}" 2>/dev/null)"
check "another part" 1 "$(message "$headrace" generate "$work/packed/F32/tiny-F32-00002-of-00002.gguf" -p x | grep -c 'is part 2 of 2 of a model, expected its first part, tiny-F32-00001-of-00002.gguf$')"
check "a message to it" 0 "$(status "$headrace" run "$work/packed/tiny-Q8_0.gguf" hello -n 4)"
check "whether it fits" 1 "$("$headrace" doctor "$work/packed/tiny-Q8_0.gguf" | grep -c '^model *Qwen3ForCausalLM, ')"
check "which there are" "headrace: org/packed: holds no weights in safetensors at its top level, but the GGUF models tiny-F32, tiny-Q8_0; org/packed:F32 names one of them|2" \
  "$(message "$headrace" pull org/packed)|$(status "$headrace" pull org/packed)"
check "none of that name" "headrace: org/packed: has no GGUF file named 'Q4_K_M'; there are tiny-F32, tiny-Q8_0|3" \
  "$(message "$headrace" pull org/packed:Q4_K_M)|$(status "$headrace" pull org/packed:Q4_K_M)"
check "one that is not here" "$answer" "$("$headrace" generate org/packed:q8_0 "${packed[@]}" 2>"$work/err")"
check "is downloaded" 1 "$(grep -c "^org/packed:q8_0: downloading [0-9.]* kB from $HF_ENDPOINT$" "$work/err")"
check "once" "$answer|" "$("$headrace" generate org/packed:Q8_0 "${packed[@]}" --offline 2>/dev/null)|$(message "$headrace" pull org/packed:Q8_0 | grep downloading)"
packed_folder="$HF_HUB_CACHE/models--org--packed/snapshots/$(cat "$HF_HUB_CACHE/models--org--packed/refs/main")"
check "and nothing else" "tiny-Q8_0.gguf" "$(ls "$packed_folder")"
check "pull prints the first part" "$packed_folder/F32/tiny-F32-00001-of-00002.gguf" "$("$headrace" pull org/packed:F32 2>/dev/null)"
check "the same text from its parts" "$answer" "$("$headrace" generate org/packed:F32 "${packed[@]}" --offline 2>/dev/null)"
check "the list of both" "org/packed:F32 Qwen3 cache org/packed:Q8_0 Qwen3 cache" \
  "$("$headrace" list | awk '/^org\/packed/ {print $1, $2, $NF}' | xargs)"
check "show of one" "qwen3 has a template" "$("$headrace" show org/packed:Q8_0 | sed -n 's/^family *//p; s/^chat *//p' | xargs)"
check "rm of one" "headrace: org/packed:F32: rm removes all that is here of a repository: headrace rm org/packed" "$(message "$headrace" rm org/packed:F32 --yes)"
"$headrace" rm org/packed --yes >/dev/null
check "the name of a served one" tiny-Q8_0 "$("$headrace" serve "$work/packed/tiny-Q8_0.gguf" --port 0 -c 64 --max-num-seqs 1 >"$work/served" 2>&1 &
  server=$!
  for _ in {1..100}; do grep -qs 'http://' "$work/served" && break; sleep 0.1; done
  port=$(grep -o 'http://[0-9.:]*' "$work/served" | head -n 1 | grep -o '[0-9]*$')
  get() { exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n' "$1" >&3 && cat <&3; }
  for _ in {1..100}; do get /health | grep -q ' 200 ' && break; sleep 0.1; done
  get /v1/models | sed -n 's/.*"data": *\[{"id": *"\([^"]*\)".*/\1/p'
  kill $server)"

# Refusals: one sentence, and what to do.
check "offline" "headrace: org/tale: is not downloaded, because HF_HUB_OFFLINE is set; headrace list names the models that are here|3" \
  "$(HF_HUB_OFFLINE=1 message "$headrace" pull org/tale)|$(HF_HUB_OFFLINE=1 status "$headrace" "${write[@]}")"
check "a name that the hub lacks" "headrace: org/none: no such model directory, nor is it in $work/hub; org/none: $HF_ENDPOINT has no such model, or it is private: set HF_TOKEN to a token that may read it" \
  "$(message "$headrace" generate org/none -p x)"
check "a revision that the hub lacks" "headrace: org/tale: has no revision 'v9' on $HF_ENDPOINT" "$(message "$headrace" pull org/tale --revision v9)"
check "no name" "headrace: '../x' is no name of a model on a hub, expected ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:Q4_K_M for a file in GGUF" "$(message "$headrace" pull ../x)"
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
