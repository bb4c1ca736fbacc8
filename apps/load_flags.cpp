#include "load_flags.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>

#include "command_line.h"
#include "headrace/core/error.h"
#include "load_request.h"
#include "option_values.h"
#include "server_url.h"

namespace headrace::app {
namespace {

constexpr const char *kBoth = "Load of serve and agent", *kServe = "Load of serve";
constexpr int32_t kMostTokens = 1 << 20, kMostPrompts = 1 << 24;

// Returns what `read` throws at a text, as a check's sentence.
template <class Read>
CLI::Validator readable_by(const Read& read) {
  const auto check = [read](const std::string& text) -> std::string {
    try {
      read(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  return {check, ""};
}

void add_flags_of_both(CLI::App& command, LoadFlags& f) {
  command.option_defaults()->group(kBoth);
  command
      .add_option("--url,--base-url", f.url,
                  "a server that runs, http://HOST:PORT (default: MODEL is served by this process)")
      ->check(readable_by(server_url))
      ->type_name("URL");
  command.add_option("--api-key", f.api_key, "the key to show to it")->type_name("KEY");
  command
      .add_option("--endpoint", f.path, "the requests' path (default: serve: /v1/completions, agent: the other one)")
      ->check(CLI::IsMember({std::string(kCompletionsPath), std::string(kChatPath)}));
  command.add_option("--max-num-seqs", f.max_num_seqs, "requests that the server of this process runs at a time")
      ->check(integer_in(1, 4096));
  command
      .add_option("--num-prompts", f.num_prompts,
                  "conversations; serve: of each rate (default: 100); agent: one after another (default: 3)")
      ->check(integer_in(1, kMostPrompts));
  command
      .add_option("--turns", f.turns,
                  "requests of a conversation, each behind the answer before it (default: 1; agent: 20)")
      ->check(integer_in(1, 1000));
  command.add_option("--output-len", f.output_len, "tokens of an answer (default: 128; agent: 32)")
      ->check(integer_in(1, kMostTokens));
  command
      .add_option("--prefix-len", f.prefix_len,
                  "tokens in front of a conversation's first text; serve: conversations share them (default: 0; "
                  "agent: 1024)")
      ->check(integer_in(0, kMostTokens));
}

void add_arrival_flags(CLI::App& command, LoadFlags& f) {
  command.option_defaults()->group(kServe);
  command
      .add_option("--request-rate", f.request_rates,
                  "conversations that begin in a second, at random times (Poisson); inf: all at once; one measurement "
                  "for each: 1,2,4,8")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(readable_by(request_rate_of))
      ->type_name("RATE")
      ->capture_default_str();
  command.add_option("--duration", f.duration, "conversations begin for so long, in place of --num-prompts")
      ->type_name(kTime)
      ->transform(duration());
  command
      .add_option("--max-concurrency", f.max_concurrency,
                  "conversations at a time; later ones begin when one has ended (default: any number)")
      ->check(integer_in(1, 1 << 16));
  command
      .add_option("--max-queued-requests", f.max_queued_requests,
                  "requests that may wait in the server of this process; others get status 429")
      ->check(integer_in(0, 1 << 20))
      ->capture_default_str();
}

void add_length_flags(CLI::App& command, LoadFlags& f) {
  command.add_option("--seed", f.seed, "of lengths and times; the words differ in each run")->capture_default_str();
  command
      .add_option("--random-range-ratio", f.range_ratio,
                  "lengths are random, from 1 - N to 1 + N times --input-len and --output-len")
      ->check(number_in(0, 1))
      ->capture_default_str();
  command.add_option("--num-prefixes", f.num_prefixes, "different texts of --prefix-len")
      ->check(integer_in(1, kMostPrompts))
      ->capture_default_str();
  command
      .add_option("--goodput", f.goodput,
                  "count requests within these milliseconds: ttft:500,tpot:50 (first token, each further one), e2el:MS "
                  "(all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("BOUNDS");
  CLI::Option* svg = command.add_option("--svg", f.svg, "write the curve of latency against throughput to FILE");
  refuse_standard_output(*svg->type_name(kFile));
}

}  // namespace

void add_load_flags(CLI::App& command, LoadFlags& flags) {
  add_flags_of_both(command, flags);
  add_arrival_flags(command, flags);
  add_length_flags(command, flags);
}

void refuse_load_flags(const CLI::App& command, const std::string& what) {
  for (const CLI::Option* option : command.get_options()) {
    const bool is_of_both = option->get_group() == kBoth;
    const bool is_taken = what == "serve" || (what == "agent" && is_of_both);
    if (is_taken || (!is_of_both && option->get_group() != kServe) || option->count() == 0) continue;
    throw Error(ErrorCode::kInvalidArgument,
                str("bench ", what, ": ", name_in_errors(*option), " has no effect on it; ",
                    is_of_both ? "bench serve and agent take it" : "bench serve takes it"));
  }
}

std::optional<double> request_rate_of(const std::string& text) {
  if (text == "inf") return std::nullopt;
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  HR_REQUIRE(error == std::errc() && end == text.data() + text.size() && std::isfinite(rate) && rate > 0,
             ErrorCode::kInvalidArgument, "is '", text, "', expected requests in a second, above 0, or inf");
  return rate;
}

}  // namespace headrace::app
