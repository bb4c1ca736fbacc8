#include "help_page.h"

#include <algorithm>

namespace headrace::app {
namespace {

constexpr CommonOption kHelp{"help", "this help"}, kHelpOfMore{"help", "this help; --help-all: all options"};
constexpr CommonOption kTheModel{"model", "its directory or name (headrace list), as MODEL"};
constexpr CommonOption kTheContext{"max-model-len", "context; 0, -1: the model's (default: at most 8192)"};
constexpr CommonOption kTheDevice{"device", "auto, cpu, cuda or cuda:N (default: auto)"};
constexpr CommonOption kTheThreads{"threads", "CPU threads (default: the number of cores)"};
constexpr CommonOption kTheJson{"json", "print one JSON object"};
constexpr CommonOption kTheTokens{"max-tokens", "new tokens at most; -1: until the context is full"};
constexpr CommonOption kTheTemperature{"temperature", "0: the likeliest tokens (default: the model's)"};
constexpr CommonOption kTheSeed{"seed", "same seed, same tokens; -1: new ones each time"};

const std::vector<HelpPage>& help_pages() {
  static const std::vector<HelpPage> kPages = {
      {.path = "headrace",
       .usage = "COMMAND [OPTIONS]",
       .common = {kHelp, {"version", "the version"}},
       .examples = {{"headrace demo", "a first story, by a model that comes with the program"},
                    {"headrace generate \"Once upon a time\"", "the same model continues your text"},
                    {"headrace generate puzzle-diffusion \"sort: 79285432 =\"", "a diffusion model solves a puzzle"},
                    {"headrace generate Qwen/Qwen3-0.6B \"The sea is\" -n 40",
                     "a model that Hugging Face's tools have downloaded"}},
       .more = "'headrace help COMMAND' says more of one; '--help-all' behind a command lists all its options."},
      {.path = "headrace generate",
       .usage = "[MODEL] [PROMPT] [OPTIONS]",
       .common = {{"prompt", "the text to continue, as PROMPT; else what is piped in"},
                  {"file", "read the text from FILE; -: from standard input, as PROMPT too"},
                  kTheModel,
                  {"max-tokens", "new tokens at most; -1: no limit (default: 256)"},
                  kTheTemperature,
                  {"top-p", "draw from the likeliest share N (default: the model's)"},
                  {"top-k", "draw from the N likeliest tokens (default: all)"},
                  kTheSeed,
                  {"stop", "end the output in front of TEXT"},
                  {"special-tokens", "read <|im_start|> and the like as tokens"},
                  {"escape", "read \\n in the prompt as a line feed"},
                  {"strategy", "how a diffusion model decodes (default: its own way)"},
                  {"threshold", "confidence at which diffusion keeps a token"},
                  kTheContext,
                  kTheDevice,
                  kTheThreads,
                  {"json", "print one JSON object: text, token ids, usage, times"},
                  {"log-level", "off, error, warning, info, debug (default: warning)"},
                  kHelpOfMore},
       .examples = {{"headrace generate \"Once upon a time\" -n 64", ""},
                    {"headrace generate fairy-diffusion \"Once upon a time\"", ""},
                    {"headrace generate ./Qwen3-0.6B -f prompt.txt --temperature 0", ""},
                    {"echo \"The old king\" | headrace generate --json", ""}},
       .more = "The prompt is not printed, only what continues it."},
      {.path = "headrace demo",
       .common = {{"prompt", "how the story begins"}, kTheTokens, kTheTemperature, kTheSeed, kTheThreads, kHelpOfMore},
       .examples = {{"headrace demo", ""},
                    {"headrace demo -p \"The fox said\" --seed -1", "another beginning, and each time another story"}}},
      {.path = "headrace run-batch",
       .usage = "[MODEL] -i FILE -o FILE [OPTIONS]",
       .common = {{"input-file", "the requests, one JSON object in each line"},
                  {"output-file", "the results, in the order of the requests"},
                  kTheModel,
                  {"overwrite", "replace an output file that exists"},
                  {"max-num-seqs", "requests that run at a time (default: by memory)"},
                  {"seed", "of requests that have none (default: 0)"},
                  {"served-model-name", "what requests call the model (default: MODEL)"},
                  {"deterministic", "the same results in any batch, by any run"},
                  kTheContext,
                  kTheDevice,
                  kTheThreads,
                  {"json", "print one JSON object: requests, tokens, seconds"},
                  kHelpOfMore},
       .examples = {{"headrace run-batch -i requests.jsonl -o results.jsonl", ""},
                    {"headrace run-batch Qwen/Qwen3-0.6B -i requests.jsonl -o results.jsonl --deterministic", ""}},
       .more = "After an interruption the same command goes on, from results.jsonl.partial."},
      {.path = "headrace serve",
       .usage = "[MODEL] [OPTIONS]",
       .common = {{"host", "addresses to listen on (default: 127.0.0.1)"},
                  {"port", "port to listen on; 0: a free one (default: 8000)"},
                  kTheModel,
                  {"served-model-name", "what requests call the model (default: MODEL)"},
                  {"api-key", "a key that clients must show"},
                  {"chat-template", "a file in place of the model's chat template"},
                  {"max-num-seqs", "requests that run at a time (default: by memory)"},
                  {"max-queued-requests", "that wait; others get status 429 (default: 512)"},
                  kTheContext,
                  kTheDevice,
                  kTheThreads,
                  {"config", "a file of options, in TOML"},
                  {"print-config", "print each option's value and where it comes from"},
                  {"log-level", "off, error, warning, info, debug (default: info)"},
                  kHelpOfMore},
       .examples = {{"headrace serve", ""}, {"headrace serve Qwen/Qwen3-0.6B --port 8080 --api-key secret", ""}},
       .more = "Each option has a variable, too: HEADRACE_PORT for --port."},
      {.path = "headrace eval perplexity",
       .usage = "[MODEL] --file FILE [OPTIONS]",
       .common = {{"file", ""}, kTheModel, kTheContext, kTheDevice, kTheThreads, kTheJson, kHelpOfMore},
       .examples = {{"headrace eval perplexity -f book.txt", ""},
                    {"headrace eval perplexity Qwen/Qwen3-0.6B -f book.txt --json", ""}}},
      {.path = "headrace eval puzzles",
       .common = {{"file", ""},
                  {"limit", ""},
                  {"strategies", ""},
                  {"thresholds", ""},
                  {"svg", ""},
                  kTheModel,
                  kTheDevice,
                  kTheThreads,
                  kTheJson,
                  kHelpOfMore},
       .examples = {{"headrace eval puzzles", "all items by all strategies: a minute or two"},
                    {"headrace eval puzzles --limit 10 --thresholds 0.9,0.5 --svg curve.svg", ""}}},
      {.path = "headrace bench",
       .common = {{"parallel", ""},
                  {"input-len", ""},
                  {"url", "serve, agent: a server that runs (default: MODEL's own)"},
                  {"request-rate", "serve: that begin in a second, or inf: 1,2,4,8"},
                  {"num-prompts", "serve: requests of each rate (default: 100)"},
                  {"max-concurrency", "serve: requests at a time"},
                  {"output-len", "serve: tokens of an answer (default: 128)"},
                  kTheModel,
                  kTheContext,
                  kTheDevice,
                  kTheThreads,
                  kHelpOfMore},
       .examples = {{"headrace bench model", ""},
                    {"headrace bench model Qwen/Qwen3-0.6B --parallel 1,8", ""},
                    {"headrace bench serve --request-rate 1,2,4,8 --svg curve.svg", ""}}},
      {.path = "headrace list",
       .common = {{"json", "print one JSON array"}, kHelp},
       .examples = {{"headrace list", ""}, {"HF_HOME=/data/hf headrace list --json", "a cache in another place"}}},
  };
  return kPages;
}

}  // namespace

const HelpPage* help_page(std::string_view path) {
  const auto found = std::ranges::find(help_pages(), path, &HelpPage::path);
  return found == help_pages().end() ? nullptr : &*found;
}

}  // namespace headrace::app
