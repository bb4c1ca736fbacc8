#include "demo.h"

#include <fmt/format.h>

#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "exit_status.h"
#include "headrace/llm/llm.h"
#include "interrupt.h"
#include "model_options.h"
#include "model_path.h"
#include "output.h"
#include "sampling_flags.h"
#include "screen.h"

namespace headrace::app {
namespace {

constexpr std::string_view kBeginning = "Once upon a time there was a king who had a golden bird";
constexpr std::string_view kPuzzles[] = {"add: 289 + 987 =", "add: 7 + 35 =", "sort: 3141592 =", "rev:diffusion",
                                         "sudoku 4x4: .432 3... .1.. .341="};
constexpr std::string_view kExample = "\"sort: 5391 =\"";
constexpr std::string_view kNoPuzzle =
    "the prompt is none of the puzzles that the model knows: \"add: 289 + 987 =\" (up to three digits each), "
    "\"sort: 79285432 =\" (up to eight), \"rev:diffusion\" (up to twelve letters), "
    "\"sudoku 4x4: .432 3... .1.. .341=\"";

int write_story(const std::string& model, GenerateFlags flags) {
  flags.echo_prompt = true;
  if (!flags.prompt) flags.prompt = kBeginning;
  return generate(std::move(flags), model);
}

// Returns true if `text` has one of the four forms that puzzle-llada was trained on.
bool is_puzzle(const std::string& text) {
  static const std::regex kForms(
      R"(add: \d{1,3} \+ \d{1,3} =|sort: \d{1,8} =|rev:[a-z]{1,12}|sudoku 4x4:( [1-4.]{4}){4}=)");
  return std::regex_match(text, kForms);
}

void warn_of_puzzles(const LLMOptions& options, std::string_view sentence) {
  if (options.log) options.log(LogLevel::kWarning, sentence);
}

struct Solved {
  int32_t tokens = 0, forwards = 0;
  bool cut = false;  // by -n
};

// Prints "puzzle -> answer", which a terminal shows as it is denoised.
Solved solve(LLM& llm, const std::string& puzzle, const GenerateFlags& flags) {
  Screen screen(flags, llm);
  screen.opening(puzzle + " -> ");
  const Completion c = llm.generate(
      puzzle, params_of(flags.sampling, llm.default_params()),
      [&screen](std::string_view piece, const Completion&) {
        screen.text(piece);
        return screen.reader_gone() || interrupted() ? StreamAction::kStop : StreamAction::kContinue;
      },
      screen.on_step());
  screen.text("\n");
  screen.finish();
  return {c.num_visible, c.num_forwards, c.finish_reason == FinishReason::kLength};
}

int solve_all(const GenerateFlags& flags) {
  std::vector<std::string> puzzles(std::begin(kPuzzles), std::end(kPuzzles));
  if (flags.prompt) puzzles = {*flags.prompt};
  const LLMOptions options = options_of(flags.model);
  for (const std::string& puzzle : puzzles) {
    HR_REQUIRE(!puzzle.empty(), ErrorCode::kInvalidArgument, "the prompt is empty, expected a puzzle: ", kExample);
    if (!is_puzzle(puzzle)) warn_of_puzzles(options, kNoPuzzle);
  }
  LLM llm(model_directory("", "puzzle-llada"), options);
  Solved all;
  for (const std::string& puzzle : puzzles) {
    const Solved one = solve(llm, puzzle, flags);
    all.tokens += one.tokens, all.forwards += one.forwards, all.cut |= one.cut;
    if (interrupted()) return kInterrupted;
  }
  if (all.cut) {
    const int32_t most = flags.sampling.params.max_tokens;
    warn_of_puzzles(options, fmt::format("-n is {}: an answer of so many tokens may be cut", most));
  }
  const std::string more = flags.prompt ? "" : fmt::format("; -p {} solves a puzzle of your own", kExample);
  write_err(fmt::format("[{} tokens in {} forward pass{}{}]\n", all.tokens, all.forwards, all.forwards == 1 ? "" : "es",
                        more));
  return 0;
}

}  // namespace

Demo demo_of(const std::string& name) {
  if (name == "story") return Demo::kStory;
  if (name == "diffusion") return Demo::kDiffusion;
  HR_REQUIRE(name == "puzzle", ErrorCode::kInvalidArgument, "demo: is '", name,
             "', expected story, diffusion or puzzle; a model of your own goes to headrace generate");
  return Demo::kPuzzle;
}

int demo(Demo which, GenerateFlags flags) {
  switch (which) {
    case Demo::kStory: return write_story("fairy-hybrid", std::move(flags));
    case Demo::kDiffusion: return write_story("fairy-diffusion", std::move(flags));
    case Demo::kPuzzle: return solve_all(flags);
  }
  return 0;
}

}  // namespace headrace::app
