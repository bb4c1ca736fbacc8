#!/usr/bin/env bash
# headrace quantize and --quantize from outside: files, refusals, statuses, the same text.
set -u
headrace="$1"
export HF_HUB_OFFLINE=1  # no test asks a hub
failures=0
check() {  # check NAME EXPECTED FOUND
  if [[ "$2" != "$3" ]]; then
    echo "FAILED $1: expected '$2', found '$3'"
    failures=$((failures + 1))
  fi
}
status() { "$@" >/dev/null 2>&1; echo $?; }
message() { "$@" 2>&1 >/dev/null; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
quantize() { "$headrace" quantize fairy-hybrid -t 2 "$@"; }
text() { "$headrace" generate "$@" -p "Once upon a time" -n 32 --temperature 0 -t 2; }

check "the table of a file" "family qwen35,weights 16.04 bits each,embedding BF16" \
  "$(quantize --to bf16 | awk '/^family/ { printf "family %s,", $2 } /^weights/ { printf "weights %s %s %s,", $2, $3, $4 } /embedding/ { printf "embedding %s", $NF }')"
check "its name" "fairy-hybrid-BF16.gguf" "$(ls)"
check "the same text as of the directory" "$(text fairy-hybrid)" "$(text fairy-hybrid-BF16.gguf)"
check "the same file with one thread" "same" \
  "$("$headrace" quantize fairy-hybrid -t 1 --to q8_0 -o one.gguf >/dev/null && quantize --to q8_0 -o two.gguf >/dev/null && cmp one.gguf two.gguf && echo same)"
check "the object of --json" "qwen35 12853792" \
  "$(quantize --to q8_0 -o a.gguf --json | sed -n 's/.*"architecture": "\([a-z0-9]*\)".*"bytes": \([0-9]*\), "files".*/\1 \2/p')"
check "rows of 320 and 704 take small blocks" "F32, BF16, Q8_0, Q5_0, Q4_K" \
  "$(quantize --to q4_k_m | sed -n 's/^ *Gated DeltaNet.* bits  //p')"
check "a file of floats gives the tensors of the directory" "$("$headrace" show a.gguf | grep bits)" \
  "$("$headrace" quantize fairy-hybrid-BF16.gguf --to q8_0 -o again.gguf | grep bits)"
check "what it reads for each token" 1 "$("$headrace" show a.gguf | grep -cE '^per token   [0-9.]+ MB read: about [0-9]+ tokens/s ')"
sed 's/qwen35/foooo5/' a.gguf >other.gguf  # of a family that nobody has
check "a family that is not built" "runs        no: other.gguf: the architecture 'foooo5' is not built for GGUF files" \
  "$("$headrace" show other.gguf | grep -o "^runs .* files")"
check "the same text at load" "$(text a.gguf)" "$(text fairy-hybrid --quantize q8_0)"
check "a quantised file at load" "headrace: --quantize is q4_k_m, expected none: a.gguf is quantised already" \
  "$(message text a.gguf --quantize q4_k_m | grep -o '^.*already')"
check "a diffusion model at load" 0 "$(status text fairy-diffusion --quantize q4_k_m)"
check "random weights at load" 0 "$(status text fairy-hybrid --quantize q6_k --random-weights 1)"

check "a file that exists" "headrace: a.gguf: exists; --overwrite replaces it" "$(message quantize --to q6_k -o a.gguf)"
check "the model itself" "headrace: fairy-hybrid-BF16.gguf: is the model to quantise, expected another file" \
  "$(message "$headrace" quantize fairy-hybrid-BF16.gguf --to q8_0 -o fairy-hybrid-BF16.gguf --overwrite)"
check "its status, and that of --overwrite" "2 0" \
  "$(status quantize --to q6_k -o a.gguf) $(status quantize --to Q6_K -o a.gguf --overwrite)"
check "what was written over it" "Q8_0" "$("$headrace" show a.gguf | awk '/embedding/ { print $NF }')"
check "a file that is quantised already" "2 a file that is quantised is not quantised again" \
  "$(status "$headrace" quantize one.gguf --to q6_k -o b.gguf) $(message "$headrace" quantize one.gguf --to q6_k -o b.gguf | grep -o "a file that is quantised is not.*")"
check "a diffusion family" "2 models of SDARForCausalLM have no GGUF file" \
  "$(status "$headrace" quantize fairy-diffusion --to q8_0) $(message "$headrace" quantize fairy-diffusion --to q8_0 | grep -o "models of [^:]* have no GGUF file")"
check "another ending" "headrace: b.bin: expected a name that ends with .gguf" "$(message quantize --to q8_0 -o b.bin)"
check "a folder that is not there" "headrace: no/b.gguf: 12.9 MB cannot be written: No such file or directory" \
  "$(message quantize --to q8_0 -o no/b.gguf)"
check "an unknown format" "headrace: --to: is 'q3_k', expected q8_0, q4_k_m, q5_k_m, q6_k, bf16 or f16" \
  "$(message quantize --to q3_k)"
check "no format" 2 "$(status quantize)"
check "an unknown format at load" 2 "$(status text fairy-hybrid --quantize f16)"
mkdir full
check "a full disk" "3 full/b.gguf: 12.9 MB cannot be written: File too large" \
  "$(ulimit -f 1000; status quantize --to q8_0 -o full/b.gguf) $(ulimit -f 1000; message quantize --to q8_0 -o full/b.gguf | sed 's/^headrace: //')"
check "what it leaves behind" "" "$(ls -A full)"
[[ $failures == 0 ]] || exit 1
echo "all as expected"
