// The headrace program: reads the command line, runs a command, turns failures into one sentence and a status.
#include <CLI/CLI.hpp>

#include <csignal>

#include "commands.h"
#include "decoding_flags.h"
#include "demo.h"
#include "exit_status.h"
#include "headrace/core/sigbus_guard.h"
#include "interrupt.h"
#include "load_flags.h"
#include "model_flags.h"
#include "option_values.h"
#include "parse_line.h"
#include "puzzles.h"
#include "run.h"
#include "run_batch.h"
#include "sampling_flags.h"
#include "serve.h"
#include "version.h"

namespace {

using namespace headrace;
using namespace headrace::app;

// The flags of every command, and what the one that ran returned.
struct Commands {
  GenerateFlags generate, demo;
  ModelFlags perplexity, bench;
  PuzzleFlags puzzles;
  RunFlags run;
  RunBatchFlags batch;
  PullFlags pull;
  QuantizeFlags quantize;
  ServeFlags serve;
  Origins origins;
  std::string demo_what = "story", perplexity_file, perplexity_exact, bench_what, doctor_model, explained, shown,
              removed;
  BenchLoad load;
  LoadFlags server_load;
  bool json = false, yes = false;
  int status = 0;

  Output output() const { return json ? Output::kJson : Output::kText; }
};

void add_prompt_flags(CLI::App& generate, GenerateFlags& f) {
  generate.option_defaults()->group("Prompt");
  generate.add_option("words", f.words, "[MODEL] [PROMPT]")->group("");  // place_words reads them
  CLI::Option* prompt = generate.add_option("-p,--prompt", f.prompt,
                                            "the text to continue; PROMPT means the same (default: what is piped in)");
  generate
      .add_option("-f,--file", f.prompt_file,
                  "read the text from FILE; -: from standard input, all of it, as the PROMPT - does")
      ->type_name(kFile)
      ->excludes(prompt);
  CLI::Option* special =
      generate.add_flag("--special-tokens", f.special_tokens,
                        "read special tokens in the prompt (<|im_start|>) as tokens, and put none in front of it");
  generate
      .add_flag("--chat", f.chat, "apply the model's chat template: the prompt is a user's message, to be answered")
      ->excludes(special);
  using Escape = GenerateFlags::Escape;
  CLI::Option* escape = generate.add_flag_callback(
      "-e,--escape", [&f] { f.escape = Escape::kYes; }, "replace \\n, \\t, \\\\ and \\\" in the prompt");
  generate
      .add_flag_callback(
          "--no-escape", [&f] { f.escape = Escape::kNo; }, "leave them as they are, and do not warn of \\n")
      ->excludes(escape);
}

void add_generate(CLI::App& app, Commands& c) {
  CLI::App* generate = app.add_subcommand("generate", "continue a text; it is printed as it is made");
  add_prompt_flags(*generate, c.generate);
  add_sampling_flags(*generate, c.generate.sampling);
  add_model_flags(*generate, c.generate.model, "-m,--model");
  CLI::Option* json =
      generate->add_flag("--json", c.generate.json, "print one JSON object: text, token ids, usage, timings, settings");
  generate
      ->add_flag("--logprobs", c.generate.logprobs,
                 "with --json: each token and its natural log-probability before temperature")
      ->needs(json);
  add_decoding_flags(*generate, c.generate.decoding, c.generate.sampling.params);
  generate->callback([&c] { c.status = app::generate(c.generate); });
}

void add_run(CLI::App& app, Commands& c) {
  CLI::App* command = app.add_subcommand("run", "chat with a model, or answer one message");
  add_run_flags(*command, c.run);
  command->callback([&c] { c.status = app::run(c.run); });
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

void add_run_batch(CLI::App& app, Commands& c) {
  CLI::App* batch = app.add_subcommand("run-batch", "complete a file of requests in OpenAI's format");
  add_run_batch_flags(*batch, c.batch);
  batch->add_flag("--json", c.json, "print one JSON object: requests, failed, tokens, seconds");
  batch->callback([&c] { c.status = run_batch(c.batch, c.output()); });
}

void add_serve(CLI::App& app, Commands& c) {
  CLI::App* serve = app.add_subcommand("serve", "answer the requests of OpenAI's and Ollama's clients");
  add_serve_flags(*serve, c.serve);
  serve->callback([&c, serve] { c.status = app::serve(c.serve, *serve, c.origins); });
}

void add_perplexity(CLI::App& eval, Commands& c) {
  CLI::App* perplexity =
      eval.add_subcommand("perplexity", "perplexity and bits per byte of a text, in windows of 512 tokens");
  perplexity->add_option("-f,--file", c.perplexity_file, "the text, UTF-8; -: standard input")
      ->type_name(kFile)
      ->required();
  perplexity
      ->add_option("--against", c.perplexity_exact,
                   "measure also how far the next tokens' distributions are from this model's, computed in float32: "
                   "what quantised weights cost")
      ->type_name(kModel);
  add_model_flags(*perplexity, c.perplexity);
  perplexity->add_flag("--json", c.json, "print one JSON object");
  perplexity->callback(
      [&c] { c.status = eval_perplexity(c.perplexity, c.perplexity_file, c.perplexity_exact, c.output()); });
}

void add_puzzles(CLI::App& eval, Commands& c) {
  CLI::App* puzzles =
      eval.add_subcommand("puzzles", "share of exact answers and tokens per forward, for each strategy");
  puzzles
      ->add_option("--file", c.puzzles.file,
                   "test items, one JSON object per line (default: the model's test.jsonl, else the bundled puzzles)")
      ->type_name(kFile);
  puzzles->add_option("--limit", c.puzzles.limit, "at most N items of each task (default: all)")
      ->check(integer_in(1, 1 << 30));
  puzzles
      ->add_option("--strategies", c.puzzles.strategies,
                   "strategies to compare; auto: the model's own (default: its own and those that suit it)")
      ->type_name("A,B")
      ->delimiter(',')
      ->allow_extra_args(false);
  puzzles
      ->add_option("--thresholds", c.puzzles.thresholds,
                   "confidence at which a token is kept, each for one row of the table")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  add_model_flags(*puzzles, c.puzzles.model);
  CLI::Option* svg =
      puzzles->add_option("--svg", c.puzzles.svg, "write the curve of accuracy against tokens per forward to FILE");
  refuse_standard_output(*svg->type_name(kFile));
  puzzles->add_flag("--json", c.json, "print one JSON object: every strategy and every task");
  puzzles->callback([&c] { c.status = eval_puzzles(c.puzzles, c.output()); });
}

void add_doctor_and_bench(CLI::App& app, Commands& c) {
  CLI::App* check =
      app.add_subcommand("doctor", "what this machine can do; with a model: whether it fits, and how fast it can be");
  check->add_option("model,-m,--model", c.doctor_model, "model directory or name")->type_name(kModel);
  check->add_flag("--json", c.json, "one JSON object");
  const CLI::Option* explain =
      check
          ->add_option("--explain", c.explained,
                       "which kernels an H200 runs for a model's GEMMs, or for a call: 'gemm m=8 n=9728 k=2560'")
          ->expected(0, 1)
          ->type_name("[CALL]");
  check->callback([&c, explain] {
    if (explain->count() > 0) {
      c.status = doctor_explain(c.explained, c.doctor_model, c.output());
    } else {
      c.status = c.doctor_model.empty() ? doctor(c.output()) : doctor_model(c.doctor_model, c.output());
    }
  });

  CLI::App* measure = app.add_subcommand("bench", "speed beside the machine's limits, as JSON lines");
  measure->add_option("name", c.bench_what, "what to measure")
      ->required()
      ->check(CLI::IsMember({"agent", "arrivals", "attention", "blocks", "canvases", "chat", "engine", "gdn", "linear",
                             "model", "serve", "template"}));
  measure
      ->add_option("--parallel", c.load.parallel,
                   "model: measure also N requests at once; arrivals: in place of 64; blocks: of 1,128; engine: of "
                   "1,64,256,1024")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(integer_in(1, 4096));
  measure
      ->add_option(
          "--input-len", c.load.input_len,
          "agent, arrivals, blocks, engine, serve, and model with --parallel: tokens of each prompt; agent: that "
          "each turn adds (default: 256)")
      ->check(integer_in(1, 1 << 20));
  measure
      ->add_option("--engines", c.load.engines,
                   "model with --parallel: measure also so many engines at once, which share the requests")
      ->check(integer_in(2, 16));
  measure
      ->add_option("--leave-out", c.bench.leave_out,
                   "a GPU's kernel families that ops do not choose, with commas between them: gemv,sequence")
      ->check([](const std::string& names) { return names.empty() ? "is empty, expected a kernel family" : ""; })
      ->type_name("NAMES");
  measure->add_flag("--json", c.json, "one JSON object per line, which it prints without this flag, too");
  add_load_flags(*measure, c.server_load);
  add_model_flags(*measure, c.bench);
  measure->callback([&c, measure] {
    refuse_load_flags(*measure, c.bench_what);
    c.status = bench(c.bench_what, c.bench, c.load, c.server_load);
  });
}

void add_quantize(CLI::App& app, Commands& c) {
  QuantizeFlags& f = c.quantize;
  CLI::App* command = app.add_subcommand("quantize", "write a model as a GGUF file, with smaller weights");
  command
      ->add_option(
          "model", f.model,
          "a model's directory or name, or a GGUF file with 16-bit weights; its tokenizer and chat template go "
          "into the file")
      ->type_name(kModel)
      ->required();
  command->add_option("--to", f.to, "format of the weights: 8.5, 4.8, 5.7 and 6.6 bits each, or 16")
      ->check(CLI::IsMember({"q8_0", "q4_k_m", "q5_k_m", "q6_k", "bf16", "f16"}))
      ->required();
  CLI::Option* output = command->add_option("-o,--output-file", f.output,
                                            "the file to write (default: MODEL-Q4_K_M.gguf, as --to says, here)");
  refuse_standard_output(*output->type_name(kFile));
  command->add_flag("--overwrite", f.overwrite, "replace an output file that exists, once the new one is complete");
  command->add_option("-t,--threads", f.threads, "CPU threads (default: as many as there are cores)")
      ->check(integer_in(1, 1024));
  command->add_flag("--json", c.json, "print one JSON object: formats by kinds of tensors, bytes");
  command->callback([&c] { c.status = app::quantize(c.quantize, c.output()); });
}

void add_model_commands(CLI::App& app, Commands& c) {
  CLI::App* pull = app.add_subcommand("pull", "download a model from Hugging Face's hub");
  pull->add_option("model", c.pull.model, "its name, ORG/NAME or ORG/NAME@REVISION; ORG/NAME:Q4_K_M names a GGUF file")
      ->type_name(kModel)
      ->required();
  pull->add_option("--revision", c.pull.revision, "branch, tag or commit (default: main)")->type_name(kName);
  pull->add_option("--token", c.pull.token,
                   "token of the hub, for gated and private models (default: HF_TOKEN, or what hf auth login stored)")
      ->type_name("TOKEN");
  pull->add_flag("--json", c.json, "one JSON object per line: plan, progress, done");
  pull->callback([&c] { c.status = pull_command(c.pull, c.output()); });

  app.add_subcommand("list", "the models that are here, by name")
      ->callback([&c] { c.status = list_models(c.output()); })
      ->add_flag("--json", c.json, "one JSON array");

  CLI::App* show = app.add_subcommand("show", "what a model is, how large, and where");
  show->add_option("model", c.shown, "model directory or name, or a GGUF file")->type_name(kModel)->required();
  show->add_flag("--json", c.json, "one JSON object");
  show->callback([&c] { c.status = show_model(c.shown, c.output()); });

  CLI::App* remove = app.add_subcommand("rm", "remove a model from Hugging Face's cache");
  remove->add_option("model", c.removed, "its name; with @REVISION that snapshot alone")->type_name(kModel)->required();
  remove->add_flag("-y,--yes", c.yes, "do not ask");
  remove->add_flag("--json", c.json, "one JSON object: what was removed, and bytes freed");
  remove->callback([&c] { c.status = remove_model(c.removed, c.yes ? Confirm::kAssumed : Confirm::kAsk, c.output()); });
}

int run(int argc, char** argv, SigbusGuard& guard) {
  CLI::App app(
      "headrace runs language models on a CPU or an NVIDIA GPU: causal transformers, hybrids with Gated DeltaNet, and "
      "block diffusion models.");
  app.set_version_flag("--version", version_text);
  app.set_help_flag("-h,--help", "this help, of what people use");  // of the commands too, which are added behind it
  app.set_help_all_flag("--help-all", "all options");
  app.require_subcommand(1);
  Commands commands;
  for (ModelFlags* flags :
       {&commands.generate.model, &commands.run.generate.model, &commands.demo.model, &commands.perplexity,
        &commands.batch.model, &commands.serve.model, &commands.puzzles.model, &commands.bench}) {
    flags->guard = &guard;
  }
  commands.quantize.guard = &guard;
  add_generate(app, commands);
  add_run(app, commands);
  add_demo(app, commands);
  add_run_batch(app, commands);
  add_serve(app, commands);
  CLI::App* eval =
      app.add_subcommand("eval", "measure a model: perplexity of a text, or puzzles")->require_subcommand(1);
  add_perplexity(*eval, commands);
  add_puzzles(*eval, commands);
  add_doctor_and_bench(app, commands);
  add_model_commands(app, commands);
  add_quantize(app, commands);
  app.add_subcommand("help", "help for a command: headrace help COMMAND");  // with_help_options reads it
  app.add_subcommand("version", "the version");
  check_values(app);
  const int status = parse_line(app, {argv + 1, argv + argc}, commands.origins);
  return status != 0 ? status : commands.status;
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe, or a file as large as may be, shows as a failed write.
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  catch_interrupts();
  return guarded([&] {
    headrace::SigbusGuard guard;
    return run(argc, argv, guard);
  });
}
