// Parts of the program that its outside does not show, or shows only when something breaks.
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "apps/exit_status.h"
#include "apps/load_progress.h"
#include "apps/option_values.h"
#include "apps/suggest.h"
#include "headrace/base/error.h"

namespace headrace::app {
namespace {

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

TEST(ExitStatus, MemoryAndInterruptsHaveTheirOwn) {
  EXPECT_EQ(ended_by(std::bad_alloc()).status, 4);
  EXPECT_EQ(ended_by(Interrupted()).status, 130);
  EXPECT_EQ(ended_by(Interrupted()).message, "");
}

TEST(Suggest, TheNearestNameIfItIsNear) {
  const std::vector<std::string> names = {"--help", "--max-tokens", "--temperature", "--top-k", "--top-p", "-n"};
  EXPECT_EQ(nearest("--max-token", names), "--max-tokens");
  EXPECT_EQ(nearest("--temprature", names), "--temperature");
  EXPECT_EQ(nearest("--tpo-k", names), "--top-k");
  EXPECT_EQ(nearest("--temp", names), "--temperature") << "what it is the beginning of, before --help and its like";
  EXPECT_EQ(nearest("--tokens", names), std::nullopt);
  EXPECT_EQ(nearest("-m", names), std::nullopt);
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
  EXPECT_EQ(told({"generate", "--port=80"}),
            "unknown option '--port' of headrace generate: there is no server yet, and a command runs one request");
  EXPECT_EQ(told({"serve"}),
            "unknown command 'serve' of headrace: there is no server yet, and a command runs one request");
  EXPECT_EQ(told({"generate", "-n", "-ngl"}), "");
  EXPECT_EQ(told({"--help"}) + told({"eval", "-h"}), "") << "which needs no command";
  EXPECT_EQ(told({}), "headrace needs a command; 'headrace --help' lists what there is");
  EXPECT_EQ(told({"eval"}), "headrace eval needs a command; 'headrace eval --help' lists what there is");
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

TEST(LoadProgress, AnUnknownEndCountsUp) {
  LoadProgress lines(LoadProgress::Style::kLines);
  EXPECT_EQ(lines.update(kGB, 0), "");
  EXPECT_EQ(lines.update(2 * kGB, 0), "loading 2.0 GB\n");
}

}  // namespace
}  // namespace headrace::app
