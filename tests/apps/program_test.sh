#!/usr/bin/env bash
# The program from outside: exit statuses, the same text again, JSON, closed pipes.
set -u
headrace="$1"
export HF_HUB_OFFLINE=1  # no test asks a hub
sanitize="${2:-}"  # of the build: sanitizers need more address space than a test may take away
failures=0
check() {  # check NAME EXPECTED FOUND
  if [[ "$2" != "$3" ]]; then
    echo "FAILED $1: expected '$2', found '$3'"
    failures=$((failures + 1))
  fi
}
status() { "$@" >/dev/null 2>&1; echo $?; }
message() { "$@" 2>&1 >/dev/null; }
# A machine without script(1), or a chroot without /dev/pts, has no terminal to show.
terminal=$(script -qec "echo yes" /dev/null 2>/dev/null | tr -d '\r\n')
[[ -n "$terminal" ]] || echo "skipped: what needs a terminal (script(1) makes none here)"

one=$("$headrace" generate -p "Once upon a time" -n 32 --temperature 0 -t 1)
check "same text again" "$one" "$("$headrace" generate -p "Once upon a time" -n 32 --temperature 0 -t 1)"
check "same text with two threads" "$one" "$("$headrace" generate -p "Once upon a time" -n 32 --temperature 0 -t 2)"
check "json holds the ids" 8 "$("$headrace" generate -p "Once" -n 8 --temperature 0 --json | grep -o '"ids": \[[^]]*\]' | tr -cd ', ' | tr -d ' ' | wc -c | awk '{print $1 + 1}')"
check "a time of the first token without a text" 1 \
  "$("$headrace" generate -p "Once" -n 8 --temperature 0 --stop " upon" --json | grep '"text": ""' | grep -c '"first_token_s": [0-9.]*[1-9]')"
check "the demo takes threads" 0 "$(status "$headrace" demo -n 2 -t 1)"
check "version" 0 "$(status "$headrace" --version)"
check "no command prints the short help" "0 1" "$(status "$headrace") $("$headrace" | grep -c "^Usage: headrace COMMAND")"
check "help and version as commands" "0 0 0 2" "$(status "$headrace" help) $(status "$headrace" help eval puzzles) $(status "$headrace" version) $(status "$headrace" help nonsense)"
check "the version names the kernels that doctor selects" "$("$headrace" doctor --json | grep -o '"selected": "[a-z0-9]*"' | cut -d'"' -f4)" \
  "$("$headrace" --version | sed -n 's/^kernels .* built in; \(.*\) is selected$/\1/p')"
check "the version's lines" "headrace,commit,compiler,kernels" \
  "$("$headrace" --version | sed -E 's/^(headrace [0-9]+\.[0-9]+\.[0-9]+$|(commit|compiler|kernels) +.+)/\1/; s/ .*//' | paste -sd,)"
check "a kernel set that there is not" "is unknown" \
  "$(message "$headrace" generate -p x --kernel-set mmx | grep -oE "is unknown|is not built in|does not run on this machine")"
check "unknown flag" 2 "$(status "$headrace" generate -p x --no-such-flag)"
check "bad parameter" 2 "$(status "$headrace" generate -p x --temperature -1)"
for flag in --seed --random-weights; do  # and not its two's complement, nor the largest number for one beyond it
  for number in -2 18446744073709551616 1.5; do
    check "a $flag of $number" 2 "$(status "$headrace" generate -p x -n 1 $flag $number)"
  done
  check "the largest $flag" 1 "$("$headrace" generate -p x -n 1 $flag 18446744073709551615 --json | grep -c '"text"')"
done
of_tokens="an integer from 1 to 1073741824, 0 (reads the prompt alone) or -1 (until the context is full)"
check "a number that is none" "headrace: --max-tokens: is '2k', expected $of_tokens" \
  "$(message "$headrace" generate -p x --max-tokens 2k)"
check "one beyond its range" 2 "$(status "$headrace" generate -p x -n 99999999999)"
check "a number that is empty" "headrace: --temperature: is '', expected a number" "$(message "$headrace" generate -p x --temperature '')"
check "thresholds that are empty" 2 "$(status "$headrace" eval puzzles --limit 1 --thresholds '')"
check "memory that is none" \
  "$(printf "headrace: --kv-cache-memory-bytes: is '%s', expected bytes from 1, or as 4G, 512M or 64K\n" 0 4X -1G '' 99999999999G)" \
  "$(for size in 0 4X -1G '' 99999999999G; do message "$headrace" generate -p x --kv-cache-memory-bytes "$size"; done)"
cache_line() { message "$headrace" generate -p x -n 1 --log-level info --kv-cache-memory-bytes "$1" | grep -oE 'cache: [0-9.]+ MB'; }
check "memory in three spellings" "$(printf 'cache: 67.%s MB\n' 1 1 1)" "$(for size in 67108864 64M 65536K; do cache_line $size; done)"
check "memory without room for the context" "4 1" \
  "$(status "$headrace" generate -p x --kv-cache-memory-bytes 1M) $(message "$headrace" generate -p x --kv-cache-memory-bytes 1M | grep -c 'kv-cache-memory-bytes is 1048576 bytes, expected [0-9]* or more: a context of 4096 tokens and a recurrent state$')"
check "steps that are too small for the strategy" \
  "headrace: --max-num-batched-tokens is 3, expected 16 or more: a step of strategy 'multi_bd' may need so many; status 2" \
  "$("$headrace" generate fairy-diffusion -p x -n 1 --max-num-batched-tokens 3 2>&1); status $?"
check "a step of no token" "headrace: --max-num-batched-tokens: is '0', expected an integer from 1 to 16777216" \
  "$(message "$headrace" generate -p x --max-num-batched-tokens 0)"
check "pages of no token" "headrace: kv pool: page size is 0, expected 1, 16, 32, 64, 128 or 256; status 2" \
  "$("$headrace" generate -p x -n 1 --page-size 0 2>&1); status $?"
check "numbers beyond their ranges, with what is taken beside them" \
  "$(printf 'headrace: %s\n' "-n, --max-tokens: is '-5', expected $of_tokens" "-n, --max-tokens: is 'abc', expected $of_tokens" \
    "-s, --seed: is '-2', expected an integer from 0 to 18446744073709551615, or -1 (another one each time)" \
    "-c, --max-model-len: is '999999999', expected an integer from 2 to 16777216, or 0 or -1 (all that the model was made for)" \
    "-t, --threads: is '0', expected an integer from 1 to 1024")" \
  "$(for words in "-n -5" "-n abc" "-s -2" "-c 999999999" "-t 0"; do message "$headrace" generate -p x $words; done)"
check "values that are missing, or none that there are" \
  "$(printf 'headrace: %s\n' "-n, --max-tokens: has no value, expected $of_tokens" "-m, --model: has no value, expected a directory or a name" \
    "--dtype: is 'int8', expected auto, float32 or bfloat16" "--log-level: is 'verbose', expected off, error, warning, info or debug" \
    "--random-weights: is followed by '-p', expected an integer from 0 to 18446744073709551615" \
    "--prompt and --file: both are given, expected one of them" "--logprobs: needs --json beside it")" \
  "$(for words in -n -m "--dtype int8" "--log-level verbose" "--random-weights -p hello" "-p a -f x" "-p a --logprobs"; do message "$headrace" generate $words; done)"
check "commands whose words are missing, or none that there are" \
  "$(printf 'headrace: %s\n' "headrace bench needs a name: agent, arrivals, attention, blocks, canvases, chat, engine, gdn, linear, model, serve or template" \
    "bench: is 'foo', expected agent, arrivals, attention, blocks, canvases, chat, engine, gdn, linear, model, serve or template" "headrace eval perplexity needs --file: a file" \
    "'foo' is more than list takes")" \
  "$(for words in bench "bench foo" "eval perplexity" "list foo"; do message "$headrace" $words; done)"
check "a line of llama.cpp, without a command" "2 $(printf "headrace: unknown option '%s' of headrace; headrace generate %s ... takes it " -m -m -p -p)" \
  "$(status "$headrace" -m fairy-hybrid -p hi -n 4) $(for words in "-m fairy-hybrid -p hi -n 4" "-p hi"; do message "$headrace" $words; done | tr '\n' ' ')"
check "and a text, a model" 2 \
  "$(for word in "Once upon a time" fairy-hybrid; do message "$headrace" "$word"; done | grep -cF "of headrace; headrace generate [MODEL] \"TEXT\" completes a text, and 'headrace --help' lists what there is")"
check "no help for words that are far from it" "headrace: unknown option '--temp' of headrace doctor; 'headrace doctor --help' lists what there is" \
  "$(message "$headrace" doctor --temp 1)"
check "what shows a model" 1 "$(message "$headrace" info | grep -c 'headrace show MODEL says what a model is$')"
check "a model that is empty" "headrace: --model: is empty, expected a directory or a name" "$(message "$headrace" generate '' -p x -n 1)"
check "a model's name that is too long" "3 File name too long" \
  "$(status "$headrace" generate "$(printf 'a%.0s' {1..300})" -p x) $(message "$headrace" generate "$(printf 'a%.0s' {1..300})" -p x | grep -o 'File name too long')"
check "unknown backend" 2 "$(status "$headrace" generate -p x --backend nonsense)"
check "adapter of another model" 3 "$(status "$headrace" generate -p x --adapter "$(dirname "$0")/../golden/dream_lora")"
if [[ ! -e /dev/nvidiactl ]]; then
  check "no device" 6 "$(status "$headrace" generate -p x --device cuda)"
  # A build with the CUDA part looks for a driver, unless one of the libraries that this part needs is missing.
  why='the CUDA part of headrace is not here: no libheadrace_cuda.so beside the program, in ../lib or where the loader looks \(script/build cuda makes it, or pip with -C cmake.define.HEADRACE_CUDA=ON\)'
  [[ ! -e "$(dirname "$headrace")/libheadrace_cuda.so" ]] ||
    why='the CUDA part of headrace could not be loaded: .+|no NVIDIA driver is installed|the NVIDIA driver is too old: .+|no device can be used: .+'
  no_device=$(message "$headrace" generate -p x --device cuda)
  check "no device, in one sentence that says why" "1 line: $no_device" \
    "$(wc -l <<<"$no_device") line: $(grep -E "^headrace: cuda: ($why)$" <<<"$no_device")"
else
  echo "skipped: what a machine without a device is told (this one has one)"
fi
check "graphs that a CPU has none of" 4 "$(status "$headrace" generate -p x --device cpu --require-graphs)"
check "missing model" 3 "$(status "$headrace" generate /nonexistent -p x)"
check "a file as model" "headrace: $0: is a file, expected the directory of a model or a GGUF file; status 3" \
  "$("$headrace" generate "$0" -p x 2>&1); status $?"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 2500 "$0" >"$work/long"
check "deterministic bits in parts of any size" 1 \
  "$(for n in 16 100 512; do "$headrace" generate -f "$work/long" -c 2048 -n 8 --temperature 0 --deterministic --logprobs --json --max-num-batched-tokens $n 2>/dev/null | grep -o '"ids.*"finish' ; done | sort -u | wc -l)"

# Prompts that no argument holds: Linux gives one 128 KiB.
printf 'Once upon a time' >"$work/prompt"
check "a prompt from a file" "$one" "$("$headrace" generate -f "$work/prompt" -n 32 --temperature 0 -t 1)"
check "and from a pipe" "$one" "$(printf 'Once upon a time' | "$headrace" generate --file - -n 32 --temperature 0 -t 1)"
check "and by a word for it, with a model or without" "$one|$one" \
  "$(printf 'Once upon a time' | "$headrace" generate - -n 32 --temperature 0 -t 1)|$(printf 'Once upon a time' | "$headrace" generate fairy-hybrid - -n 32 --temperature 0 -t 1)"
check "a pipe beside a prompt is not read" "$one piped" \
  "$(echo piped | { made=$("$headrace" generate -p "Once upon a time" -n 32 --temperature 0 -t 1); echo "$made $(cat)"; })"
yes 'There was a king.' | head -c 200000 >"$work/long"
check "one of 200 kB" 1 "$(message "$headrace" generate -f "$work/long" -n 1 | grep -cE '^headrace: the prompt has [0-9]{5} tokens')"
long=$(printf 'a%.0s' {1..600})
check "one that a model of whole canvases does not hold" "headrace: the prompt has 600 tokens, the model's context holds 512 with at least one new token; status 2" \
  "$("$headrace" generate puzzle-llada "$long" 2>&1 | grep -v warning); status $(status "$headrace" generate puzzle-llada "$long")"
check "a prompt that is not UTF-8" "headrace: warning: the prompt: byte 4 (0xe9) is not UTF-8; such bytes are read as U+FFFD" \
  "$(printf 'caf\xe9' | message "$headrace" generate -f - -n 1)"
check "and a book" "headrace: warning: standard input: byte 4 (0xe9) is not UTF-8; such bytes are read as U+FFFD" \
  "$(printf 'caf\xe9 au lait' | message "$headrace" eval perplexity --file -)"
check "no prompt" "headrace: generate needs a prompt: headrace generate [MODEL] \"TEXT\", or --file FILE; status 2" \
  "$("$headrace" generate 2>&1 </dev/null); status $?"
check "an empty pipe is no prompt" 2 "$(: | status "$headrace" generate)"
check "a text is the prompt" "$one" "$("$headrace" generate "Once upon a time" -n 32 --temperature 0 -t 1)"
check "behind a model too" "$one" "$("$headrace" generate fairy-hybrid "Once upon a time" -n 32 --temperature 0 -t 1)"
check "and what is piped in, without the line feed of echo" "$one" \
  "$(echo 'Once upon a time' | "$headrace" generate -n 32 --temperature 0 -t 1)"
check "a model that is missing is said before a prompt that is" "3 3" \
  "$(status "$headrace" generate ./nothing </dev/null) $(status "$headrace" generate Qwen/Nothing </dev/null)"
check "a bundled model's name that is nearly right" 1 "$(message "$headrace" generate fairy-hybird -p x | grep -c "did you mean 'fairy-hybrid'?$")"
check "bundled models by name, from anywhere" "fairy-diffusion fairy-hybrid puzzle-diffusion puzzle-llada" \
  "$(cd "$work" && "$headrace" list | awk '/ bundled$/ {print $1}' | xargs)"
check "no new token, and all that the context holds" "0 length 63" \
  "$("$headrace" generate Once -n 0 --json 2>/dev/null | grep -oE '"completion_tokens": [0-9]+' | grep -oE '[0-9]+') $("$headrace" generate Once -n -1 -c 64 --ignore-eos --json 2>/dev/null | grep -oE '"finish_reason": "[a-z]+"|"completion_tokens": [0-9]+' | sed 's/.*: //' | tr -d '"' | xargs)"
check "a seed of its own each time" 2 "$(for i in 1 2; do "$headrace" generate -p Once -n 1 --seed -1 --json | grep -oE '"seed": [0-9]+'; done | sort -u | wc -l)"
check "escapes" "1 1 0 0" \
  "$(message "$headrace" generate -p 'a\nb' -n 1 | grep -c 'holds .n as two characters') $("$headrace" generate -p 'a\nb' -e -n 1 --json | grep -c '"prompt_tokens": 3') $(message "$headrace" generate -p 'a\nb' -n 1 -e | wc -l) $(message "$headrace" generate -p 'a\nb' -n 1 --no-escape | wc -l)"
check "words of LLaDA's and Dream's users" "4 confidence 8" \
  "$("$headrace" generate puzzle-diffusion "add: 289 + 987 =" --gen-length 4 --block_length 8 --remasking low_confidence --confidence-threshold 0.5 --json | grep -oE '"completion_tokens": [0-9]+|"block_size": [0-9]+|"rule": "[a-z]+"' | sed 's/.*: //' | tr -d '"' | xargs)"
check "activations in float16" "2 1" "$(status "$headrace" generate -p x --dtype half) $(message "$headrace" generate -p x --dtype FP16 | grep -c 'float16 are not supported')"
check "two prompts" 2 "$(status "$headrace" generate -p x -f "$work/prompt")"
check "a folder as prompt" "headrace: $work: cannot be read: Is a directory" "$(message "$headrace" generate -f "$work")"

# Special tokens: text, unless the prompt is said to spell them.
prompt_tokens() { "$headrace" generate -n 1 "$@" --json 2>/dev/null | grep -o '"prompt_tokens": [0-9]*' | tr -cd 0-9; }
check "a special token's text is text" yes "$([[ $(prompt_tokens -p '<|endoftext|>Once') -gt 2 ]] && echo yes)"
check "a special token" 2 "$(prompt_tokens -p '<|endoftext|>Once' --special-tokens)"

check "which is said" 1 "$(message "$headrace" generate -n 1 -p '<|endoftext|>Once' | grep -c '^headrace: warning: the prompt spells the special token <|endoftext|>, ')"
mkdir "$work/instruct"
cp "$(dirname "$0")"/../../demo_models/puzzle-diffusion/{config,tokenizer}.json "$(dirname "$0")"/../../demo_models/puzzle-diffusion/model.safetensors "$work/instruct/"
echo '{"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"}' >"$work/instruct/tokenizer_config.json"
check "a chat template that is not applied" "1 0" \
  "$(message "$headrace" generate "$work/instruct" "Who are you?" -n 1 | grep -c '^headrace: warning: this model has a chat template, ') $(message "$headrace" generate "$work/instruct" "Who are you?" -n 1 --log-level ERROR | wc -l)"

check "a chat" "1359 0" "$("$headrace" generate puzzle-llada " sort: 5391 = " --chat 2>"$work/chat.err") $(wc -l <"$work/chat.err")"
check "a chat without a template" "headrace: --chat: $work/bare_chat has no chat template" "$(
  mkdir "$work/bare_chat" && cp "$work/instruct"/{config.json,tokenizer.json,model.safetensors} "$work/bare_chat"
  "$headrace" generate "$work/bare_chat" "Hi" --chat 2>&1)"

# Closed pipes: no message, no error.
closed() { "$@" 2>"$work/closed" | head -c 10 >/dev/null; echo "${PIPESTATUS[0]} $(cat "$work/closed")"; }
check "closed pipe" "0 " "$(closed "$headrace" generate -p "Once" -n 200 --temperature 0 --ignore-eos)"
check "closed pipe under json" "0 " "$(closed "$headrace" generate -p "Once" -n 2 --json)"
check "closed pipe under help" "0 " "$(closed "$headrace" generate --help)"
"$headrace" demo -n 2 2>&1 | true
check "closed pipe of both" 0 "${PIPESTATUS[0]}"

# Options with several values take none of what stands behind them.
check "a model behind a stop text" 3 "$(status "$headrace" generate --stop x /nonexistent -p x -n 1)"
check "a model behind a strategy" 3 "$(status "$headrace" eval puzzles --limit 1 --strategies auto /nonexistent)"
check "a model behind a threshold" 3 "$(status "$headrace" eval puzzles --limit 1 --thresholds 0.9 /nonexistent)"
check "a stop text in brackets" " upon" "$("$headrace" generate -p Once -n 1 --temperature 0 --stop "[ upon]")"
end_id=$("$headrace" generate -p Once -n 1 --temperature 0 --json | grep -o '"ids": \[[0-9]*' | grep -o '[0-9]*$')
check "a stop token" '"finish_reason": "stop"' \
  "$("$headrace" generate -p Once -n 32 --temperature 0 --stop-token-ids 3,"$end_id" --json | grep '"text": ""' |
    grep '"stop_token_ids": \[3, '"$end_id"'\]' | grep -o '"finish_reason": "[a-z]*"')"
check "a token that is never chosen" 1 \
  "$("$headrace" generate -p Once -n 4 --temperature 0 --ignore-eos --json -l "$end_id-inf" | grep -o '"ids": \[[^]]*' | grep -cvwF "$end_id")"
check "a token that a bias makes the likeliest" '"ids": [7, 7, 7] {"7": 100, "9": "-inf"}' \
  "$("$headrace" generate -p Once -n 3 --temperature 0 --json -l 7+100 --logit-bias 9-inf | grep -oE '"ids": \[[0-9, ]*\]|\{"7.*inf"\}' | xargs -d '\n')"
check "least tokens in front of a stop token" "1 5" \
  "$(for least in 0 4; do "$headrace" generate -p Once -n 32 --temperature 0 --stop-token-ids "$end_id" -l "$end_id+100" --min-tokens $least --json | grep -o '"ids": \[[^]]*' | tr -dc , | wc -c | awk '{print $1 + 1}'; done | xargs)"
distinct() { "$headrace" generate -p Once -n 80 --temperature 0 --ignore-eos --json "$@" | grep -o '"ids": \[[^]]*' | cut -d[ -f2 | tr -d ' ' | tr , '\n' | sort -u | wc -l; }
check "penalties make tokens differ" "yes yes yes" \
  "$(for penalty in presence frequency repetition; do (($(distinct --$penalty-penalty 2) > $(distinct))) && echo yes; done | xargs)"
check "penalties that are told" '"presence_penalty": -1.5, "frequency_penalty": 0.25, "logit_bias": {}, "min_tokens": 1' \
  "$("$headrace" generate -p Once -n 1 --presence-penalty -1.5 --frequency-penalty 0.25 --min-tokens 1 --json | grep -oE '"presence_penalty.*"min_tokens": [0-9]*')"
check "biases that are none" "headrace: --logit-bias: is '5', expected a token id and its bias, as 15+2.5 or 15-inf; headrace: --logit-bias is 200 for token 5, expected -100 to 100, or -inf; headrace: --logit-bias is given twice for token 5, expected once" \
  "$(message "$headrace" generate -p x --logit-bias 5); $(message "$headrace" generate -p x --logit-bias 5+200); $(message "$headrace" generate -p x -l 5+2 -l 5-2)"
check "least tokens beyond all" "headrace: --min-tokens is 9, expected 0 to 8; status 2" \
  "$(message "$headrace" generate -p x -n 8 --min-tokens 9); status $(status "$headrace" generate -p x -n 8 --min-tokens 9)"
check "two stop texts" "stop" "$("$headrace" generate -p Once -n 32 --temperature 0 --stop never --stop " upon" --json | grep -o '"finish_reason": "[a-z]*"' | cut -d'"' -f4)"

# Names that are nearly right.
check "unknown option" "headrace: unknown option '--max-token' of headrace generate; did you mean '--max-tokens'?" \
  "$(message "$headrace" generate -p x --max-token 3)"
check "unknown command" "headrace: unknown command 'genrate' of headrace; did you mean 'generate'?" \
  "$(message "$headrace" genrate -p x)"
check "what is said of llama.cpp's -ngl, and of its -hf, which is not -h" "1 1" \
  "$(message "$headrace" generate -p x -ngl 99 | grep -c -- '--device cuda') $(message "$headrace" generate -hf org/tale -p x | grep -c '^headrace: org/tale: .*nothing is downloaded$')"
check "words that begin as an option does" "-no-cnv -sys -ub -tb" \
  "$(for word in -no-cnv -sys -ub -tb; do message "$headrace" generate -p x $word 2 | sed -n "s/^headrace: unknown option '\(.*\)' of headrace generate: .*/\1/p"; done | xargs)"
check "what the demo does not take" "2 1 1" \
  "$(status "$headrace" demo --json) $(message "$headrace" demo --device cuda | grep -c 'headrace generate takes it') $(message "$headrace" demo story "$0" | grep -c 'to headrace generate$')"
check "a demo that there is not" "headrace: demo: is 'tale', expected story, diffusion or puzzle; a model of your own goes to headrace generate; status 2" \
  "$("$headrace" demo tale 2>&1); status $?"
check "stories go on behind a first line, the one of blocks too" "Once upon a time there was a king Once upon a time there was a king" \
  "$(for what in story diffusion; do "$headrace" demo $what -n 2 -t 1 2>"$work/ignored" | head -n 1 | cut -d' ' -f1-8; done | xargs)"
check "puzzles of the demo" "1276 0042 1123459 noisuffid 1432321441232341" \
  "$("$headrace" demo puzzle -t 1 2>"$work/ignored" | sed 's/.* -> //' | xargs)"
check "an empty puzzle, before anything is printed" "headrace: the prompt is empty, expected a puzzle: \"sort: 5391 =\"; status 2" \
  "$("$headrace" demo puzzle -p "" 2>&1); status $?"
check "one that the context does not hold" "2  2" "$(status "$headrace" demo puzzle -p "$long") $("$headrace" demo puzzle -p "$long" 2>"$work/ignored") $(status "$headrace" demo -p "$(yes Once | head -n 9000)")"
check "a story is not begun before its prompt is taken" "" "$("$headrace" demo -p "$(yes Once | head -n 9000)" 2>"$work/ignored")"
warned() { "$headrace" demo puzzle -t 1 "$@" 2>&1 >"$work/ignored" | grep -cE "^headrace: warning: $pattern"; }
pattern='the prompt is none of the puzzles that the model knows: "add: 289 \+ 987 =" .*"sudoku 4x4: '
check "a text that is no puzzle" "1 1 0 0 0" \
  "$(warned -p "what is 2+2") $(warned -p "add: 1234 + 1 =") $(warned) $(warned -p "sort: 5391 =") $(warned -p rev:hello)"
pattern='-n is [0-9]+: an answer of so many tokens may be cut$'
check "answers that are cut" "1 0 0" "$(warned -n 2) $(warned -n 5 -p "sort: 5391 =") $(warned)"
check "a puzzle of one's own" "rev:hello -> olleh" "$("$headrace" demo puzzle -p rev:hello -t 1 2>"$work/ignored")"
check "a GPU's kernels without a GPU" \
  "headrace: attention backend 'cuda' is not built for device cpu; built are: cpu, reference; it needs --device cuda; status 2" \
  "$("$headrace" generate -p x -n 1 --device cpu --backend cuda 2>&1); status $?"
check "names that llama.cpp's and vLLM's users know" "$one" \
  "$("$headrace" generate --model "$(dirname "$0")/../../demo_models/fairy-hybrid" -p "Once upon a time" --n-predict 32 --temp 0 --ctx-size 64 -s 7 -t 1)"
check "a prompt without quotes" "headrace: 'upon a' is more than generate takes; a text of several words goes in quotes; status 2" \
  "$("$headrace" generate -p Once -n 1 /nonexistent upon a 2>&1); status $?"
check "two models" \
  "headrace: -m, --model: is given 2 times, expected once; a word without an option in front of it is the model, too; status 2" \
  "$("$headrace" eval perplexity "$work" -m "$work" -f x 2>&1); status $?"
check "a model and a prompt given twice" "headrace: 'x' is more than generate takes; a text of several words goes in quotes; status 2" \
  "$("$headrace" generate x -m "$work" -p x 2>&1); status $?"
check "a single word that is empty is a prompt" "headrace: the prompt is empty, expected a text: no token is put in front of it; status 2" \
  "$("$headrace" generate "" 2>&1); status $?"
check "two models for one text" "2 $(printf "headrace: two models are given, '%s' and '%s', expected one " puzzle-llada fairy-hybrid fairy-hybrid puzzle-llada)" \
  "$(status "$headrace" generate fairy-hybrid -m puzzle-llada -p hi) $(for words in "fairy-hybrid -m puzzle-llada -p hi" "fairy-hybrid puzzle-llada hi"; do message "$headrace" generate $words; done | tr '\n' ' ')"
check "a prompt given twice" "headrace: -p, --prompt: is given 2 times, expected once" "$(message "$headrace" generate -p x -p y)"
check "a value that is missing" 2 "$(status "$headrace" generate -p)"
check "help of the program and of eval" "0 0" "$(status "$headrace" --help) $(status "$headrace" eval --help)"
check "unknown command is usage" 2 "$(status "$headrace" genrate -p x)"
check "a flag that bench attention would ignore is usage" 2 "$(status "$headrace" bench attention --dtype bfloat16)"
check "and a model, a context, strict mode" "2 2 2" \
  "$(status timeout 5 "$headrace" bench gdn "$(dirname "$0")") $(status timeout 5 "$headrace" bench gdn -c 64) $(status timeout 5 "$headrace" bench attention --deterministic)"
check "requests at once are bench model's" 2 "$(status timeout 5 "$headrace" bench gdn --parallel 3)"
check "and prompts of a length bench blocks'" \
  "headrace: bench model: --input-len has no effect on it; bench agent, arrivals, blocks, engine, serve and bench model --parallel take it; status 2" \
  "$(timeout 5 "$headrace" bench model --input-len 64 2>&1); status $?"
check "each number of requests, likely and drawn tokens" "batch 1 Qwen,batch 1 Qwen,batch 1 drawn,batch 1 drawn,batch 3 Qwen,batch 3 drawn,batch 3 drawn," \
  "$("$headrace" bench model --parallel 1,3 | grep -oE 'batch [0-9]+ (drawn|Qwen)' | tr '\n' ',')"
check "requests that come and go" "model arrivals 3 requests: some tokens, some prompts, a gap" \
  "$("$headrace" bench arrivals --parallel 3 --input-len 16 | sed -nE 's/^\{"name": "(model arrivals 3 requests) .*", "median_s": [0-9.]*[1-9][0-9.]*, "tokens_per_s": [0-9.]*[1-9][0-9.]*, "prompt_rows_share": 0\.[0-9]*[1-9][0-9]*, "host_gap_us": [0-9.]*[1-9][0-9.]*, "host_gap_p99_us": [0-9.]*[1-9][0-9.]*\}$/\1: some tokens, some prompts, a gap/p')"
check "two engines beside one, and no prefill behind them" "3 in 2 engines,4 in 2 engines," \
  "$("$headrace" bench model --parallel 3,4 --engines 2 --input-len 16 | sed -nE 's/^\{"name": "model decode batch ([34] in 2 engines) Qwen[^"]*", "tokens_per_s": [0-9]+\.[0-9], "one_engine_tokens_per_s": [0-9]+\.[0-9], "share_of_one_engine": [0-9]+\.[0-9]{3}\}$/\1/p' | tr '\n' ',')"
check "engines without requests at once" \
  "headrace: bench model: --engines has no effect on it; bench model --parallel takes it; status 2" \
  "$(timeout 5 "$headrace" bench model --engines 2 2>&1); status $?"
check "fewer requests than engines" \
  "headrace: bench model: --parallel 1 is too few for --engines 2, expected a request for each engine; status 2" \
  "$(timeout 5 "$headrace" bench model --parallel 1 --engines 2 2>&1); status $?"
"$headrace" bench engine --parallel 2,256 --input-len 512 --json >"$work/engine"
check "the engine's steps beside their goals" \
  "2 dense cpu null,256 dense cpu 60 growth 0.05,2 dense fake device null,256 dense fake device 60 growth 0.05,2 hybrid cpu null,256 hybrid cpu 80 growth 0.05,2 hybrid fake device null,256 hybrid fake device 80 growth 0.05," \
  "$(sed -nE 's/^\{"name": "engine step of ([0-9]+) running behind 512 tokens ([a-z ]+)", "median_us": [0-9.]*[1-9][0-9.]*, "goal_us": ([a-z0-9]+)(, "(growth)": -?[0-9.]+, "goal_growth": ([0-9.]+))?\}$/\1 \2 \3 \5 \6/p' "$work/engine" | sed 's/ *$//' | tr '\n' ',')"
admissions() { for kind in "dense cpu" "dense fake device" "hybrid cpu" "hybrid fake device"; do printf '%s,' "2 10 $kind" "2 100 $kind" "2 1000 $kind" "256 10 $kind" "256 100 $kind" "256 1000 $kind"; done; }
check "and its admissions of prompts that are cached in part" "$(admissions)" \
  "$(sed -nE 's/^\{"name": "engine admission of 512 tokens beside ([0-9]+) running and ([0-9]+) cached texts ([a-z ]+)", "median_us": -?[0-9.]+, "goal_us": null, "reused": 384\}$/\1 \2 \3/p' "$work/engine" | tr '\n' ',')"
check "and what a step costs more by the loop that serves many threads" "2 1 null,2 2 null,256 1 10,256 256 null," \
  "$(sed -nE 's/^\{"name": "engine loop of ([0-9]+) running in ([0-9]+) queues dense cpu", "median_us": -?[0-9.]+, "goal_us": ([a-z0-9]+)\}$/\1 \2 \3/p' "$work/engine" | tr '\n' ',')"
check "threads that the engine's own is not" 2 "$(status timeout 5 "$headrace" bench engine -t 2)"
check "FP8 keys and values" 1 "$("$headrace" generate -p "Once" -n 4 --temperature 0 --kv-cache-dtype fp8_e4m3 --json | grep -c '"kv_cache_dtype": "float8_e4m3fn"')"
for name in int8 q8_0; do
  check "keys and values in $name" 1 "$("$headrace" generate -p "Once" -n 4 --temperature 0 --kv-cache-dtype $name --json | grep -c '"kv_cache_dtype": "int8"')"
done
check "a cache dtype that is not built is usage" 2 "$(status "$headrace" generate -p x --kv-cache-dtype fp8_e5m2)"
# Paths: a script's variable that is not set is no wish for the default.
for command in generate "eval puzzles" "eval perplexity" "bench model"; do
  for option in $("$headrace" $command --help-all | grep -oE -- '--[a-z-]+ (FILE|DIRECTORY|MODEL|NAME)' | cut -d' ' -f1); do
    check "$command: an empty $option" "2 1" \
      "$(status timeout 20 "$headrace" $command $option '') $(message timeout 20 "$headrace" $command $option '' | grep -c "^headrace: $option: is empty, expected a ")"
  done
  check "$command: paths are said to be paths" "" "$("$headrace" $command --help-all | grep -E ' TEXT .*([Ff]ile|[Dd]irector|[Pp]ath)')"
done
check "options of generate that take a path" "--file --model --revision --adapter --kernel-set --trace" \
  "$("$headrace" generate --help-all | grep -oE -- '--[a-z-]+ (FILE|DIRECTORY|MODEL|NAME)' | cut -d' ' -f1 | xargs)"
check "the sentence about it" "headrace: --trace: is empty, expected a file" "$(message "$headrace" generate -p x -n 1 --trace '')"
check "an empty value behind = takes no other word" \
  "headrace: the prompt is empty, expected a text: no token is put in front of it; headrace: --file: is empty, expected a file; headrace: --seed: is '', expected an integer from 0 to 18446744073709551615, or -1 (another one each time)" \
  "$(message "$headrace" generate --prompt= "$(dirname "$0")/../../demo_models/puzzle-diffusion" -n 1); $(message "$headrace" generate --file= /nonexistent); $(message "$headrace" generate -p x --seed= 7)"
check "an adapter that is empty is no wish for the base model" "headrace: --adapter: is empty, expected a directory" \
  "$(message "$headrace" generate -p x -n 1 --adapter '')"
check "a choice that there is not" "headrace: --accept: is 'bogus', expected confidence, entropy, entropy_bound, leftmost, margin or random" \
  "$(message "$headrace" generate -p x --accept bogus)"
check "one sentence" 1 "$(message "$headrace" generate -p x --backend nonsense | wc -l)"

# Ctrl-C: what was made so far is out, on whole lines, and the status says that it was cut short.
interrupt() {  # interrupt FILE ARGS...: starts, waits for the first bytes (or a second), interrupts
  local out="$1" program waited
  shift
  rm -f "$out"
  env "--${parent:-default}-signal=INT" "$@" >"$out" 2>"$work/interrupted" &  # a script's background job ignores it
  program=$!
  for waited in {1..100}; do
    [[ -s "$out" || $waited -ge ${wait_tenths:-100} ]] && break
    sleep 0.1
  done
  kill "-${signal:-INT}" "$program"
  wait "$program"
  echo "$? $(cat "$work/interrupted")"
}
check "interrupted" "130 " "$(interrupt "$work/text" "$headrace" generate -p "Once" -n 8000 --temperature 0 --ignore-eos)"
whole=$("$headrace" generate -p "Once" -n 400 --temperature 0 --ignore-eos)
made=$(cat "$work/text")
[[ "$whole" == "$made"* || "$made" == "$whole"* ]]
check "interrupted text is a beginning" 0 $?
check "interrupted text ends its line" "" "$(tail -c 1 "$work/text")"
check "interrupted json" "130 " \
  "$(wait_tenths=10 interrupt "$work/json" "$headrace" generate -p "Once" -n 8000 --temperature 0 --ignore-eos --json)"
check "interrupted json is whole" 1 "$(grep -c '^{"text": ".*"finish_reason": "abort".*}$' "$work/json")"

# Before there is anything to print it ends at once: here a prompt of 300 MB is being read into tokens.
head -c 300000000 /dev/zero | tr '\0' a >"$work/long"
for name in INT TERM; do
  check "$name beside a long prompt" "130 " \
    "$(signal=$name wait_tenths=5 interrupt "$work/none" "$headrace" generate -f "$work/long" -n 1)"
done
rm "$work/long"
check "an interrupt that the parent ignores" "0 " \
  "$(parent=ignore interrupt "$work/whole" "$headrace" generate -p "Once" -n 400 --temperature 0 --ignore-eos)"
check "a file as large as may be" 3 \
  "$(ulimit -f 1; status "$headrace" generate -p "Once" -n 40 --seed 1 --trace "$work/limited.jsonl")"

# Puzzles: what was answered so far, in a table and a curve that are whole.
check "interrupted puzzles" "130 " \
  "$(wait_tenths=40 interrupt "$work/table" "$headrace" eval puzzles -t 1 --svg "$work/interrupted.svg")"
check "interrupted puzzles say so" 1 \
  "$(tail -n 1 "$work/table" | grep -cE '^incomplete: interrupted after [0-9]+ of 7600 answers$')"
check "every line has all columns" 1 "$(sed '$d; s/one per pass/one/; s/ %/%/g' "$work/table" | awk '{print NF}' | sort -u | wc -l)"
check "and a curve" "</svg>" "$(tail -n 1 "$work/interrupted.svg")"
check "interrupted puzzles in json" "130 " "$(wait_tenths=40 interrupt "$work/puzzles" "$headrace" eval puzzles -t 1 --json)"
check "are whole" 1 "$(tr -d '\n' <"$work/puzzles" | grep -cE '^\{"complete": false, "runs": \[\{.*\}\]\}$')"

check "puzzles that are told to end" "130 " \
  "$(signal=TERM wait_tenths=40 interrupt "$work/ended" "$headrace" eval puzzles -t 1)"
check "say what there is, too" 1 "$(tail -n 1 "$work/ended" | grep -c '^incomplete: interrupted after ')"
check "strategies are separated by commas" 1 "$("$headrace" eval puzzles --help | grep -c -- '--strategies A,B')"

# Memory, and formats that are refused by name.
[[ -n "$sanitize" ]] || check "no memory" 4 "$(ulimit -v 400000; status "$headrace" generate -p x -n 2 -c 16777216)"
mkdir "$work/gguf" "$work/pickle"
touch "$work/gguf/model-q4.gguf" "$work/pickle/pytorch_model.bin"
for format in "gguf:name the file, not its directory" "pickle:pickle weights are not supported"; do
  check "${format%%:*} by name" 1 "$(message "$headrace" generate "$work/${format%%:*}" -p x | grep -c "${format#*:}")"
  check "${format%%:*} is usage" 2 "$(status "$headrace" generate "$work/${format%%:*}" -p x)"
done
check "an empty GGUF file" 1 "$(message "$headrace" generate "$work/gguf/model-q4.gguf" -p x | grep -c "model-q4.gguf: is empty")"

# A gigabyte of weights, all holes: how far loading is, in bytes, before the next tensor is found missing.
header='{"model.embed_tokens.weight":{"dtype":"BF16","shape":[8388608,64],"data_offsets":[0,1073741824]}}'
mkdir "$work/large"
printf "\\x$(printf %02x ${#header})\0\0\0\0\0\0\0%s" "$header" >"$work/large/model.safetensors"
truncate -s $((8 + ${#header} + 1073741824)) "$work/large/model.safetensors"
cat >"$work/large/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "vocab_size": 8388608, "num_hidden_layers": 1,
 "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 64, "rope_theta": 10000.0, "dtype": "bfloat16"}
JSON
cp "$(dirname "$0")/../../demo_models/fairy-hybrid/tokenizer.json" "$work/large/"
check "progress in lines" "loading 1.1 of 1.1 GB" "$(message "$headrace" generate "$work/large" -p x | head -n 1)"
check "missing tensor" 3 "$(status "$headrace" generate "$work/large" -p x)"
if [[ -n "$terminal" ]]; then
  bar=$(printf '\rloading [%s] 1.1 of 1.1 GB\r\033[Kheadrace: ' "$(printf '#%.0s' {1..32})")
  check "progress on a terminal" "$bar" "$(script -qec "$headrace generate $work/large -p x" /dev/null | head -c ${#bar})"
fi

# Seventeen terabytes of keys and values: Linux would hand them out, and end the program that uses them.
mkdir "$work/wide"
cat >"$work/wide/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "vocab_size": 256, "num_hidden_layers": 1, "head_dim": 256,
 "num_attention_heads": 1024, "num_key_value_heads": 1024, "intermediate_size": 64, "rope_theta": 10000.0, "dtype": "bfloat16",
 "max_position_embeddings": 16777216}
JSON
if [[ -r /proc/meminfo ]]; then
  wide=$("$headrace" generate "$work/wide" --random-weights 1 -p x -n 1 -c 16777216 2>&1)
  check "a cache beyond the machine's memory is refused" "4 1" \
    "$? $(grep -cE '^headrace: a KV cache of 16777216 tokens needs 17\.[0-9] TB: cpu: [0-9.]+ [MG]B are available; try' <<<"$wide")"
  check "and a context of 0 is all that the model was made for" 1 \
    "$(message "$headrace" generate "$work/wide" --random-weights 1 -p x -n 1 --ctx-size 0 | grep -c '^headrace: a KV cache of 16777216 tokens ')"
fi

# A model by its name, as Hugging Face's tools store it: links to blobs.
hub="$work/hub/models--org--tale"
mkdir -p "$hub/refs" "$hub/snapshots/0123" "$hub/blobs"
echo -n 0123 >"$hub/refs/main"
for file in "$(dirname "$0")"/../../demo_models/fairy-hybrid/*.{json,safetensors}; do
  cp "$file" "$hub/blobs/$(basename "$file").blob"
  ln -s "../../blobs/$(basename "$file").blob" "$hub/snapshots/0123/$(basename "$file")"
done
check "a model by its name" "$one" "$(HF_HUB_CACHE="$work/hub" "$headrace" generate org/tale -p "Once upon a time" -n 32 --temperature 0 -t 1)"
by_name() { HUGGINGFACE_HUB_CACHE="$work/hub" "$headrace" generate "$@" -p "Once upon a time" -n 32 --temperature 0 -t 1; }
check "as llama.cpp names it, with its revision, and by its folder" "$one|$one|$one|$one" \
  "$(by_name -hf org/tale)|$(by_name org/tale@0123)|$(by_name org/tale --revision main)|$(by_name "$hub/")"
check "a revision that is not there" "3 1" \
  "$(HF_HOME="$work" status "$headrace" generate org/tale@v9 -p x) $(HF_HOME="$work" message "$headrace" generate org/tale@v9 -p x | grep -c "^headrace: org/tale: the cache holds no revision 'v9'; ")"
check "a revision of nothing" "headrace: --revision: is main, expected a model beside it: the name of one on Hugging Face's hub" \
  "$(message "$headrace" generate --revision main -p x)"
check "the list of the cache" "org/tale Qwen3_5 cache" \
  "$(HF_HUB_CACHE="$work/hub" "$headrace" list | grep '^org/tale' | awk '{print $1, $2, $NF}')"
check "and as JSON" 1 "$(HF_HUB_CACHE="$work/hub" "$headrace" list --json | grep -c '"name": "org/tale", "architecture": "Qwen3_5ForCausalLM", "runs": true, "bytes": [0-9]*, "place": "cache"')"
check "a name that is not there" "headrace: org/other: no such model directory, nor is it in $work/hub; HF_HUB_OFFLINE is set: nothing is downloaded" \
  "$(HF_HOME="$work" message "$headrace" generate org/other -p x)"
check "one that is not to be downloaded" "headrace: org/other@v2: no such model directory, nor is it in $work/hub; headrace pull org/other@v2 downloads it, if the hub has it" \
  "$(HF_HUB_OFFLINE=0 HF_HOME="$work" message "$headrace" generate org/other --revision v2 -p x --offline)"
check "no path is downloaded" "headrace: ./org/other: no such model directory, nor is it in $work/hub" \
  "$(HF_HUB_OFFLINE=0 HF_HOME="$work" message "$headrace" generate ./org/other -p x)"
check "nor one through a folder that is here" 1 \
  "$(cd "$work" && HF_HUB_OFFLINE=0 HF_HOME="$work" message "$headrace" generate hub/other -p x | grep -c '^headrace: hub/other: no such model directory')"
mkdir -p "$work/hub/models--org--pinned/snapshots/4567"
check "one whose main revision nobody names" "3 1" \
  "$(HF_HOME="$work" status "$headrace" generate org/pinned -p x) $(HF_HOME="$work" message "$headrace" generate org/pinned -p x | grep -c '/models--org--pinned/refs/main: is missing, ')"
mkdir -p "$work/.cache/huggingface" "$work/nothing"
ln -sfn "$work/hub" "$work/.cache/huggingface/hub"
check "without HOME there is no cache, not even in the current directory" \
  "headrace: org/tale: no such model directory, and without HOME no cache of models to look in" \
  "$(cd "$work" && unset HOME HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE XDG_CACHE_HOME; message "$headrace" generate org/tale -p x)"
check "a directory that is no model" "headrace: $work/nothing is no model directory: it has no config.json" \
  "$(message "$headrace" generate "$work/nothing" -p x)"

# How tokens are drawn: as a flag says, else as generation_config.json does.
sampling() { "$headrace" generate "$@" -p "Once" -n 1 --json --log-level off | grep -o '"temperature": [0-9.]*, "top_k": [0-9]*, "top_p": [0-9.]*' | tr -cd '0-9. ' | xargs; }
demos="$(dirname "$0")/../../demo_models"
check "the demo's sampling" "0.8 0 0.95" "$(sampling "$demos/fairy-hybrid")"
check "flags go first" "0 5 0.5" "$(sampling "$demos/fairy-hybrid" --temperature 0 --top-k 5 --top-p 0.5)"
length() { message "$headrace" generate "$demos/$1" -p "$2" -n 1 -t 1 | grep -c 'expected a multiple of 16: .*puzzle-llada takes fewer, too, as headrace demo puzzle -p "add: 7 + 35 ="$'; }
check "a prompt of a length that the model was not trained on" "1 0 0" \
  "$(length puzzle-diffusion "sort: 5391 =") $(length puzzle-diffusion "add: 012 + 030 =") $(length puzzle-llada "sort: 5391 =")"
check "a model that does not sample" "0 0 1" "$(sampling "$demos/puzzle-diffusion")"
check "the demo's own sampling" "1 0 0.9" "$(sampling "$demos/fairy-diffusion")"
check "a published loop's sampling is not generation_config's" "1 0 1" "$(sampling "$demos/fairy-diffusion" --schedule reference)"
check "flags go before a published loop" "0.5 3 1" "$(sampling "$demos/fairy-diffusion" --schedule reference --temperature 0.5 --top-k 3)"
decoding() { "$headrace" generate "$@" -p "Once" -n 1 --json | grep -o '"decoding": \(null\|{[^}]*}\)' | tr -d '"'; }
published() { family=$1; shift; decoding "$(dirname "$0")/../golden/$family" --random-weights 1 --schedule reference "$@"; }
check "a causal model has no way of decoding" "decoding: null" "$(decoding "$demos/fairy-hybrid")"
check "the demo's way of decoding" "decoding: {schedule: threshold, steps: null, rule: confidence, threshold: 0.85, cfg_scale: 0, block_size: 8, blocks: 1, block_cache: null}" "$(decoding "$demos/fairy-diffusion")"
check "what flags say of it" "decoding: {schedule: threshold, steps: null, rule: confidence, threshold: inf, cfg_scale: 0, block_size: 16, blocks: 2, block_cache: null}" \
  "$(decoding "$demos/fairy-diffusion" --strategy d2f --threshold inf --block-size 16 --blocks 2)"
check "Dream's loop takes masks by chance" "decoding: {schedule: reference, steps: null, rule: random, threshold: null, cfg_scale: 0, block_size: null, blocks: 1, block_cache: null}" "$(published dream)"
check "a rule goes before Dream's" "decoding: {schedule: reference, steps: null, rule: entropy, threshold: null, cfg_scale: 0, block_size: null, blocks: 1, block_cache: null}" "$(published dream --accept entropy)"
check "Fast-dLLM v2's loop is exact" "decoding: {schedule: reference, steps: null, rule: confidence, threshold: 0.9, cfg_scale: 0, block_size: 16, blocks: 1, block_cache: no}" "$(published fast_dllm_v2)"
check "its cache when asked for" "decoding: {schedule: reference, steps: null, rule: confidence, threshold: 0.9, cfg_scale: 0, block_size: 16, blocks: 1, block_cache: yes}" "$(published fast_dllm_v2 --block-cache yes)"
check "a bad parameter is found before the model" 2 "$(status "$headrace" generate /nonexistent -p x --temperature -1)"

# A directory that holds only config.json.
mkdir "$work/bare"
cp "$(dirname "$0")/../golden/qwen3_5/config.json" "$work/bare/"
check "random weights need config.json alone" 1 \
  "$("$headrace" generate "$work/bare" --random-weights 1 -p "Once" -n 4 --json | grep -c '"prompt_tokens": 4, "completion_tokens": 4')"
lacked="headrace: $work/bare: lacks weights (model.safetensors, or model.safetensors.index.json and the files that it names) and a tokenizer (tokenizer.json, or vocab.json and merges.txt); headrace generate --random-weights 1 needs config.json alone; status 3"
check "and without them it is no model" "$lacked|$lacked" \
  "$("$headrace" generate "$work/bare" -p "Once" -n 4 2>&1); status $?|$("$headrace" doctor "$work/bare" 2>&1); status $?"
check "a file in place of its directory" "headrace: $work/bare/config.json: is a file, expected the directory of a model or a GGUF file; status 3" \
  "$("$headrace" generate "$work/bare/config.json" hi --random-weights 1 2>&1); status $?"
check "noise is said to be noise where somebody reads it" "0 1" \
  "$(message "$headrace" generate "$work/bare" --random-weights 1 -p "Once" -n 4 | wc -l) $(message "$headrace" generate "$work/bare" --random-weights 1 -p "Once" -n 4 --log-level info | grep -c 'the weights are random: the text is noise$')"
if [[ -n "$terminal" ]]; then
  noise=$(script -qec "$headrace generate $work/bare --random-weights 1 -p Once -n 64" /dev/null </dev/null)
  check "which is warned of on a terminal, and shown without control characters" "1 yes " \
    "$(grep -ac 'warning: the weights are random: the text is noise' <<<"$noise") $(grep -qaE '\\x[01][0-9a-f]' <<<"$noise" && echo yes) $(tr -d '\r\n\t' <<<"$noise" | tr -cd '\000-\037\177')"
fi

# An empty prompt: refused before weights are read, unless the tokenizer puts a token in front of it.
cp "$demos/fairy-hybrid/tokenizer.json" "$work/bare/"
check "an empty prompt" "headrace: the prompt is empty, expected a text: no token is put in front of it; status 2" \
  "$("$headrace" generate "$work/bare" -p "" 2>&1); status $?"
check "an empty file" 2 "$(status "$headrace" generate "$work/bare" -f /dev/null)"
cp "$(dirname "$0")/../golden/tokenizers/llama3.json" "$work/bare/tokenizer.json"
sed -i 's/"vocab_size": [0-9]*/"vocab_size": 4096/' "$work/bare/config.json"
check "one token of the tokenizer's own, unless the prompt spells them" "1 2" \
  "$(prompt_tokens "$work/bare" --random-weights 1 -p "") $(status "$headrace" generate "$work/bare" -p "" --special-tokens)"

# The library's messages: warnings unless told otherwise.
check "quiet by itself" "" "$(message "$headrace" generate -p Once -n 1)"
check "three lines of information" 3 "$(message "$headrace" generate -p Once -n 1 --log-level info | grep -c '^headrace: info: ')"
check "a warning" 1 "$(message "$headrace" generate -p Once -n 1 -c 65536 | grep -c '^headrace: warning: a context of 65536 ')"
check "not even that" "" "$(message "$headrace" generate -p Once -n 1 -c 65536 --log-level off)"

check "a context that is full" "headrace: warning: the context of 32 tokens is full after 31 of 64 new ones; -c N makes it larger" \
  "$(message "$headrace" generate -p Once -c 32 -n 64 --ignore-eos)"
truncated() { "$headrace" generate -p Once "$@" --ignore-eos --json 2>/dev/null | grep -o '"finish_reason": "[a-z]*", "truncated": [a-z]*'; }
check "which --json states" '"finish_reason": "length", "truncated": true' "$(truncated -c 32 -n 64)"
check "and one that all tokens just fill" '"finish_reason": "length", "truncated": false ' \
  "$(truncated -c 32 -n 31) $(message "$headrace" generate -p Once -c 32 -n 31 --ignore-eos)"

# The doctor of a model: what it is, whether it fits.
said=$("$headrace" doctor "$(dirname "$0")/../../demo_models/fairy-hybrid")
for line in model layers decodes chat context memory speed; do
  check "doctor MODEL says $line" 1 "$(grep -cE "^$line +[^ ]" <<<"$said")"
done
check "the parameters of the demo" 1 "$(grep -c '11.9 million parameters' <<<"$said")"

# The doctor explains kernels without a device.
check "doctor explains a call" "small_m (80 columns of W a tile, 16 rows of x, 122 clusters of 1, 8 stages)" \
  "$("$headrace" doctor --explain 'gemm m=8 n=9728 k=2560')"
check "and in another mode" batch_invariant_sm90 "$("$headrace" doctor --explain 'gemm m=65 n=9728 k=2560 dtype=bf16 mode=batch-invariant')"
check "in json" '{"m": 1, "n": [1024], "k": 2048, "mode": "default", "kernels": "gemv", "plan": "gemv"}' \
  "$("$headrace" doctor --explain 'gemm m=1 n=1024 k=2048' --json)"
check "and attention" "fmha_sm90: tiles of 64 rows x 128 keys, KV splits of 4096 keys, shorter ones last; graphs of their own up to 2048 keys" \
  "$("$headrace" doctor --explain 'attention heads=32 kv_heads=8 dim=128 requests=64 tokens=1 keys=8192')"
check "attention in json" '{"kernel": "cluster_decode", "plan": "cluster_decode: 1 cluster of 4 CTAs, fixed KV splits", "kv_len_buckets": []}' \
  "$("$headrace" doctor --explain 'attention heads=32 kv_heads=8 dim=128 requests=1 tokens=4 keys=512' --json)"
check "and a model, named on either side" "2 2 2" \
  "$("$headrace" doctor fairy-hybrid --explain | grep -cE '^(gdn in|head)  n=') $("$headrace" doctor --explain fairy-hybrid | grep -cE '^(gdn in|head)  n=') $("$headrace" doctor fairy-hybrid --explain --json | grep -oE '"gemm": "head".{0,60}"m": 3,' | wc -l)"
for bad in "gemm m=8 n=9728|k= is missing" "gemm m=0 n=8 k=8|m is '0', expected a whole number from 1 to 2^40" \
  "gemm m=1,2 n=8 k=8|m has 2 numbers, expected one" "gemm m=1 n=8 k=8 m=2|m is stated twice" \
  "gemm m=1 n=8 k=8 x=1|'x=1' is unknown" "gemm m=1 n=8 k=8 fast|'fast' is unknown" \
  "gemm m=1 n=8 k=8 dtype=int8|dtype is 'int8', expected one of: bf16, fp16, fp32" \
  "gemm m=1 n=8,8 k=8 residual|a residual takes one n" \
  "attention heads=32 kv_heads=5 dim=128 requests=1 tokens=1 keys=8|32 heads are not a multiple of 5 kv_heads" \
  "attention heads=8 kv_heads=8 dim=128 requests=1 tokens=9 keys=8|9 tokens see themselves" \
  "attention heads=8 kv_heads=8 dim=128 requests=1048577 tokens=1 keys=8|requests is 1048577, expected at most 1048576" \
  "attention heads=8 kv_heads=8 dim=128 requests=1048576 tokens=4096 keys=4096|1048576 times 4096 query rows" \
  "gemv m=1|'gemv' is no op, expected one of: gemm"; do
  check "explaining '${bad%%|*}'" "2 1" \
    "$(status "$headrace" doctor --explain "${bad%%|*}") $(message "$headrace" doctor --explain "${bad%%|*}" | grep -cF -- "${bad##*|}")"
done
check "nothing to explain" 2 "$(status "$headrace" doctor --explain)"
check "a kernel family that there is not" "2 1" \
  "$(status "$headrace" bench model fairy-hybrid --leave-out gemv,simt) $(message "$headrace" bench model fairy-hybrid --leave-out gemv,simt | grep -c "'simt' is no kernel family that can be left out")"

# The doctor: every line of the report, on any machine.
report=$("$headrace" doctor)
for line in cpu has kernels portable memory matmul gpu; do
  check "doctor says $line" 1 "$(grep -cE "^ *$line " <<<"$report")"
done
if [[ $(uname -m) == x86_64 ]]; then  # each kernel set, whether it is built in or not
  check "the doctor's kernel sets" 5 "$(grep -cE '^  (portable|avx2|avx512|avx512bf16|amx) ' <<<"$report")"
fi

check "doctor's gpu, or why there is none" 1 "$("$headrace" doctor --json | grep -cE '"gpus": (\[\], "driver": [^,]+, "driver_cuda": [^,]+, "why_no_gpu": ".+"|\[.+\], "driver": [^,]+, "driver_cuda": [^,]+, "why_no_gpu": null)}$')"

# Perplexity fits its window to the context.
printf 'There was once a king who had three sons. %.0s' {1..20} >"$work/book"
check "short context" 1 "$("$headrace" eval perplexity --file "$work/book" -c 64 | grep -c 'in windows of 63, which is what the context holds')"
check "perplexity and bits per byte" 1 "$("$headrace" eval perplexity -f "$work/book" -c 64 | grep -cE '^perplexity [0-9.]+, [0-9.]+ bits per byte, over [0-9]+ tokens ')"
check "perplexity in json" 1 "$("$headrace" eval perplexity --file "$work/book" -c 64 --json | grep -cE '^\{"perplexity": [0-9.]+, "bits_per_byte": ')"
check "window in json" 1 "$("$headrace" eval perplexity --file "$work/book" -c 64 --json | grep -c '"window": 63}')"
for family in llada diffusion_gemma; do
  check "no perplexity of $family, which is said before weights are read" 1 \
    "$(message "$headrace" eval perplexity "$(dirname "$0")/../golden/$family" --file "$work/book" | grep -c '^headrace: perplexity: .* no probability of the next one$')"
done
check "that of causal blocks is as a causal model's" 0 "$(status "$headrace" eval perplexity "$demos/fairy-diffusion" --file "$work/book" -c 64)"
check "book that is a folder" 2 "$(status "$headrace" eval perplexity --file "$work")"

# The puzzles' model without its weights.
mkdir "$work/no_weights"
cp "$demos/puzzle-diffusion/config.json" "$demos/puzzle-diffusion/tokenizer.json" "$work/no_weights/"

# Tokens that count: those of the text.
sorted() { "$headrace" generate "$demos/puzzle-diffusion" -p "sort: 79285432 =" -n 20 "$@" --json; }
ids() { grep -oE '"ids": \[[^]]*' | grep -oE '[0-9]+' | xargs; }
counts() { grep -oE '"(text|completion_tokens|forwards|tokens_per_forward)": ("[^"]*"|[0-9.]*)' | sed 's/.*: //' | xargs; }
check "an end token is none" "22345789 8 1 8.000" "$(sorted | counts)"
check "nor are those behind it" "22345789 8" "$(sorted --ignore-eos | counts | cut -d' ' -f1,2)"
check "where end tokens are banned there is text to the end" "20 20 length" \
  "$(sorted --ban-end-tokens | grep -oE '"completion_tokens": [0-9]*' | grep -oE '[0-9]+') $(sorted --ban-end-tokens | ids | wc -w) $(sorted --ban-end-tokens | grep -oE '"finish_reason": "[a-z]*' | cut -d'"' -f4)"
check "which is not to go on behind one" "headrace: --ignore-eos and --ban-end-tokens: both are given, expected one of them; status 2" \
  "$("$headrace" generate -p x --ban-end-tokens --ignore-eos 2>&1); status $?"
check "what of that --json states" '"decode_tokens_per_s": null "steps": null "cfg_scale": 0 "end_tokens": "banned"' \
  "$(sorted | grep -o '"decode_tokens_per_s": [^}]*') $(sorted | grep -oE '"(steps": null|cfg_scale": 0)' | xargs -d '\n') $(sorted --ban-end-tokens | grep -o '"end_tokens": "[a-z]*"')"
check "a kernel set for a device, before one is looked for" \
  "headrace: --kernel-set is avx2, expected none with --device cuda: it names a CPU's kernels; --backend cuda or cuda_baseline chooses a device's; status 2" \
  "$("$headrace" generate -p x --device cuda --kernel-set avx2 2>&1); status $(status "$headrace" generate -p x --device cuda --kernel-set avx2)"
check "what a stop text leaves" "2234 4 1 4.000" "$(sorted --stop 578 | counts)"
check "which may be nothing" " 0 1 0.000" "$(sorted --stop 22 | counts | sed 's/^0/ 0/')"
check "log-probabilities, one for each id" "9 9 1" \
  "$(sorted --logprobs | grep -oE '"tokens": \["[^]]*"\]' | grep -oE '"[^",: ]*"' | grep -vc tokens) $(sorted --logprobs | grep -oE '"token_logprobs": \[[^]]*' | grep -oE -- '-?[0-9]+\.[0-9]{6}' | wc -l) $(sorted | grep -vc logprobs)"
check "which are part of the JSON alone" 2 "$(status "$headrace" generate -p x -n 1 --logprobs)"

# An adapter is named; one whose factors are not all there, are no numbers, or are another task's, is refused.
golden="$(dirname "$0")/../golden"
"$(dirname "$headrace")/golden_checkpoint" dream "$work/dream"
cp "$demos/puzzle-diffusion/tokenizer.json" "$work/dream/"
cp -r "$golden/dream_lora" "$work/lora"
adapted() { "$headrace" generate "$work/dream" -p x -n 2 -c 32 --temperature 0 --adapter "$work/lora" "$@"; }
check "an adapter in the JSON" 1 "$(adapted --json 2>/dev/null | grep -cF "\"adapter\": \"$work/lora\"")"
check "and in the log" 1 "$(message adapted --log-level info | grep -cF "$work/lora/adapter_model.safetensors: 6 weights are adapted, rank 4")"
check "none" 1 "$(sorted | grep -c '"adapter": null')"
check "d2f with one, and without one" "0 1" \
  "$(message adapted --strategy d2f | grep -c 'warning: strategy') $(message "$headrace" generate "$work/dream" -p x -n 2 -c 32 --strategy d2f | grep -c "^headrace: warning: strategy 'd2f' decodes models that were trained for it")"
sed -i 's/"q_proj"/"q_proj", "k_proj"/' "$work/lora/adapter_config.json"
check "an adapter that lacks what it names" \
  "headrace: $work/lora/adapter_model.safetensors: has no factors of 'model.layers.0.self_attn.k_proj.weight', which target_modules in adapter_config.json names; status 3" \
  "$(adapted 2>&1); status $(status adapted)"
sed 's/"task_type": null/"task_type": "SEQ_CLS"/' "$golden/dream_lora/adapter_config.json" >"$work/lora/adapter_config.json"
check "one of a classifier" "2 1" "$(status adapted) $(message adapted | grep -c "task_type 'SEQ_CLS'")"
cp "$golden/dream_lora/adapter_config.json" "$work/lora/"
data=$((8 + $(od -An -t u8 -N 8 "$work/lora/adapter_model.safetensors")))
printf '\xff\xff\xff\xff' | dd of="$work/lora/adapter_model.safetensors" bs=1 seek=$data conv=notrunc 2>/dev/null
check "one of NaN" "3 1" "$(status adapted) $(message adapted | grep -c "tensor 'base_model[^']*lora_A.weight' holds -*nan at element 0, expected finite numbers")"

# A block-diffusion model of random weights, with the bundled tokenizer.
mkdir "$work/diffusion"
cp "$(dirname "$0")/../../demo_models/fairy-hybrid/tokenizer.json" "$work/diffusion/"
sed -e 's/"vocab_size": [0-9]*/"vocab_size": 8192/; s/"mask_token_id": [0-9]*/"mask_token_id": 5/; s/"block_size": [0-9]*/"block_size": 8/' \
  "$(dirname "$0")/../golden/sdar/config.json" >"$work/diffusion/config.json"
diffuse() {
  "$headrace" generate "$work/diffusion" --random-weights 1 -p "Once upon a time" -n 20 --temperature 0 --ignore-eos "$@" 2>&1
}
field() { grep -o "\"$1\": [0-9.]*" | sed 's/.*: //'; }
passes='\(forwards\|tokens_per_forward\)'
check "one token per forward" "20 1.000" "$(diffuse --json | field "$passes" | xargs)"
check "blocks at once" "2 10.000" "$(diffuse --json --threshold 0 --blocks 2 | field "$passes" | xargs)"
check "the model's strategy by itself" "$(diffuse)" "$(diffuse --strategy multi_bd)"
for impl in reference optimized grouped; do
  check "the run names $impl attention" 1 "$(diffuse --json --attn-impl $impl | grep -c "($impl)")"
  check "the forwards of $impl attention" "2 10.000" \
    "$(diffuse --json --threshold 0 --blocks 2 --attn-impl $impl | field "$passes" | xargs)"
done
check "an attention implementation that is not built is usage" 2 "$(status "$headrace" generate -p x --attn-impl cudnn)"
check "two threads, same tokens" "$(diffuse --threshold 0.001 -t 1)" "$(diffuse --threshold 0.001 -t 2)"
check "a block that is far larger than the text" 1 \
  "$(message "$headrace" generate "$demos/fairy-diffusion" -p "Once" -n 8 --block-size 64 | grep -c -- '^headrace: warning: --block-size is 64 and -n 8: ')"
check "a trace line per forward" 3 "$(diffuse --threshold 0 --trace "$work/trace" >/dev/null; wc -l <"$work/trace")"
check "the trace holds every token" 20 "$(grep -o '"position"' "$work/trace" | wc -l)"
"$headrace" generate "$demos/puzzle-diffusion" -p "add: 289 + 987 =" --trace "$work/shown" >"$work/ignored"
check "a trace is as docs/diffusion.md shows it" "1 1" \
  "$(wc -l <"$work/shown") $(grep -cF -- "$(sed 's/\("decided": \[{"position": 16, "id": 17, "text": "1",\).*/\1/' "$work/shown")" "$(dirname "$0")/../../docs/diffusion.md")"
check "a causal model is no diffusion model" 2 "$(status "$headrace" generate -p x --strategy multi_bd)"
check "an option that the strategy does not read is usage" "2 2 2" \
  "$(status diffuse --remask-threshold 0.5) $(status diffuse --strategy d2f --schedule reference) $(status "$headrace" generate -p x --threshold 0.9)"
check "the sentence about it" "headrace: strategy 'multi_bd': --edit-threshold is 0.5, expected none; strategies that read it: multi_bd_edit" \
  "$(diffuse --edit-threshold 0.5)"
check "be it a default" "2 2 2 2 0" \
  "$(status diffuse --merge dmax_topk) $(status diffuse --strategy autoregressive --blocks 1) $(status diffuse --strategy autoregressive --add-block 0.1) $(status diffuse --strategy dmax --schedule threshold) $(status diffuse --schedule threshold --blocks 1 --add-block 0.1)"
check "and the sentence about that" "headrace: strategy 'multi_bd': --merge is dmax_topk, expected none; strategies that read it: dmax" \
  "$(diffuse --merge dmax_topk)"
check "a weight of nothing" "headrace: --merge-weight: is 1, expected none without --merge iter_smooth_topk; status 2" \
  "$(diffuse --strategy dmax --merge-weight 1); status $(status diffuse --strategy dmax --merge-weight 1)"
check "a block that the context does not hold, before weights are read" \
  "headrace: strategy 'multi_bd': --block-size is 65536, expected at most 4096, what the context holds; status 2" \
  "$("$headrace" generate "$work/no_weights" -p "sort: 79285432 =" --block-size 65536 2>&1); status $?"
check "an option that is not read, before weights are" "headrace: strategy 'multi_bd': --merge is dmax_topk, expected none; strategies that read it: dmax" \
  "$("$headrace" generate "$work/no_weights" -p x --merge dmax_topk 2>&1)"
check "of an option with a default, with another value" "multi_bd --stability 1 none autoregressive --blocks 2 none autoregressive --schedule reference none" \
  "$({ diffuse --stability 1; diffuse --strategy autoregressive --blocks 2; diffuse --strategy autoregressive --schedule reference; } |
    sed -n "s/^headrace: strategy '\([a-z_]*\)': \([^ ]*\) is \([^ ]*\), expected \([^ ]*\);.*/\1 \2 \3 \4/p" | xargs)"
check "nats that are not given" "2 0" "$(status diffuse --accept entropy) $(status diffuse --accept entropy --threshold 0.1)"
check "a strategy that the model was not trained for" \
  "headrace: strategy 'full_attention': the model is trained on causal blocks, which it does not decode; strategies that do: autoregressive, multi_bd, multi_bd_edit, d2f, dmax; status 2" \
  "$(diffuse --strategy full_attention); status $(status diffuse --strategy full_attention)"
check "a network of whole canvases token by token" 2 \
  "$(status "$headrace" generate "$(dirname "$0")/../golden/llada" --random-weights 1 -p x -n 1 --strategy autoregressive)"
check "a network of causal blocks token by token" 0 "$(status diffuse --strategy autoregressive)"
# Guidance, of LLaDA's loop alone; twice its canvas fits a step however long the text is.
mkdir "$work/llada"
cp "$golden/llada/config.json" "$demos/puzzle-diffusion/tokenizer.json" "$work/llada/"
guided() { "$headrace" generate "$work/llada" --random-weights 1 -p x -n 110 -c 128 --temperature 0 --ignore-eos --json "$@" 2>/dev/null; }
check "guidance changes the text" "110 yes" \
  "$(guided --cfg-scale 2 | ids | wc -w) $([[ $(guided --cfg-scale 2 | ids) != $(guided | ids) ]] && echo yes)"
check "but by nothing" "$(guided | ids)" "$(guided --cfg-scale 0 | ids)"
check "and --json states it" '"cfg_scale": 2 "steps": 55' "$(guided --cfg-scale 2 | grep -o '"cfg_scale": 2') $(guided --schedule reference --steps 55 | grep -o '"steps": 55')"
check "a ban where the model names no end token" "headrace: end tokens are banned, but the model names none; status 2" \
  "$("$headrace" generate "$golden/llada" --random-weights 1 -p x -n 2 --ban-end-tokens 2>&1 | tail -n 1); status $(status "$headrace" generate "$golden/llada" --random-weights 1 -p x -n 2 --ban-end-tokens)"
check "guidance of a model whose loop has none" \
  "headrace: --cfg-scale is 2, expected 0 with this model, whose published loop has no guidance; status 2" \
  "$("$headrace" generate "$work/dream" -p x -n 2 -c 32 --cfg-scale 2 2>&1 | tail -n 1); status $(status "$headrace" generate "$work/dream" -p x -n 2 -c 32 --cfg-scale 2)"
check "of a strategy that does not read it, by nothing too" \
  "headrace: strategy 'multi_bd': --cfg-scale is 1, expected none; strategies that read it: full_attention; status 2 2" \
  "$(diffuse --cfg-scale 1); status $(status diffuse --cfg-scale 1) $(status diffuse --cfg-scale 0)"
check "below 0, without an end, and no number" "2 2 2" \
  "$(status guided --cfg-scale -1) $(status guided --cfg-scale inf) $(status guided --cfg-scale nan)"
check "where graphs are required" "4 headrace: graphs of all steps behind prompts are required, but those of a guided request run without: cfg_scale is 2" \
  "$(status guided --cfg-scale 2 --require-graphs) $("$headrace" generate "$work/llada" --random-weights 1 -p x -n 2 --cfg-scale 2 --require-graphs 2>&1 | tail -n 1)"
check "a block cache of a strategy without one, on and off" "2 2" \
  "$(status diffuse --block-cache yes) $(status diffuse --block-cache no)"
check "blocks that a published loop does not read" \
  "headrace: --blocks: is 3, expected 1 with --schedule reference, which denoises one block at a time; status 2" \
  "$("$headrace" generate /nonexistent -p x --schedule reference --blocks 3 2>&1); status $?"
help=$("$headrace" generate --help-all | tr -s ' ' | tr '\n' ' ')
for option in threshold accept block-size mask-token-id blocks steps; do  # as the README says
  check "the help says which strategies read --$option" 1 "$(grep -c -e " --$option [^(]*([a-z0-9_, ]*multi_bd" <<<"$help")"
done
for command in "" generate demo eval "eval puzzles" "eval perplexity" bench doctor list; do
  [[ -n "$command" ]] && asked="$command --help" || asked=--help
  check "the help of '$command' is one screen of 80 columns" "yes" \
    "$("$headrace" $asked | awk 'length > 80 || NR > 40 {bad = 1} END {print bad ? "no" : "yes"}')"
  check "and all of it as wide as COLUMNS says" "" "$(COLUMNS=60 "$headrace" ${asked}-all | grep -v '^  headrace ' | grep -E '.{61}')"
done
check "the help is grouped" "Options Prompt Sampling Model Attention and memory Machine Output Block diffusion" \
  "$("$headrace" generate --help-all | grep -oE '^[A-Z][a-z ]+:$' | grep -v Examples | tr -d : | xargs)"
check "an unknown strategy" 1 \
  "$(message "$headrace" generate -p x --strategy nope | grep -c "^headrace: strategy 'nope' is unknown, expected one of autoregressive, .*, diffusion_gemma$")"
check "is usage" 2 "$(status "$headrace" generate -p x --strategy nope)"
echo "before" >"$work/log"
"$headrace" generate -p "Once" -n 2 --temperature 0 --trace /dev/stderr >"$work/ignored" 2>>"$work/log"
check "a trace on standard error, which is a file" "before 2" "$(head -n 1 "$work/log") $(grep -c '"step"' "$work/log")"
"$headrace" generate -p "Once" -n 2 --temperature 0 --trace "$work/log" >"$work/ignored"
check "a trace in a file that was there" 2 "$(wc -l <"$work/log")"
check "a trace that cannot be written" 2 "$(status "$headrace" generate -p x -n 1 --trace /nonexistent/trace)"
check "a threshold in percent, for one text and for puzzles" "2 2" \
  "$(status diffuse --threshold 90) $(status "$headrace" eval puzzles --limit 1 --strategies auto --thresholds 90)"
check "one below 0, and the sentence about it" \
  "headrace: --threshold is -1, expected 0 to 1, or inf for a probability that no token passes; status 2" \
  "$("$headrace" generate "$work/no_weights" -p x --threshold -1 2>&1); status $?"
check "one that no token passes" "$(diffuse --threshold 1)" "$(diffuse --threshold inf)"
check "a threshold that is no number" 2 "$(status diffuse --threshold nan)"
check "a mask that the vocabulary lacks" 2 "$(status diffuse --mask-token-id 8192)"
check "shares of blocks" "$(diffuse --threshold 0.001 --blocks 2)" "$(diffuse --threshold 0.001 --blocks 2 --add-block 0.1 --semi-complete 0.9)"
if [[ -c /dev/full ]]; then
  check "a trace that finds the disk full" 3 "$(status diffuse --trace /dev/full)"
  full=$("$headrace" generate -p x -n 1 2>&1 >/dev/full)
  check "text that finds the disk full" "3 headrace: standard output: cannot be written: No space left on device" "$? $full"
  for asked in --version "generate --help"; do
    full=$("$headrace" $asked 2>&1 >/dev/full)
    check "$asked that finds the disk full" "3 headrace: standard output: cannot be written: No space left on device" "$? $full"
  done
  check "a curve that finds the disk full" 3 "$(status "$headrace" eval puzzles --limit 1 --thresholds 0.9 --strategies auto --svg /dev/full)"
fi
check "text alone without a terminal" "" "$(diffuse | tr -cd '\033')"
if [[ -n "$terminal" ]]; then
  drawn() { script -qec "$1 $headrace generate $work/diffusion --random-weights 1 -p Once -n 9 --temperature 0 --ignore-eos" /dev/null; }
  check "an end token is none of the tokens that are counted" 1 \
    "$(script -qec "$headrace generate $demos/puzzle-diffusion -p 'add: 289 + 987 ='" /dev/null | grep -c '^\[4 tokens, .* 4.00 tokens/forward\]')"
  : >"$work/passes"
  write_block="$headrace generate $work/diffusion --random-weights 1 -p Once -n 2000 -c 4096 --block-size 2048 --threshold inf -t 1"
  stop_after_two="while [ \$(wc -l <$work/passes) -lt 2 ] && kill -0 \$!; do sleep 0.05; done; kill \$!; wait"
  check "passes of a block that was cancelled" 1 \
    "$(script -qec "$write_block --trace $work/passes & $stop_after_two" /dev/null | grep -cE '^\[0 tokens, [1-9][0-9]* forwards?\]')"
  check "masks on a terminal" yes "$(drawn 'TERM=xterm NO_COLOR=' | grep -q $'\033\[2m░' && echo yes)"
  check "no colours when they are unwanted" "" "$(drawn 'TERM=xterm NO_COLOR=1' | grep -o $'\033\[[0-9]*m')"
  # A canvas: in the second of its three steps there are guesses instead of shades.
  mkdir "$work/canvas"
  cp "$work/diffusion/tokenizer.json" "$work/canvas/"
  sed -e 's/"vocab_size": [0-9]*/"vocab_size": 8192/' "$(dirname "$0")/../golden/diffusion_gemma/config.json" >"$work/canvas/config.json"
  script -qec "TERM=xterm NO_COLOR= $headrace generate $work/canvas --random-weights 1 -p Once -n 9 --schedule reference --steps 3 --ignore-eos" \
    /dev/null >"$work/canvas/screen"
  check "a canvas is redrawn while it is denoised" 3 "$(grep -o $'\033\[J' "$work/canvas/screen" | wc -l)"
  check "guesses coloured by how sure they are" yes "$(grep -q $'\033\[31m' "$work/canvas/screen" && echo yes)"
  check "columns of a terminal that does not say its rows" "" \
    "$(script -qec "stty cols 12 rows 0; TERM=xterm NO_COLOR=1 $headrace generate $work/diffusion --random-weights 1 -p Once -n 20 --temperature 0 --ignore-eos" \
      /dev/null </dev/null | grep -oE $'\033\\[(1[3-9]|[2-9][0-9])C')"
  check "nothing moves on a dumb terminal" "" "$(drawn 'TERM=dumb' | grep '░')"
fi

# Puzzles: a line for each way of decoding, the curve, exact answers of the bundled model.
puzzles() { "$headrace" eval puzzles --limit 3 -t 1 --dtype float32 "$@"; }
check "puzzles, a line for each strategy and threshold" "1 autoregressive 3 multi_bd 3 d2f 3 dmax" \
  "$(puzzles --thresholds 0.99,0.9 --svg "$work/curve.svg" | grep '%' | cut -d' ' -f1 | uniq -c | xargs)"
check "puzzles of a causal model, once" 1 \
  "$("$headrace" eval puzzles "$demos/fairy-hybrid" --file "$demos/puzzle-diffusion/test.jsonl" --limit 1 -t 1 | grep -c ' %')"
check "strategies of one's choice, each under every threshold" "autoregressive multi_bd multi_bd d2f d2f" \
  "$(puzzles --thresholds 0.9 --strategies autoregressive,multi_bd,d2f --json | grep -o '"strategy": "[a-z0-9_]*"' | cut -d'"' -f4 | xargs)"
check "a strategy of puzzles that is none" 2 "$(status puzzles --strategies nope)"
check "points of the curves, one for each strategy" 9 "$(grep -c '<title>[^a]' "$work/curve.svg")"
puzzles --thresholds 0.99,0.9 --strategies autoregressive,auto --svg "$work/curve.svg" >"$work/ignored"
check "points of the curves, one for each task" 15 "$(grep -c '<title>[^a]' "$work/curve.svg")"
check "exact answers" "1.0000 1.0000 1.0000" "$(puzzles --thresholds 0.99 --strategies autoregressive,auto --json | grep -o '"threshold": [^,]*, "items": 12, "exact": [0-9.]*' | sed 's/.*: //' | xargs)"
check "the axis upwards begins at 0, and points have names" "1 1 2" \
  "$(grep 'text-anchor="end"' "$work/curve.svg" | head -n 1 | grep -c '>0<') $(grep -c '>autoregressive<' "$work/curve.svg") $(grep -cE '>(0.99|0.9)</text>' "$work/curve.svg")"
check "a model without items has the bundled ones" "full_attention dual_cache d2f 1.0000" \
  "$(puzzles "$demos/puzzle-llada" --thresholds 0.9 --strategies full_attention,dual_cache,d2f --log-level off --json | sed -n 's/.*"strategy": "\([a-z0-9_]*\)", "threshold": 0.9, "items": 12, "exact": \([0-9.]*\),.*/\1 \2/p' | awk '{printf "%s ", $1} END {print $2}')"
check "a curve without a point is a chart all the same" "0 0" \
  "$(status puzzles --strategies autoregressive --svg "$work/empty.svg") $(grep -c nan "$work/empty.svg")"
{ head -n 1 "$demos/puzzle-diffusion/test.jsonl"; echo '{"task": "add", "prompt": "1 + 1 ="}'; } >"$work/items"
check "an item without an answer" "headrace: $work/items, line 2: the top level has no 'answer'; status 3" \
  "$("$headrace" eval puzzles --file "$work/items" 2>&1); status $?"
guessed() { "$headrace" eval puzzles "$(dirname "$0")/../golden/$1" --random-weights 1 --file "$demos/puzzle-diffusion/test.jsonl" --limit 1 --thresholds 0.5 | awk 'NR > 1 {print $1, $2}' | xargs; }
check "a canvas begins with its own bound" "diffusion_gemma 6 diffusion_gemma 0.5" "$(guessed diffusion_gemma)"
check "both ways over whole canvases" "full_attention one full_attention 0.5 dual_cache one dual_cache 0.5" "$(guessed llada)"
check "items that are none" 3 "$(status "$headrace" eval puzzles --file "$work/book")"

if [[ -n "$terminal" ]]; then
  wiped=$'\r\033[K'
  check "how far the puzzles are" "4 of 8 answers 8 of 8 answers" \
    "$(script -qec "$headrace eval puzzles --limit 1 --thresholds 0.9 --strategies autoregressive,autoregressive -t 1" /dev/null | grep -ao '[0-9]* of [0-9]* answers' | xargs)"
  check "how far the perplexity is, wiped before its line" 1 \
    "$(script -qec "$headrace eval perplexity --file $work/book -c 64 -t 1" /dev/null | grep -acF "tokens${wiped}")"
fi
check "none of it in a file" "" "$(message "$headrace" eval perplexity --file "$work/book" -c 64)"

[[ $failures -eq 0 ]] && echo "all good"
exit "$failures"
