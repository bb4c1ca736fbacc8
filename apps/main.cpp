// The headrace program: reads the command line, runs a command, turns failures into one sentence and a status.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <memory>
#include <sstream>

#include "command_line.h"
#include "commands.h"
#include "decoding_flags.h"
#include "demo.h"
#include "exit_status.h"
#include "flag_names.h"
#include "headrace/base/error.h"
#include "headrace/weights/sigbus_guard.h"
#include "help_formatter.h"
#include "option_values.h"
#include "output.h"
#include "puzzles.h"
#include "sampling_flags.h"
#include "suggest.h"

namespace {

using namespace headrace;
using namespace headrace::app;

void add_threads_flag(CLI::App& app, ModelFlags& f) {
  app.add_option("-t,--threads", f.threads, "threads (default: the cores)")
      ->check(CLI::Range(1, 1024))
      ->group("Machine");
}

void add_attention_flags(CLI::App& app, ModelFlags& f) {
  app.option_defaults()->group("Attention and memory");
  app.add_option("-c,--max-model-len,--ctx-size", f.max_model_len,
                 "context tokens (default: the model's, at most 8192)")
      ->check(CLI::Range(2, 1 << 24));
  app.add_option("--kv-cache-dtype", f.kv_dtype, "of cached keys and values (auto: as activations)")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3"}))
      ->capture_default_str();
  app.add_option("--page-size", f.page_size, "tokens of a KV page: 1, 16, 32, 64, 128, 256")->capture_default_str();
  app.add_option("--backend,--attention-backend", f.backend,
                 "attention backend and kernels: auto, cpu, reference, cuda or cuda_baseline")
      ->capture_default_str();
  app.add_option("--attn-impl", f.attn_impl,
                 "how the backend attends: reference, optimized (a pass per query head) or grouped (default)");
}

void add_machine_flags(CLI::App& app, ModelFlags& f) {
  app.option_defaults()->group("Machine");
  app.add_option("--device", f.device, "where to run: auto, cpu, cuda, cuda:N")->capture_default_str();
  add_threads_flag(app, f);
  app.add_option("--kernel-set", f.kernel_set,
                 "CPU instruction set by name (default: the best that runs here); on a GPU --backend chooses")
      ->type_name(kName);
  app.add_flag("--deterministic", f.deterministic, "bits do not depend on batch, chunking or threads");
  CLI::Option* required = app.add_flag("--require-graphs", f.require_graphs,
                                       "on a GPU: every step behind a prompt is a CUDA graph, or status 4 at once");
  app.add_flag("--no-graphs", f.no_graphs, "on a GPU: decode without CUDA graphs")->excludes(required);
}

// What is added behind these goes to the group of output.
void add_model_flags(CLI::App& app, ModelFlags& f) {
  app.option_defaults()->group("Model");
  app.add_option("model,-m,--model", f.model,
                 "model directory, or the name of one in Hugging Face's cache (default: the bundled demo)")
      ->type_name(kModel);
  app.add_option("--dtype", f.dtype, "of activations")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--adapter", f.adapter, "a LoRA directory (PEFT), merged into the weights")->type_name(kDirectory);
  app.add_option("--random-weights", f.random_weights, "made-up weights from this seed: only config.json is needed");
  add_attention_flags(app, f);
  add_machine_flags(app, f);
  app.option_defaults()->group("Output");
  app.add_option("--log-level", f.log_level, "messages on standard error: off, warning, info")
      ->check(CLI::IsMember({"off", "warning", "info"}))
      ->capture_default_str();
}

// The flags of every command, and what the one that ran returned.
struct Commands {
  GenerateFlags generate, demo;
  ModelFlags perplexity, bench;
  PuzzleFlags puzzles;
  std::string demo_what = "story", perplexity_file, bench_what;
  std::vector<int32_t> parallel;
  std::optional<int32_t> input_len;
  bool json = false;
  int status = 0;

  Output output() const { return json ? Output::kJson : Output::kText; }
};

void add_generate(CLI::App& app, Commands& c) {
  CLI::App* generate = app.add_subcommand("generate", "complete a prompt; text comes as it is made");
  generate->option_defaults()->group("Prompt");
  CLI::Option* prompt = generate->add_option("-p,--prompt", c.generate.prompt, "the text to complete");
  generate->add_option("-f,--file", c.generate.prompt_file, "or the file that holds it; -: standard input")
      ->type_name(kFile)
      ->excludes(prompt);
  generate->add_flag("--special-tokens", c.generate.special_tokens,
                     "the prompt spells the model's special tokens (<|im_start|>), and none is added in front");
  add_sampling_flags(*generate, c.generate.sampling);
  add_model_flags(*generate, c.generate.model);
  CLI::Option* json = generate->add_flag("--json", c.generate.json,
                                         "one JSON object: text, ids, usage (completion_tokens: those of the text, "
                                         "without an end token or a stop text), timings, what ran");
  generate
      ->add_flag("--logprobs", c.generate.logprobs,
                 "in it also tokens and their natural log-probabilities (token_logprobs), before temperature")
      ->needs(json);
  add_decoding_flags(*generate, c.generate.decoding, c.generate.sampling.params);
  generate->callback([&c] { c.status = app::generate(c.generate); });
}

void add_demo(CLI::App& app, Commands& c) {
  CLI::App* demo = app.add_subcommand("demo", "bundled models write a fairy tale, or solve puzzles");
  c.demo.sampling.params = {.max_tokens = 300, .seed = 3};
  demo->add_option("what", c.demo_what,
                   "story: token by token; diffusion: in blocks that are denoised; puzzle: sums, sorting, sudoku")
      ->type_name("{story,diffusion,puzzle}")
      ->capture_default_str();
  demo->add_option("-p,--prompt", c.demo.prompt, "how the story begins, or a puzzle (default: one of its own)");
  add_sampling_flags(*demo, c.demo.sampling);
  add_threads_flag(*demo, c.demo.model);
  demo->callback([&c] { c.status = app::demo(demo_of(c.demo_what), c.demo); });
}

void add_perplexity(CLI::App& eval, Commands& c) {
  CLI::App* perplexity =
      eval.add_subcommand("perplexity", "perplexity and bits per byte of a text, windows of 512 tokens");
  perplexity->add_option("-f,--file", c.perplexity_file, "UTF-8 text; -: standard input")->type_name(kFile)->required();
  add_model_flags(*perplexity, c.perplexity);
  perplexity->add_flag("--json", c.json, "one JSON object");
  perplexity->callback([&c] { c.status = eval_perplexity(c.perplexity, c.perplexity_file, c.output()); });
}

void add_puzzles(CLI::App& eval, Commands& c) {
  CLI::App* puzzles = eval.add_subcommand("puzzles", "exact answers against tokens per forward, strategy by strategy");
  puzzles
      ->add_option("--file", c.puzzles.file,
                   "test items, one JSON object per line (default: the model's test.jsonl, else the bundled puzzles)")
      ->type_name(kFile);
  puzzles->add_option("--limit", c.puzzles.limit, "items of each task (default: all)")->check(CLI::Range(1, 1 << 30));
  puzzles
      ->add_option("--strategies", c.puzzles.strategies,
                   "ways of decoding the model; auto: its own (default: its own and those worth comparing with it)")
      ->type_name("A,B")
      ->delimiter(',')
      ->allow_extra_args(false);
  puzzles->add_option("--thresholds", c.puzzles.thresholds, "what a token must pass to be kept, such as 0.9,0.5")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  add_model_flags(*puzzles, c.puzzles.model);
  CLI::Option* svg =
      puzzles->add_option("--svg", c.puzzles.svg, "file for the curve of accuracy against tokens per forward");
  refuse_standard_output(*svg->type_name(kFile));
  puzzles->add_flag("--json", c.json, "one JSON object: each way of decoding, each task of it");
  puzzles->callback([&c] { c.status = eval_puzzles(c.puzzles, c.output()); });
}

void add_doctor_and_bench(CLI::App& app, Commands& c) {
  CLI::App* check = app.add_subcommand("doctor", "what this machine can do and which kernels run");
  check->add_flag("--json", c.json, "one JSON object");
  check->callback([&c] { c.status = doctor(c.output()); });

  CLI::App* measure =
      app.add_subcommand("bench", "speed against the machine's measured limits, one JSON object per line");
  measure->add_option("op", c.bench_what, "what to measure")
      ->required()
      ->check(CLI::IsMember({"attention", "blocks", "canvases", "chat", "gdn", "model"}));
  measure
      ->add_option("--parallel", c.parallel,
                   "model: also with so many requests at once, such as 8,64; blocks: in place of 1,128")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096));
  measure->add_option("--input-len", c.input_len, "blocks, model --parallel: tokens of each prompt (default: 256)")
      ->check(CLI::Range(1, 1 << 20));
  add_model_flags(*measure, c.bench);
  measure->callback([&c] { c.status = bench(c.bench_what, c.bench, c.parallel, c.input_len); });
}

int misused(const std::string& why) {
  write_err(fmt::format("headrace: {}\n", why));
  return kUsage;
}

// Runs the command that `words` name, which CLI11 calls back and which keeps its status: this one is 0, for --help and
// --version too, unless `words` were misused.
int parsed(CLI::App& app, const char* program, const std::vector<std::string>& words) {
  std::vector<const char*> line{program};
  for (const std::string& word : words) line.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(line.size()), line.data());
  } catch (const CLI::ExtrasError&) {
    return misused(left_over(app));
  } catch (const CLI::ArgumentMismatch& e) {
    return misused(given_again(app).value_or(e.what()));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return misused(e.what());
    std::ostringstream asked;
    app.exit(e, asked);
    write_out(asked.str());
  } catch (const Error& e) {
    throw Error(e.code(), in_flags(parsed_command(app), e.what()));
  }
  return 0;
}

int run(int argc, char** argv, SigbusGuard& guard) {
  CLI::App app("headrace: attention runtime and LLM inference engine");
  app.set_version_flag("--version", "headrace " HEADRACE_VERSION);
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());  // of the commands too, which are added behind it
  Commands commands;
  for (ModelFlags* flags : {&commands.generate.model, &commands.demo.model, &commands.perplexity,
                            &commands.puzzles.model, &commands.bench}) {
    flags->guard = &guard;
  }
  add_generate(app, commands);
  add_demo(app, commands);
  CLI::App* eval = app.add_subcommand("eval", "measure a model")->require_subcommand(1);
  add_perplexity(*eval, commands);
  add_puzzles(*eval, commands);
  add_doctor_and_bench(app, commands);
  check_values(app);
  const std::vector<std::string> words = with_empty_values(app, {argv + 1, argv + argc});
  if (const auto unknown = unknown_argument(app, words)) return misused(*unknown);
  const int status = parsed(app, argv[0], words);
  return status != 0 ? status : commands.status;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows as a failed write
  return guarded([&] {
    headrace::SigbusGuard guard;
    return run(argc, argv, guard);
  });
}
