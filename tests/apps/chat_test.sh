#!/usr/bin/env bash
# headrace run from outside: chats in a terminal, single messages, pipes.
set -u
headrace="$1"
demos="$(cd "$(dirname "$0")/../../demo_models" && pwd)"
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
export XDG_STATE_HOME="$work/state" TERM=xterm NO_COLOR=1
unset COLUMNS
printf '%s' '{% for m in messages %}{{ m.content }}{% endfor %}' >"$work/plain.jinja"
printf '%s' '{{ messages[-1].content }}<think>
' >"$work/think.jinja"
printf '%s' '{{ raise_exception("no, not " + messages[-1].content) }}' >"$work/raise.jinja"
tale="fairy-hybrid --chat-template $work/plain.jinja -t 1"  # the messages, one behind the other
fairy() { "$headrace" run $tale "$@"; }

# One message.
one=$(fairy "Once upon a time" -n 24 -s 5 </dev/null)
check "an answer" yes "$([[ ${#one} -gt 20 ]] && echo yes)"
check "the same seed" "$one" "$(fairy "Once upon a time" -n 24 -s 5 </dev/null)"
check "no seed" no "$([[ "$(fairy "Once" -n 24 </dev/null)" == "$(fairy "Once" -n 24 </dev/null)" ]] || echo no)"
check "what is piped in is the message" "$one" "$(echo "Once upon a time" | fairy -n 24 -s 5)"
check "from a file" "$one" "$(fairy -f <(printf 'Once upon a time') -n 24 -s 5 </dev/null)"
check "what is piped in stands in front of PROMPT" "$(printf 'The fox\n\nOnce' | fairy -n 24 -s 5)" "$(echo "The fox" | fairy "Once" -n 24 -s 5)"
json=$(fairy "Once upon a time" -n 24 -s 5 --json </dev/null)
check "json has the text" 1 "$(grep -cF "$(head -1 <<<"$one")" <<<"$json")"
check "and is all that is printed" "1 1" "$(wc -l <<<"$json") $(grep -cE '^\{"model": "fairy-hybrid", "message": \{"role": "assistant", "content": ".*"completion_tokens": 24, .*\}$' <<<"$json")"
check "a system message is part of the prompt" no \
  "$(tokens() { grep -o '"prompt_tokens": [0-9]*' <<<"$1"; }; [[ $(tokens "$json") == "$(tokens "$(fairy "Once upon a time" --system "A wolf." -n 1 --json </dev/null)")" ]] || echo no)"
check "a closed pipe" "0 0" "$(fairy "Once" -n 500 </dev/null | head -c 10 >/dev/null; echo "${PIPESTATUS[*]}")"
check "an empty message" "headrace: the message is empty, expected a text" "$(fairy </dev/null 2>&1)"
check "words beyond PROMPT" "headrace: 'upon' is more than run takes; a text of several words goes in quotes" "$(fairy Once upon 2>&1 </dev/null)"

# A model without a template, and one of another file.
mkdir "$work/bare"
sed -e 's/"vocab_size": [0-9]*/"vocab_size": 4096/' -e '/"architectures"/,/]/d' -e 's/"hidden_size"/"architectures": ["Qwen3_5ForCausalLM"], "hidden_size"/' \
  "$demos/fairy-hybrid/config.json" >"$work/bare/config.json"
cp "$demos/fairy-hybrid/tokenizer.json" "$work/bare/"
bare() { "$headrace" run "$work/bare" --random-weights 1 -t 1 "$@" </dev/null; }
check "no template" "headrace: $work/bare has no chat template: headrace generate continues a text with it, and --chat-template FILE brings one; 2" \
  "$(bare "Once" -n 4 2>&1); $(status bare "Once" -n 4)"
check "a template of a file" 1 "$(bare "Once" -n 4 --chat-template "$work/plain.jinja" --json | grep -c '"completion_tokens": 4')"
check "what it raises" "2 1" "$(status bare "x" --chat-template "$work/raise.jinja") $(bare "x" --chat-template "$work/raise.jinja" 2>&1 | grep -c '^headrace: .*no, not x')"
check "thinking is no part of the answer" "" "$(bare "Once" -n 8 --chat-template "$work/think.jinja")"
check "unless it is asked for" yes "$([[ -n "$(bare "Once" -n 8 --chat-template "$work/think.jinja" --thinking show)" ]] && echo yes)"
check "json has it beside the answer" 1 "$(bare "Once" -n 8 --chat-template "$work/think.jinja" --json | grep -c '"content": "", "reasoning_content": "..*"}, "finish_reason": "length"')"

# Chats, typed into a terminal.
if [[ -z "$(script -qec "echo yes" /dev/null 2>/dev/null </dev/null | tr -d '\r\n')" ]]; then
  echo "skipped: what needs a terminal (script(1) makes none here)"
  [[ $failures -eq 0 ]] && echo "all good"
  exit "$failures"
fi
screen="$work/screen"
patience() { for ((tries = 0; tries < 1200; tries++)); do "$@" && return; sleep 0.05; done; }
asked() { [[ $(grep -ao $'\033\[?2004h' "$screen" | wc -l) -ge $1 ]]; }
grown() { [[ $(stat -c %s "$screen") -ge $1 ]]; }
# Types each line where the chat asks for one. ^C: Ctrl-C, and at once another line. ...: waits for 300 more bytes.
typed() {
  local asks=0 line
  for line in "$@"; do
    if [[ "$line" == ... ]]; then
      patience grown $(($(stat -c %s "$screen") + 300))
      printf '\003'
      continue
    fi
    asks=$((asks + 1))
    patience asked "$asks"
    [[ "$line" == ^C ]] && printf '\003' || printf '%s\r' "$line"
  done
}
chat() {  # chat OPTIONS LINES...: its status. exec: a shell around the program would die of Ctrl-C
  : >"$screen"
  typed "${@:2}" | script -qefc "exec $headrace run $1" "$screen" >/dev/null
  echo "${PIPESTATUS[1]}"
}
shown() { sed -e 's/\x1b\[[?0-9;]*[a-zA-Z]//g' "$screen" | tr -d '\r'; }
beginning="Once upon a time there was a king who had a golden bird, and the king was very old and had three sons, of whom the youngest was called"

check "a chat" 0 "$(chat "$tale -n 40 -s 1" "$beginning" /stats "Then the fox said" /stats "/save $work/saved.json" /exit)"
check "its first line" 1 "$(shown | grep -cx 'fairy-hybrid, 12 M parameters, CPU; /help')"
check "its second turn computes what is new alone" "0 64" "$(shown | grep -oP '^prompt .*, \K[0-9]+(?= of them cached)' | xargs)"
check "its file" "4 1" "$(grep -cE '^    \{"role": "(user|assistant)", "content": ".+"\},?$' "$work/saved.json") $(grep -c '^  "params": {"seed": 1, "max_tokens": 40}$' "$work/saved.json")"
check "what was typed" "$beginning" "$(head -1 "$work/state/headrace/history")"
check "a conversation goes on" 0 "$(chat "$tale" "/load $work/saved.json" "And" "/save $work/more.json" /bye)"
check "behind what was said, with its settings" "6 1" "$(grep -c '"role"' "$work/more.json") $(grep -c '"max_tokens": 40' "$work/more.json")"
check "files and settings that are none, in a sentence each" 0 \
  "$(echo notes >"$work/notes"; chat "$tale -n 8" "/load $work/none" "/load $work/notes" "/save $work/notes" "/set heat 1" "/set top_p 2" /retry /exit)"
check "these sentences" 6 "$(shown | grep -cE "^($work/none: cannot be read: .*|$work/notes: not valid JSON.*|$work/notes: exists and is no conversation, expected a new file|there is no setting 'heat', expected one of: .*|top_p is 2, expected .* to 1|there is no command /retry.*)$")"
check "Ctrl-C ends the answer and not the chat" 0 "$(chat "$tale -n 4000" "Once" ... "/save $work/cut.json" /exit)"
check "which keeps what came" 2 "$(grep -cE '"role": "(user|assistant)", "content": ".+"' "$work/cut.json")"
check "twice at an empty line, it does" "0 1" "$(chat "$tale -n 8" ^C ^C) $(shown | grep -cx '(Ctrl-C again ends the chat)')"
check "lines that belong together" 0 "$(chat "$tale -n 8" 'one \' two '"""' three 'four"""' "/save $work/lines.json" /exit)"
check "as messages" "one \\ntwo three\\nfour" "$(grep -oP '"role": "user", "content": "\K[^"]*' "$work/lines.json" | paste -sd" ")"
long=$(printf 'and so on %.0s' {1..40})
check "a full context" 0 "$(chat "$tale -c 128 -n 64 -s 1" "$beginning" "$long" /clear "Once" /exit)"
check "says so, and the chat goes on" "1 yes" "$(shown | grep -c 'the context holds 128: /clear forgets the conversation') $(shown | grep -A3 '^>>> Once$' | tail -n +2 | grep -q '[a-z]' && echo yes)"
printf '%s' '{% for m in messages %}{{ m.content | trim | upper }}{% endfor %}' >"$work/upper.jinja"
check "a template that writes answers in another way" 0 "$(chat "fairy-hybrid -t 1 -n 70 -s 1 --chat-template $work/upper.jinja" "$beginning" "Then" /stats /exit)"
check "is named by /stats" "1 1" "$(shown | grep -c '^cache .* cached text goes on with other tokens behind token ') $(shown | grep -cE "^ +[0-9]+ tokens on, the cache has '.+', and the prompt '.+'$")"
check "thinking is folded" 0 "$(chat "$work/bare --random-weights 1 -t 1 -n 30 --chat-template $work/think.jinja" "Once" /exit)"
check "into a line" 1 "$(shown | grep -cE 'thought for [0-9.]+ s$')"
check "blocks while they are denoised" "0 yes" \
  "$(chat "fairy-diffusion --chat-template $work/plain.jinja -t 1 -n 16" "Once upon" /exit) $(grep -aq '░' "$screen" && echo yes)"
check "no control character of a model steers the terminal" "" \
  "$(chat "$work/bare --random-weights 1 -t 1 -n 200 --chat-template $work/plain.jinja" "x" /exit >/dev/null; sed -e 's/\x1b\[[?0-9;]*[a-zA-Z]//g' "$screen" | tr -d '\r\n\t\b' | tr -cd '\000-\037\177')"

[[ $failures -eq 0 ]] && echo "all good"
exit "$failures"
