// Parts of the program that its outside does not show, or shows only when something breaks.
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "apps/command_line.h"
#include "apps/exit_status.h"
#include "apps/flag_names.h"
#include "apps/help_formatter.h"
#include "apps/input.h"
#include "apps/known_elsewhere.h"
#include "apps/load_progress.h"
#include "apps/log_sink.h"
#include "apps/option_values.h"
#include "apps/output.h"
#include "apps/suggest.h"
#include "apps/terminal.h"
#include "headrace/core/error.h"

namespace headrace::app {
namespace {

using Words = std::vector<std::string>;

struct Ended {
  int status;
  std::string message;
};
template <class Thrown>
Ended ended_by(const Thrown& thrown) {
  testing::internal::CaptureStderr();
  const int status = guarded([&]() -> int { throw thrown; });
  return {status, testing::internal::GetCapturedStderr()};
}

TEST(ExitStatus, FollowsTheKindOfError) {
  const std::vector<std::pair<ErrorCode, int>> cases = {
      {ErrorCode::kInvalidArgument, 2}, {ErrorCode::kUnsupported, 2}, {ErrorCode::kModelFile, 3}, {ErrorCode::kIo, 3},
      {ErrorCode::kOutOfMemory, 4},     {ErrorCode::kNoDevice, 6},    {ErrorCode::kCuda, 6}};
  for (const auto& [code, status] : cases) {
    const Ended ended = ended_by(Error(code, "what happened"));
    EXPECT_EQ(ended.status, status);
    EXPECT_EQ(ended.message, "headrace: what happened\n");
  }
  EXPECT_EQ(guarded([] { return 5; }), 5);
}

TEST(ExitStatus, ABugSaysSo) {
  for (const Ended& ended : {ended_by(Error(ErrorCode::kInternal, "a is 2")), ended_by(std::logic_error("a is 2"))}) {
    EXPECT_EQ(ended.status, 70);
    EXPECT_EQ(ended.message, "headrace: bug: a is 2\n");
  }
}

TEST(ExitStatus, MemoryHasItsOwn) { EXPECT_EQ(ended_by(std::bad_alloc()).status, 4); }

TEST(ExitStatus, WhatAFileSaysDoesNotSteerTheTerminal) {
  const Ended ended =
      ended_by(Error(ErrorCode::kModelFile, "is '\x1b]0;pwned\x07\x1b[31m\r\n\xc2\x9b\x7f' caf\u00e9 \u00a0"));
  EXPECT_EQ(ended.message, "headrace: is '\\x1b]0;pwned\\x07\\x1b[31m\\x0d\\x0a\\x9b\\x7f' caf\u00e9 \u00a0\n");
  EXPECT_EQ(without_controls("a\n\tb\r\x1b[2J", Keep::kLinesAndTabs), "a\n\tb\\x0d\\x1b[2J");
  EXPECT_EQ(without_controls("\xc2"), "\xc2") << "the first half of a character";
  testing::internal::CaptureStderr();
  log_to_stderr("warning")(LogLevel::kWarning, "a \x1b[2J");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "headrace: warning: a \\x1b[2J\n");
}

TEST(Suggest, TheNearestNameIfItIsNear) {
  const std::vector<std::string> names = {"--help", "--max-tokens", "--temperature", "--top-k", "--top-p", "-n"};
  EXPECT_EQ(nearest("--max-token", names), "--max-tokens");
  EXPECT_EQ(nearest("--temprature", names), "--temperature");
  EXPECT_EQ(nearest("--tpo-k", names), "--top-k");
  EXPECT_EQ(nearest("--temp", names), "--temperature") << "what it is the beginning of, before --help and its like";
  EXPECT_EQ(nearest("--tokens", names), std::nullopt);
  EXPECT_EQ(nearest("--hlep", names), "--help");
  EXPECT_EQ(nearest("--temp", {"--help", "--json"}), std::nullopt) << "half of its letters differ";
  EXPECT_EQ(nearest("-m", names), std::nullopt);
  EXPECT_EQ(nearest("-nm", names), std::nullopt) << "to which -n is as near as any";
  EXPECT_EQ(nearest("x", {}), std::nullopt);
}

TEST(Suggest, OneSentenceForTheFirstUnknownArgument) {
  CLI::App app;
  CLI::App* generate = app.add_subcommand("generate");
  CLI::App* perplexity = app.add_subcommand("eval")->add_subcommand("perplexity");
  int number = 0;
  bool flag = false;
  generate->add_option("-n,--max-tokens", number);
  generate->add_flag("--json", flag);
  perplexity->add_option("--file", number);
  const auto told = [&app](const std::vector<std::string>& words) { return unknown_argument(app, words).value_or(""); };
  EXPECT_EQ(told({"genrate", "-n", "3"}), "unknown command 'genrate' of headrace; did you mean 'generate'?");
  EXPECT_EQ(told({"generate", "--json", "--max-token=3"}),
            "unknown option '--max-token' of headrace generate; did you mean '--max-tokens'?");
  EXPECT_EQ(told({"eval", "perplexty"}), "unknown command 'perplexty' of headrace eval; did you mean 'perplexity'?");
  EXPECT_EQ(told({"eval", "perplexity", "--flie", "x"}),
            "unknown option '--flie' of headrace eval perplexity; did you mean '--file'?");
  EXPECT_EQ(told({"generate", "--quux"}),
            "unknown option '--quux' of headrace generate; 'headrace generate --help' lists what there is");
  EXPECT_EQ(told({"generate", "-n", "--quux", "-n3", "words", "--json"}), "") << "what follows an option is its value";
  EXPECT_EQ(told({"generate", "-ngl", "99"}),
            "unknown option '-ngl' of headrace generate: --device cuda runs all layers on the GPU")
      << "and not -n with gl";
  EXPECT_EQ(
      told({"generate", "--port=80"}),
      "unknown option '--port' of headrace generate: headrace serve MODEL answers requests, and headrace run-batch "
      "those of a file");
  EXPECT_EQ(told({"server"}),
            "unknown command 'server' of headrace: headrace serve MODEL answers requests, and headrace run-batch those "
            "of a file");
  EXPECT_EQ(told({"generate", "-n", "-ngl"}), "");
  EXPECT_EQ(told({"--help"}) + told({"eval", "-h"}), "") << "which needs no command";
  EXPECT_EQ(told({}), "headrace needs a command; 'headrace --help' lists what there is");
  EXPECT_EQ(told({"eval"}), "headrace eval needs a command; 'headrace eval --help' lists what there is");
}

TEST(Suggest, AValueThatIsMissingAtTheEnd) {
  CLI::App app;
  int number = 0;
  app.add_subcommand("generate")->add_option("-n,--max-tokens", number)->check(integer_in(0, 9));
  EXPECT_EQ(unknown_argument(app, {"generate", "-n"}), "--max-tokens: has no value, expected an integer from 0 to 9");
  EXPECT_EQ(unknown_argument(app, {"generate", "-n", "3"}), std::nullopt);
}

TEST(Suggest, ALineWithoutACommandBelongsBehindGenerate) {
  CLI::App app;
  int number = 0;
  app.add_subcommand("generate")->add_option("-n,--max-tokens", number);
  const auto told = [&app](const std::string& word) { return unknown_argument(app, {word}).value_or(""); };
  EXPECT_EQ(told("-n"), "unknown option '-n' of headrace; headrace generate -n ... takes it");
  EXPECT_EQ(told("--gen-length=3"),
            "unknown option '--gen-length' of headrace; headrace generate --gen-length ... takes it");
  EXPECT_EQ(told("--quux"), "unknown option '--quux' of headrace; 'headrace --help' lists what there is");
  EXPECT_EQ(told("Once upon a time"),
            "unknown command 'Once upon a time' of headrace; headrace generate [MODEL] \"TEXT\" completes a text, and "
            "'headrace --help' lists what there is");
}

TEST(Suggest, ASentenceHasTheNameThatWasTyped) {
  CLI::App app;
  int number = 0;
  std::string text;
  app.add_subcommand("generate")->add_option("-n,--max-tokens", number);
  app.add_subcommand("bench")->add_option("name", text);
  EXPECT_EQ(with_names(app, {"generate", "-n", "x"}, "--max-tokens: is 'x'"), "-n, --max-tokens: is 'x'");
  EXPECT_EQ(with_names(app, {"generate", "-nx"}, "--max-tokens: is 'x'"), "--max-tokens: is 'x'") << "an unknown one";
  EXPECT_EQ(with_names(app, {"generate", "-n3"}, "--max-tokens: is '3'"), "-n, --max-tokens: is '3'");
  EXPECT_EQ(with_names(app, {"generate", "--max-tokens", "x"}, "--max-tokens: is 'x'"), "--max-tokens: is 'x'");
  EXPECT_EQ(with_names(app, {"bench", "x"}, "name: is 'x'"), "bench: is 'x'");
}

TEST(Suggest, OptionsThatDoNotGoTogether) {
  CLI::App app;
  std::string text;
  CLI::App* generate = app.add_subcommand("generate");
  CLI::Option* prompt = generate->add_option("-p,--prompt", text);
  generate->add_option("-f,--file", text)->excludes(prompt);
  CLI::Option* json = generate->add_flag("--json");
  generate->add_flag("--logprobs")->needs(json);
  generate->add_option("--seed", text)->required();
  EXPECT_THROW(app.parse("generate --seed 1 -p a -f b"), CLI::ExcludesError);
  EXPECT_EQ(ill_matched(app), "--prompt and --file: both are given, expected one of them");
  EXPECT_THROW(app.parse("generate --seed 1 --logprobs"), CLI::RequiresError);
  EXPECT_EQ(ill_matched(app), "--logprobs: needs --json beside it");
  EXPECT_THROW(app.parse("generate -p a"), CLI::RequiredError);
  EXPECT_EQ(ill_matched(app), std::nullopt);
  EXPECT_EQ(missing_option(app), "headrace generate needs --seed: a text");
}

// -no-cnv was -n with "o-cnv", and -sys x a seed of "ys".
TEST(Suggest, ShortNamesOfSeveralLettersAreNotCutIntoOthers) {
  CLI::App app;
  int number = 0;
  std::string text;
  CLI::App* generate = app.add_subcommand("generate");
  generate->add_option("-n,--max-tokens", number);
  generate->add_option("-s,--seed", number);
  generate->add_option("-p,--prompt", text);
  const auto told = [&app](const std::string& word) { return unknown_argument(app, {"generate", word}).value_or(""); };
  const std::string listed = "' of headrace generate; 'headrace generate --help' lists what there is";
  EXPECT_EQ(told("-no-cnv"),
            "unknown option '-no-cnv' of headrace generate: leave it out: headrace generate applies no chat template");
  EXPECT_EQ(told("-sys"),
            "unknown option '-sys' of headrace generate: headrace run MODEL chats, by the model's chat template");
  EXPECT_EQ(told("-ub"),
            "unknown option '-ub' of headrace generate: --max-num-batched-tokens is how much of a prompt runs at once");
  EXPECT_EQ(told("-sx"), "unknown option '-sx" + listed) << "a word that no table has";
  EXPECT_EQ(told("-hfx"), "unknown option '-hfx" + listed) << "and not --help";
  EXPECT_EQ(told("-n3") + told("-n-1") + told("-s7") + told("-pOnce") + told("-h"), "");
}

TEST(Suggest, WhatOnlyGenerateTakesOfTheDemo) {
  CLI::App app;
  std::string text;
  app.add_subcommand("generate")->add_option("--device", text);
  app.add_subcommand("demo")->add_option("-p", text);
  EXPECT_EQ(unknown_argument(app, {"demo", "--device=cuda"}),
            "unknown option '--device' of headrace demo: headrace generate takes it, with the same model unless told "
            "otherwise");
  EXPECT_EQ(unknown_argument(app, {"demo", "--nope"}),
            "unknown option '--nope' of headrace demo; 'headrace demo --help' lists what there is");
  EXPECT_THROW(app.parse("demo directory"), CLI::ExtrasError);
  EXPECT_EQ(left_over(app),
            "'directory' is more than demo takes; its prompt goes behind -p, and another model to headrace generate");
}

TEST(Suggest, AnOptionThatIsGivenAgain) {
  CLI::App app;
  std::string model;
  std::vector<int> numbers;
  CLI::App* puzzles = app.add_subcommand("eval")->add_subcommand("puzzles");
  puzzles->add_option("model,-m,--model", model);
  puzzles->add_option("--numbers", numbers);
  puzzles->add_flag("--json");
  EXPECT_THROW(app.parse("eval puzzles one --numbers 1 2 --json -m two -m three"), CLI::ArgumentMismatch);
  EXPECT_EQ(given_again(app),
            "--model: is given 3 times, expected once; a word without an option in front of it is the model, too");
  EXPECT_THROW(app.parse("eval puzzles -m"), CLI::ArgumentMismatch);
  EXPECT_EQ(given_again(app), std::nullopt);
}

TEST(Suggest, WordsThatAreLeftOverInTheirOrder) {
  CLI::App app;
  std::string text;
  app.add_subcommand("generate")->add_option("-p", text);
  EXPECT_THROW(app.parse("generate -p Once upon a time"), CLI::ExtrasError);
  EXPECT_EQ(left_over(app), "'upon a time' is more than generate takes; a text of several words goes in quotes");
  app.add_subcommand("list");
  EXPECT_THROW(app.parse("list foo"), CLI::ExtrasError);
  EXPECT_EQ(left_over(app), "'foo' is more than list takes");
}

// `generate --trace -` made a file of that name, where -f - is standard input.
TEST(OptionValues, AFileThatIsWrittenIsNotStandardOutput) {
  CLI::App app;
  std::string trace, refused;
  refuse_standard_output(*app.add_option("--trace", trace));
  try {
    app.parse("--trace -");
  } catch (const CLI::ValidationError& e) {
    refused = e.what();
  }
  EXPECT_EQ(refused, "--trace: is -, expected a file: standard output has the result");
  app.parse("--trace ./-");
  EXPECT_EQ(trace, "./-");
}

// `-t 2.5` was said to be out of the range from 1 to 1024.
TEST(OptionValues, AFractionIsNoIntegerBeforeItIsOutOfRange) {
  CLI::App app;
  int threads = 0;
  app.add_option("-t,--threads", threads)->check(integer_in(1, 1024));
  check_values(app);
  const auto refused = [&app](const std::string& line) -> std::string {
    try {
      app.parse(line);
    } catch (const CLI::ValidationError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refused("-t 2.5"), "--threads: is '2.5', expected an integer from 1 to 1024");
  EXPECT_EQ(refused("-t 2000"), "--threads: is '2000', expected an integer from 1 to 1024");
  EXPECT_EQ(refused("-t --json"), "--threads: is followed by '--json', expected an integer from 1 to 1024");
  EXPECT_EQ(refused("-t 3"), "");
}

TEST(OptionValues, WhatIsExpectedIsSaidInWords) {
  CLI::App app;
  int number = 0;
  float share = 0;
  uint64_t seed = 0;
  std::string text;
  EXPECT_EQ(expected_value(*app.add_option("--dtype", text)->check(CLI::IsMember({"auto", "float32", "bfloat16"}))),
            "auto, float32 or bfloat16");
  EXPECT_EQ(expected_value(*app.add_option("--cache", text)->check(CLI::IsMember({"no", "yes"}))), "no or yes");
  EXPECT_EQ(expected_value(*app.add_option("--file", text)->type_name(kFile)), "a file");
  EXPECT_EQ(expected_value(*app.add_option("--model", text)->type_name(kModel)), "a directory or a name");
  EXPECT_EQ(expected_value(*app.add_option("--prompt", text)), "a text");
  EXPECT_EQ(expected_value(*app.add_option("--top-k", number)), "an integer");
  EXPECT_EQ(expected_value(*app.add_option("--top-p", share)), "a number");
  EXPECT_EQ(expected_value(*app.add_option("--weight", share)->check(number_in(0, 1e3))), "a number from 0 to 1000");
  EXPECT_EQ(expected_value(*app.add_option("--seed", seed)->check(integer_in<uint64_t>(0, 9, "a digit"))), "a digit");
}

TEST(OptionValues, ANameThatThereIsNotIsRefusedWithThoseThatThereAre) {
  CLI::App app;
  std::string text;
  float weight = 0;
  app.add_option("--dtype", text)->check(CLI::IsMember({"auto", "float32"}));
  app.add_option("--weight", weight)->check(number_in(0, 1));
  check_values(app);
  const auto refused = [&app](std::vector<std::string> words) -> std::string {
    std::ranges::reverse(words);
    try {
      app.parse(words);
    } catch (const CLI::ValidationError& e) {
      return e.what();
    }
    return "";
  };
  for (const char* word : {"int8", "", "auto,float32", "aut"}) {
    EXPECT_EQ(refused({"--dtype", word}), std::string("--dtype: is '") + word + "', expected auto or float32");
  }
  EXPECT_EQ(refused({"--dtype", "float32"}), "");
  EXPECT_EQ(refused({"--weight", "nan"}), "--weight: is 'nan', expected a number from 0 to 1");
  EXPECT_EQ(refused({"--weight", "-.5"}), "--weight: is '-.5', expected a number from 0 to 1");
}

// `generate --prompt= MODEL` ran the default model with the prompt "MODEL".
TEST(CommandLine, AnEmptyValueIsAWordOfItsOwn) {
  CLI::App app;
  CLI::App* generate = app.add_subcommand("generate");
  std::string prompt, model;
  bool json = false;
  generate->add_option("-p,--prompt", prompt);
  generate->add_option("model", model);
  generate->add_flag("--json", json);
  const auto read = [&app](const Words& words) { return with_empty_values(app, words); };
  EXPECT_EQ(read({"generate", "--prompt=", "model"}), (Words{"generate", "--prompt", "", "model"}));
  for (const Words& same : {Words{"generate", "--prompt=x=", "--json="},
                            {"generate", "-p", "--prompt="},
                            {"generate", "--", "--prompt="},
                            {"generate", "--nope="},
                            {"--prompt="},
                            {}}) {
    EXPECT_EQ(read(same), same);
  }
}

// A command with options that other programs call otherwise.
struct OthersWords {
  OthersWords() {
    CLI::App* generate = app.add_subcommand("generate");
    generate->add_option("-n,--max-tokens", number);
    generate->add_option("-s,--seed", number);
    generate->add_option("-m,--model", text);
    generate->add_option("--dtype", text);
    generate->add_option("--accept", text);
    generate->add_option("--block-size", number);
    generate->add_option("--log-level", text);
    generate->add_option("-c,--max-model-len", number);
  }
  Words taken(Words words) const {
    words.insert(words.begin(), "generate");
    words = in_our_words(app, words);
    words.erase(words.begin());
    return words;
  }
  CLI::App app;
  uint64_t number = 0;
  std::string text;
};

TEST(OtherProgramsWords, AreTakenWhereTheyMeanTheSame) {
  const OthersWords line;
  EXPECT_EQ(line.taken({"--gen-length", "64", "--block_length=8"}), (Words{"--max-tokens", "64", "--block-size=8"}));
  EXPECT_EQ(line.taken({"--max_new_tokens", "5"}), (Words{"--max-tokens", "5"}));
  EXPECT_EQ(line.taken({"--max_tokens=5"}), (Words{"--max-tokens=5"}));
  EXPECT_EQ(line.taken({"-hf", "Qwen/Qwen3-0.6B"}), (Words{"--model", "Qwen/Qwen3-0.6B"}));
  EXPECT_EQ(line.taken({"--remasking", "low_confidence"}), (Words{"--accept", "confidence"}));
  EXPECT_EQ(line.taken({"--alg=topk_margin"}), (Words{"--accept=margin"}));
  EXPECT_EQ(line.taken({"--dtype", "BF16", "--log-level", "WARN"}),
            (Words{"--dtype", "bfloat16", "--log-level", "warning"}));
  EXPECT_EQ(line.taken({"-n", "-1", "-c", "0"}), (Words{"-n", "1073741824", "-c", "-1"}));
  EXPECT_EQ(line.taken({"-n-1"}), (Words{"-n1073741824"}));
}

TEST(OtherProgramsWords, ValuesAndTextsStay) {
  const OthersWords line;
  for (const Words& same : {Words{"-m", "--gen-length"}, {"bf16"}, {"--", "--gen-length"}, {"--nope_such=1"}, {"-"}}) {
    EXPECT_EQ(line.taken(same), same);
  }
}

TEST(OtherProgramsWords, ASeedOfMinusOneIsDrawn) {
  const OthersWords line;
  const Words one = line.taken({"--seed", "-1"}), another = line.taken({"-s", "-1"});
  EXPECT_EQ(one.back().find_first_not_of("0123456789"), std::string::npos) << one.back();
  EXPECT_NE(one.back(), another.back());
}

TEST(OtherProgramsWords, AValueWithoutAnEqualIsAnswered) {
  const OthersWords line;
  const std::string sentence =
      "--dtype is half: activations in float16 are not supported; float32 and bfloat16 are, and weights stored in "
      "float16 are read";
  EXPECT_EQ(unknown_argument(line.app, {"generate", "--dtype", "half"}), sentence);
  EXPECT_EQ(unknown_argument(line.app, {"generate", "--dtype=half"}), sentence);
  EXPECT_EQ(unknown_argument(line.app, {"generate", "-m", "half"}), std::nullopt);
}

// -mg 0 was -m with "g", and "0" a text too many.
TEST(OtherProgramsWords, ShortNamesOfLlamaCppAreAnswered) {
  const OthersWords line;
  for (const char* word : {"-mg", "-sm", "-ts", "-fa", "-ot", "-md", "-cb", "-nkvo", "-dev", "-lv"}) {
    const auto told = unknown_argument(line.app, {"generate", word, "0"});
    ASSERT_TRUE(told) << word;
    EXPECT_TRUE(told->starts_with(std::string("unknown option '") + word + "' of headrace generate: ")) << *told;
  }
}

TEST(OtherProgramsWords, CommandsSayWhatToTypeToday) {
  for (const char* word : {"ps", "chat", "create", "download", "delete", "cache"}) {
    EXPECT_TRUE(known_elsewhere(word)) << word;
  }
  EXPECT_EQ(known_elsewhere("--tensor_parallel_size"), known_elsewhere("-tp"));
}

TEST(CommandLine, HelpAndVersionAreCommandsToo) {
  EXPECT_EQ(with_help_options({}), (Words{"--help"}));
  EXPECT_EQ(with_help_options({"help"}), (Words{"--help"}));
  EXPECT_EQ(with_help_options({"help", "eval", "puzzles"}), (Words{"eval", "puzzles", "--help"}));
  EXPECT_EQ(with_help_options({"version"}), (Words{"--version"}));
  EXPECT_EQ(with_help_options({"generate", "help"}), (Words{"generate", "help"}));
}

TEST(Help, IsAsWideAsTheWindow) {
  EXPECT_EQ(help_columns(TerminalSize{.columns = 90}, "60"), 90);
  EXPECT_EQ(help_columns(std::nullopt, "60"), 60);
  EXPECT_EQ(help_columns(std::nullopt, ""), 80);
  EXPECT_EQ(help_columns(std::nullopt, "wide"), 80);
  EXPECT_EQ(help_columns(TerminalSize{.columns = 300}, ""), 100);
  EXPECT_EQ(help_columns(TerminalSize{.columns = 10}, ""), 40);
}

TEST(Help, BreaksDescriptionsBetweenWordsBesideTheNames) {
  EXPECT_EQ(two_columns("  -n N", "new tokens at most", 40), "  -n N       new tokens at most\n");
  EXPECT_EQ(two_columns("  -n N", "new tokens at most, and no more", 40),
            "  -n N       new tokens at most, and no\n             more\n");
  EXPECT_EQ(two_columns("  --a-long-name N", "what it is", 40), "  --a-long-name N\n             what it is\n");
}

// "INT:INT in [2 - 16777216]" and "TEXT:{auto,float32}=auto" stood there.
TEST(Help, SaysNForNumbersAndListsChoicesInWords) {
  CLI::App app("a program");
  int number = 3;
  std::string text = "auto";
  app.add_option("-n,--number,--count", number, "how many")->check(CLI::Range(2, 16777216))->capture_default_str();
  app.add_option("--dtype", text, "type")->check(CLI::IsMember({"auto", "float32"}))->capture_default_str();
  EXPECT_EQ(help_of(app, "program", HelpLength::kFull, 80),
            "a program\n\nUsage: program [OPTIONS]\n\nOptions:\n"
            "  -h, --help              Print this help message and exit\n"
            "  -n, --number, --count N\n                          how many (default: 3)\n"
            "  --dtype CHOICE          type: auto, float32 (default: auto)\n");
}

TEST(FlagNames, AParameterInFrontIsTheCommandsOption) {
  CLI::App app;
  float number = 0;
  for (const char* name : {"--top-p", "--blocks", "--accept", "--steps"}) app.add_option(name, number);
  EXPECT_EQ(in_flags(app, "top_p is 2, expected 0 to 1"), "--top-p is 2, expected 0 to 1");
  EXPECT_EQ(in_flags(app, "strategy 'd2f': num_blocks is 0"), "strategy 'd2f': --blocks is 0");
  EXPECT_EQ(in_flags(app, "strategy 'dmax': rule is random"), "strategy 'dmax': --accept is random");
  EXPECT_EQ(in_flags(app, "steps is 3, expected none without the schedule 'reference'"),
            "--steps is 3, expected none without --schedule reference");
  EXPECT_EQ(in_flags(app, "request 1: the prompt has 9 tokens, the context (max_model_len) holds 8"),
            "the prompt has 9 tokens, the context (-c) holds 8");
  EXPECT_EQ(in_flags(app, "it needs 9 bytes; try a smaller max_model_len"), "it needs 9 bytes; try a smaller -c");
  EXPECT_EQ(in_flags(app, "it fails; try a smaller max_model_len, or a smaller cache (kv_cache_memory_bytes)"),
            "it fails; try a smaller -c, or a smaller --kv-cache-memory-bytes");
  EXPECT_EQ(in_flags(app, "it fails; try fewer tokens per step (max_num_batched_tokens)"),
            "it fails; try a smaller --max-num-batched-tokens");
}

TEST(FlagNames, OthersStay) {
  CLI::App app;
  float number = 0;
  app.add_option("--top-p", number);
  for (const std::string same : {"min_p is 2", "/model/generation_config.json: top_p is 2", "a top_p is 2", "top_p", "",
                                 "strategy 'nope' is unknown", "request 12: the prompt is empty",
                                 "attention backend 'x' is not built for device cpu; built are: cpu"}) {
    EXPECT_EQ(in_flags(app, same), same);
  }
}

TEST(NotUtf8, NamesTheFirstByteThatIsNone) {
  EXPECT_EQ(not_utf8("the prompt", "caf\xe9"), "the prompt: byte 4 (0xe9) is not UTF-8; such bytes are read as U+FFFD");
  EXPECT_EQ(not_utf8("x", "\xef\xbf\xbd \xef\xbfz"), "x: byte 5 (0xef) is not UTF-8; such bytes are read as U+FFFD")
      << "of a part that begins as U+FFFD does, behind one that is there";
  EXPECT_EQ(not_utf8("x", "caf\xc3"), "x: byte 4 (0xc3) is not UTF-8; such bytes are read as U+FFFD");
  EXPECT_EQ(not_utf8("x", "caf\xc3\xa9"), std::nullopt);
  EXPECT_EQ(not_utf8("x", ""), std::nullopt);
}

constexpr int64_t kGB = 1'000'000'000;

TEST(LoadProgress, SmallModelsShowNothing) {
  LoadProgress bar(LoadProgress::Style::kBar);
  EXPECT_EQ(bar.update(25'000'000, 50'000'000) + bar.update(50'000'000, 50'000'000) + bar.finish(), "");
}

TEST(LoadProgress, ABarCountsBytesAndIsWipedAtTheEnd) {
  LoadProgress bar(LoadProgress::Style::kBar);
  EXPECT_EQ(bar.update(2 * kGB, 8 * kGB), "\rloading [########                        ] 2.0 of 8.0 GB");
  EXPECT_EQ(bar.update(2 * kGB + 1, 8 * kGB), "") << "nothing that shows has changed";
  EXPECT_EQ(bar.update(8 * kGB, 8 * kGB), "\rloading [################################] 8.0 of 8.0 GB");
  EXPECT_EQ(bar.finish(), "\r\033[K");
}

TEST(LoadProgress, LinesElsewhere) {
  LoadProgress lines(LoadProgress::Style::kLines);
  std::string all;
  for (int64_t done = 0; done <= 100; ++done) all += lines.update(done * kGB / 10, 10 * kGB);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 11);
  EXPECT_EQ(all.substr(0, 25), "loading 0.0 of 10.0 GB\nlo");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LoadProgress, OtherWorkHasItsOwnWordAndSize) {
  LoadProgress lines(LoadProgress::Style::kLines, "quantising", 1'000'000);
  EXPECT_EQ(lines.update(500'000, 999'999), "");
  EXPECT_EQ(lines.update(100'000'000, 200'000'000), "quantising 0.1 of 0.2 GB\n");
}

TEST(LoadProgress, AnUnknownEndCountsUp) {
  LoadProgress lines(LoadProgress::Style::kLines);
  EXPECT_EQ(lines.update(kGB, 0), "");
  EXPECT_EQ(lines.update(2 * kGB, 0), "loading 2.0 GB\n");
}

}  // namespace
}  // namespace headrace::app
