#!/usr/bin/env bash
# headrace bench serve and bench agent from outside: refusals, loads of a server of its own and of another process.
set -u
headrace="$1"
failures=0
check() {  # check NAME EXPECTED FOUND
  if [[ "$2" != "$3" ]]; then
    echo "FAILED $1: expected '$2', found '$3'"
    failures=$((failures + 1))
  fi
}
message() { "$@" 2>&1 >/dev/null; }
work=$(mktemp -d)
server=
trap '[[ -z "$server" ]] || kill -KILL "$server" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
refusal() { timeout 20 "$headrace" bench "$@" 2>&1; echo "status $?"; }
field() { sed -nE "s/.*\"$2\": (\"[^\"]*\"|\{[^}]*\}|[^,}]*).*/\1/p" "$1" | xargs; }  # of each line of a file
above_0() { awk '{ for (i = 1; i <= NF; ++i) if (!($i > 0)) bad = 1; n += NF } END { print bad || n == 0 ? "no: " $0 : "yes" }' <<<"$1"; }

# Refused before a model is loaded.
check "a flag of serve and agent" \
  $'headrace: bench model: --turns has no effect on it; bench serve and agent take it\nstatus 2' "$(refusal model --turns 2)"
check "a flag of serve alone" \
  $'headrace: bench agent: --request-rate has no effect on it; bench serve takes it\nstatus 2' "$(refusal agent --request-rate 3)"
check "a flag of others" \
  $'headrace: bench serve: --parallel has no effect on it; bench model, arrivals, blocks and engine take it\nstatus 2' \
  "$(refusal serve --parallel 3)"
for rate in 0 -1 x inf2 ''; do
  check "a rate of '$rate'" "headrace: --request-rate: is '$rate', expected requests in a second, above 0, or inf"$'\nstatus 2' \
    "$(refusal serve --request-rate "$rate")"
done
check "a bound that is none" $'headrace: --goodput: is \'itl:5\', expected ttft:MS, tpot:MS or e2el:MS\nstatus 2' \
  "$(refusal serve --goodput ttft:5,itl:5)"
check "no address" $'headrace: --url: is \'localhost:80\', expected http://HOST[:PORT]\nstatus 2' \
  "$(refusal serve --url localhost:80)"
check "no address of an agent" $'headrace: --url: is \'https://x\', expected http://HOST[:PORT]\nstatus 2' \
  "$(refusal agent --url https://x)"
check "a time without a rate" $'headrace: --duration: needs a --request-rate other than inf\nstatus 2' \
  "$(refusal serve --duration 5)"
check "a time and a number" \
  $'headrace: --duration: is given beside --num-prompts, expected one of them\nstatus 2' \
  "$(refusal serve --duration 5 --request-rate 3 --num-prompts 5)"
check "no server" "1 status 3" \
  "$(refusal serve fairy-hybrid --url http://127.0.0.1:1 >out; grep -c 'does not answer a first request: the connection failed: Connection refused' out) $(tail -n 1 out)"

# A model with a chat template, and one without.
directory=$("$headrace" list --json | grep -oE '"[^"]*/fairy-hybrid"' | head -n 1 | tr -d '"')
mkdir plain chatty
for copy in plain chatty; do ln -s "$directory"/*.json "$directory"/*.safetensors $copy/; done
rm -f {plain,chatty}/{chat_template,tokenizer_config}.json
printf '%s' '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]' >chatty/chat_template.jinja
check "no template" $'headrace: bench template: plain has no chat template\nstatus 2' "$(refusal template ./plain | sed 's/[^ ]*plain/plain/')"
"$headrace" bench template ./chatty >template
check "a template and its tokens" "0 3 yes" "$? $(wc -l <template) $(above_0 "$(field template median_us)")"

# Two rates, against a server of this process.
small=(-c 1024 --max-num-seqs 4 --input-len 24 --output-len 8)
"$headrace" bench serve "${small[@]}" --num-prompts 6 --request-rate 50,inf --max-concurrency 3 --goodput ttft:1000000 \
  --svg curve.svg >rates 2>said
check "two rates" "0 2 50 inf" "$? $(wc -l <rates) $(field rates request_rate)"
check "nothing is said" "" "$(cat said)"
check "all are answered" "6 6, 0 0, {} {}" "$(field rates completed), $(field rates failed), $(field rates errors)"
check "and within the bound" "$(field rates request_throughput)" "$(field rates request_goodput)"
for name in duration_s offered_rate request_throughput output_throughput total_input_tokens total_output_tokens mean_ttft_ms \
  p50_ttft_ms p90_ttft_ms p99_ttft_ms p50_tpot_ms mean_itl_ms p50_itl_ms p99_itl_ms p99_e2el_ms p99_health_ms \
  client_us_per_token event_loop_us_per_token reply_us_per_token server_cpu_s; do
  found=$(field rates $name)
  [[ $name == offered_rate ]] && found=${found% *}  # all at once: no rate
  check "$name is measured" yes "$(above_0 "$found")"
done
check "percentiles ascend" yes \
  "$(paste -d' ' <(field rates p50_ttft_ms | tr ' ' '\n') <(field rates p90_ttft_ms | tr ' ' '\n') <(field rates p99_ttft_ms | tr ' ' '\n') |
    awk '!($1 <= $2 && $2 <= $3) { bad = 1 } END { print bad ? "no" : "yes" }')"
check "a curve of both" "1 8" "$(grep -c '^<svg ' curve.svg) $(grep -c '<title>\(50\|inf\) requests/s' curve.svg)"

# Lengths are exact where they are not random, and follow the seed.
"$headrace" bench serve "${small[@]}" --num-prompts 5 --random-range-ratio 0 >exact
check "exact lengths" 40 "$(field exact total_output_tokens)"
check "lengths of a seed" "$("$headrace" bench serve "${small[@]}" --num-prompts 5 --seed 7 | grep -o '"total_output_tokens": [0-9]*')" \
  "$("$headrace" bench serve "${small[@]}" --num-prompts 5 --seed 7 | grep -o '"total_output_tokens": [0-9]*')"
check "nothing is known from before" 0 "$(field exact total_cached_tokens)"

# Shared beginnings and turns come from the prefix cache.
"$headrace" bench serve "${small[@]}" --num-prompts 6 --max-concurrency 1 --prefix-len 300 --num-prefixes 2 >shared
check "shared beginnings" "6 yes" "$(field shared completed) $(above_0 "$(field shared total_cached_tokens)")"
"$headrace" bench serve -c 1024 --max-num-seqs 4 --input-len 70 --output-len 8 --num-prompts 2 --turns 4 >turns
check "turns" "8 0 yes" "$(field turns completed) $(field turns failed) $(above_0 "$(field turns total_cached_tokens)")"

# A server that is too full, and one that refuses what does not fit.
"$headrace" bench serve -c 1024 --max-num-seqs 1 --max-queued-requests 1 --input-len 24 --output-len 40 --num-prompts 20 >full 2>said
check "a full server" "20 yes 1" "$(($(field full completed) + $(field full failed))) $(above_0 "$(grep -o '"429": [0-9]*' full | cut -d' ' -f2)") \
$(grep -cE '^headrace: warning: [0-9]+ of 20 requests failed as this one: status 429: ' said)"
check "a text that is too long" "3 1" \
  "$("$headrace" bench serve -c 256 --input-len 600 --random-range-ratio 0 --num-prompts 2 >out 2>said; echo $?) $(grep -c '^headrace: bench serve: no request was answered: status 400: ' said)"

# An agent: later turns go on behind what earlier ones left.
"$headrace" bench agent ./chatty -c 2048 --turns 4 --num-prompts 2 --prefix-len 200 --input-len 70 --output-len 8 >agent
check "an agent's turns" "0 5 4" "$? $(wc -l <agent) $(grep -c '"name": "agent turn [1-4]", ' agent)"
check "its first turn is new" 0 "$(sed -n 1p agent >one; field one cached_tokens)"
check "its last one is not" yes "$(sed -n 4p agent >one; above_0 "$(field one cached_tokens)")"
check "first tokens are timed" "yes yes yes" \
  "$(above_0 "$(field agent ttft_ms)") $(above_0 "$(field agent alone_ttft_ms)") $(above_0 "$(field agent largest_ratio)")"

"$headrace" bench agent -c 2048 --endpoint /v1/completions --turns 2 --num-prompts 1 --prefix-len 100 --input-len 70 --output-len 8 >plain_agent
check "an agent without a template" "0 3" "$? $(wc -l <plain_agent)"

# A server of another process, with a key.
"$headrace" serve --port 0 --api-key secret -c 1024 --max-num-seqs 4 >started 2>log &
server=$!
for _ in {1..400}; do grep -q '^url' started && break; sleep 0.05; done
url=$(sed -nE 's/^url +//p' started)
lines=(--url "$url" --input-len 24 --output-len 8 --num-prompts 4)
"$headrace" bench serve --api-key secret "${lines[@]}" >other
check "another process" "0 4 yes yes" "$? $(field other completed) $(above_0 "$(grep -o '"most": [0-9.]*' other | cut -d' ' -f2)") $(above_0 "$(field other server_cpu_s)")"
check "whose threads are unknown" "" "$(field other event_loop_us_per_token)"
check "another key" 1 "$(message "$headrace" bench serve fairy-hybrid --api-key other "${lines[@]}" | grep -c 'does not answer a first request: status 401: ')"
check "without a key its model has no name" 1 "$(message "$headrace" bench serve "${lines[@]}" | grep -c '/v1/models names no model')"
kill -TERM "$server"
wait "$server"
server=

exit $((failures > 0))
