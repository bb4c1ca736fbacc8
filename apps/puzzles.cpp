#include "puzzles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <span>

#include "curve_svg.h"
#include "exit_status.h"
#include "headrace/core/file_exists.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/llm/llm.h"
#include "headrace/text/json_string.h"
#include "headrace/weights/config_file.h"
#include "interrupt.h"
#include "measuring.h"
#include "model_options.h"
#include "model_path.h"
#include "output.h"
#include "seconds_since.h"

namespace headrace::app {
namespace {

// No probability passes it: the likeliest token alone is kept.
constexpr float kNever = std::numeric_limits<float>::infinity();

struct Item {
  std::string task, prompt, answer;
};

std::vector<Item> read_items(const std::filesystem::path& file, int limit) {
  std::ifstream in(file);
  HR_REQUIRE(in.good(), ErrorCode::kInvalidArgument, file.string(),
             ": is no file that can be read (--file names another)");
  std::vector<Item> items;
  std::map<std::string, int> counts;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const JsonValue value = JsonValue::parse(line, str(file.string(), ", line ", ++number));
    Item item{value.at("task").as_string(), value.at("prompt").as_string(), value.at("answer").as_string()};
    if (limit == 0 || counts[item.task]++ < limit) items.push_back(std::move(item));
  }
  HR_REQUIRE(!items.empty(), ErrorCode::kInvalidArgument, file.string(), ": holds no test items");
  return items;
}

// The model's own items, else those of the bundled puzzles.
std::filesystem::path items_file(const PuzzleFlags& flags, const std::filesystem::path& model) {
  if (!flags.file.empty()) return flags.file;
  const std::filesystem::path own = model / "test.jsonl";
  return file_exists(own) ? own : model_directory("", "puzzle-diffusion") / own.filename();
}

PuzzleScore score(LLM& llm, const Item& item, const SamplingParams& params) {
  const auto start = Clock::now();
  const Completion c = llm.generate(item.prompt, params, [](std::string_view, const Completion&) {
    return interrupted() ? StreamAction::kStop : StreamAction::kContinue;
  });
  return {1, c.text == item.answer ? 1 : 0, c.num_visible, c.num_forwards, seconds_since(start)};
}

// One way of decoding, under test.
struct Contender {
  LLM& llm;
  SamplingParams params{.max_tokens = 32, .temperature = 0};
  PuzzleRun result;

  Contender(LLM& with, std::optional<float> threshold)
      : llm(with), result{.strategy = with.config().strategy, .threshold = threshold, .tasks = {}} {
    if (reads_option(result.strategy, DecodingOption::kThreshold))
      params.decoding.threshold = threshold.value_or(kNever);
  }
  void solve(std::span<const Item> items) {
    score(llm, items.front(), params);  // so that no round pays for the first touch of the weights
    for (const Item& item : items) {
      const PuzzleScore answer = score(llm, item, params);
      if (interrupted()) return;  // it may be cut short
      finish_when_interrupted();
      result.tasks[item.task].add(answer);
    }
  }
};

// In rounds of a few items, so that a minute in which the machine is slow is everybody's.
void solve_in_rounds(std::vector<Contender>& contenders, std::span<const Item> items) {
  constexpr size_t kRound = 20;
  Measuring progress("answers");
  const auto total = static_cast<int64_t>(contenders.size() * items.size());
  int64_t done = 0;
  for (size_t at = 0; at < items.size(); at += kRound) {
    const std::span<const Item> round = items.subspan(at, std::min(kRound, items.size() - at));
    for (Contender& contender : contenders) {
      contender.solve(round);
      if (interrupted()) return;
      progress.update(done += static_cast<int64_t>(round.size()), total);
    }
  }
}

// Runs without an answer, which an interruption leaves, are not among them.
struct Outcome {
  std::vector<PuzzleRun> runs;
  size_t num_answers = 0, num_expected = 0;
  bool complete() const { return num_answers == num_expected; }
};

// Models, each loaded with a strategy, and their contenders in the order of the table.
class Contenders {
 public:
  Contenders(const PuzzleFlags& flags, ModelDescription model) : flags_(flags), model_(std::move(model)) {
    for (const std::string& strategy : flags.strategies) enter(load(strategy));
    if (flags.strategies.empty()) enter_defaults();
  }
  std::vector<Contender>& list() { return list_; }

 private:
  enum class Warns : uint8_t { kYes, kNo };
  LLM& load(const std::string& strategy, Warns warns = Warns::kYes) {
    LLMOptions options = options_of(flags_.model);
    if (warns == Warns::kNo) options.log = {};
    options.strategy = strategy;
    return *models_.emplace_back(std::make_unique<LLM>(model_, options));
  }
  void enter(LLM& llm) {
    const auto& diffusion = llm.model_info().diffusion;
    const bool canvas = diffusion && diffusion->attention == DiffusionInfo::Attention::kCanvas;
    // A canvas without a bound keeps all of its tokens in the first pass: it begins with the model's own.
    list_.emplace_back(llm, canvas ? std::optional(diffusion->threshold) : std::nullopt);
    if (!reads_option(llm.config().strategy, DecodingOption::kThreshold)) return;
    for (const float threshold : flags_.thresholds) list_.emplace_back(llm, threshold);
  }
  void enter_defaults() {
    const auto diffusion = stated_info(model_, {}).diffusion;
    if (!diffusion) return enter(load("auto"));
    const std::string_view own = default_strategy(*diffusion);
    for (const std::string_view strategy : compared_strategies(*diffusion)) {  // nobody asked for the others
      enter(load(std::string(strategy), strategy == own ? Warns::kYes : Warns::kNo));
    }
  }

  const PuzzleFlags& flags_;
  ModelDescription model_;
  std::vector<std::unique_ptr<LLM>> models_;
  std::vector<Contender> list_;
};

Outcome run_all(const PuzzleFlags& flags, const std::filesystem::path& directory) {
  const std::vector<Item> items = read_items(items_file(flags, directory), flags.limit);
  Contenders entered(flags, read_description(directory, flags.model.random_weights));
  std::vector<Contender>& contenders = entered.list();
  solve_in_rounds(contenders, items);
  Outcome outcome{.num_expected = contenders.size() * items.size()};
  for (Contender& contender : contenders) {
    const int answers = contender.result.all().items;
    if (answers > 0) outcome.runs.push_back(std::move(contender.result));
    outcome.num_answers += static_cast<size_t>(answers);
  }
  return outcome;
}

std::string name_of(const PuzzleRun& r) { return r.threshold ? fmt::format("{:g}", *r.threshold) : "one per pass"; }

std::string table(const Outcome& outcome) {
  std::string out = fmt::format("{:<16}{:>14}{:>10}{:>10}{:>12}{:>11}", "strategy", "threshold", "exact", "forwards",
                                "tokens/fwd", "tokens/s");
  const auto& tasks = outcome.runs.front().tasks;  // the others follow the first, and may have been cut short
  for (const auto& [task, score] : tasks) out += fmt::format("{:>10}", task);
  out += "\n";
  for (const PuzzleRun& r : outcome.runs) {
    const PuzzleScore all = r.all();
    out += fmt::format("{:<16}{:>14}{:>8.1f} %{:>10}{:>12.2f}{:>11.0f}", r.strategy, name_of(r), 100 * all.accuracy(),
                       all.forwards, all.tokens_per_forward(), all.tokens_per_s());
    for (const auto& [task, score] : tasks) {
      const auto found = r.tasks.find(task);
      out += found == r.tasks.end() ? fmt::format("{:>10}", "-")
                                    : fmt::format("{:>8.1f} %", 100 * found->second.accuracy());
    }
    out += "\n";
  }
  if (!outcome.complete()) {
    out += fmt::format("incomplete: interrupted after {} of {} answers\n", outcome.num_answers, outcome.num_expected);
  }
  return out;
}

std::string scores_json(const PuzzleScore& s) {
  return fmt::format(
      R"("items": {}, "exact": {:.4f}, "forwards": {}, "tokens": {}, "tokens_per_forward": {:.3f}, "tokens_per_s": {:.1f})",
      s.items, s.accuracy(), s.forwards, s.tokens, s.tokens_per_forward(), s.tokens_per_s());
}

std::string scores_json(const Outcome& outcome) {
  std::vector<std::string> entries;
  for (const PuzzleRun& r : outcome.runs) {
    std::vector<std::string> tasks;
    for (const auto& [task, score] : r.tasks)
      tasks.push_back(fmt::format("{}: {{{}}}", json_string(task), scores_json(score)));
    entries.push_back(fmt::format(R"({{"strategy": {}, "threshold": {}, {}, "tasks": {{{}}}}})",
                                  json_string(r.strategy), r.threshold ? fmt::format("{:g}", *r.threshold) : "null",
                                  scores_json(r.all()), fmt::join(tasks, ", ")));
  }
  return fmt::format("{{\"complete\": {}, \"runs\": [{}]}}\n", outcome.complete(), fmt::join(entries, ",\n  "));
}

bool is_baseline(const PuzzleRun& r) { return r.strategy == "autoregressive"; }

Series::Point point(const PuzzleRun& r, const PuzzleScore& score) {
  return {.x = score.tokens_per_forward(), .y = 100 * score.accuracy(), .label = r.strategy + ", " + name_of(r)};
}

void add_point(std::vector<Series>& list, const std::string& name, Series::Point point) {
  auto found = std::ranges::find(list, name, &Series::name);
  if (found == list.end()) found = list.insert(list.end(), {.name = name});
  found->points.push_back(std::move(point));
}

// A curve for each strategy or, where there is one alone, for each task and for all of them. Thresholds are the names
// of points.
std::string curve(const std::vector<PuzzleRun>& runs) {
  Chart chart{.title = "Exact answers against tokens per forward pass",
              .x_axis = "tokens of the answer per forward pass",
              .y_axis = "exact answers, %"};
  std::set<std::string> strategies;
  for (const PuzzleRun& r : runs) {
    if (!is_baseline(r)) strategies.insert(r.strategy);
  }
  for (const PuzzleRun& r : runs) {
    Series::Point all = point(r, r.all());
    if (is_baseline(r)) {
      all.name = r.strategy;
      chart.baseline = all;
      continue;
    }
    all.name = name_of(r);
    if (strategies.size() == 1) {
      for (const auto& [task, score] : r.tasks) add_point(chart.series, task, point(r, score));
    }
    add_point(chart.series, strategies.size() == 1 ? "all" : r.strategy, std::move(all));
  }
  return curve_svg(chart);
}

}  // namespace

void PuzzleScore::add(const PuzzleScore& other) {
  items += other.items;
  right += other.right;
  tokens += other.tokens;
  forwards += other.forwards;
  seconds += other.seconds;
}

PuzzleScore PuzzleRun::all() const {
  PuzzleScore sum;
  for (const auto& [task, score] : tasks) sum.add(score);
  return sum;
}

int eval_puzzles(const PuzzleFlags& flags, Output output) {
  std::optional<OutputFile> svg;
  if (!flags.svg.empty()) svg.emplace(flags.svg);
  const Outcome outcome = run_all(flags, model_directory(flags.model, "puzzle-diffusion"));
  write_out(output == Output::kJson ? scores_json(outcome) : table(outcome));
  if (svg) svg->write(curve(outcome.runs));
  return outcome.complete() ? 0 : kInterrupted;
}

}  // namespace headrace::app
