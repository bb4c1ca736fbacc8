#include "engine/golden_batches.h"

#include <algorithm>
#include <cstring>

#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kPageSize = 16, kPagesOfASequence = 8;

RunnerConfig runner_config(const OpSet& ops, const OpContext& context) {
  const bool reference = ops.name == "reference";
  return {.backend = reference ? "reference" : "cpu",
          .kernel_set = reference ? std::nullopt : std::optional(std::string(ops.name)),
          .context = context};
}

RunnerConfig with_pools(RunnerConfig runner, int32_t max_sequences) {
  runner.num_pages = kPagesOfASequence * max_sequences, runner.page_size = kPageSize;
  runner.num_states = max_sequences;
  return runner;
}

}  // namespace

std::vector<std::string> golden_families() {
  return {"llama",
          "qwen2",
          "qwen3",
          "qwen3_moe",
          "qwen3_next",
          "qwen3_5",
          "qwen3_5_moe",
          "qwen3_5_released",
          "qwen3_5_moe_released"};
}

GoldenBatches::GoldenBatches(const std::filesystem::path& model, const OpSet& ops, DType dtype, OpContext context)
    : GoldenBatches(load_model(model, {.dtype = dtype, .ops = &ops, .context = context}), runner_config(ops, context),
                    kMaxSequences) {}

GoldenBatches::GoldenBatches(std::unique_ptr<Model> model, const RunnerConfig& runner, int32_t max_sequences)
    : model_(std::move(model)),
      runner_(*model_, with_pools(runner, max_sequences)),
      max_sequences_(max_sequences),
      table_(max_sequences, kPageSize * kPagesOfASequence, kPageSize) {
  const TensorView table = table_.page_table();
  runner_.prepare({.max_requests = max_sequences, .table_rows = table.dim(0), .table_pages = table.dim(1)});
}

size_t GoldenBatches::add(uint64_t seed, int32_t length) {
  Random random(seed);
  auto s = std::make_unique<Sequence>();
  for (int32_t i = 0; i < length; ++i) s->tokens.push_back(static_cast<int32_t>(random.below(vocab())));
  s->prompt_len = length;
  s->id = static_cast<int64_t>(sequences_.size());
  s->table_row = *table_.alloc();
  const auto index = static_cast<int32_t>(sequences_.size());
  if (model_->info().num_gdn_layers > 0) s->state_slot = index + 1;
  // Pages of the sequences lie between each other's, in descending order.
  for (int32_t i = kPagesOfASequence; i-- > 0;) s->pages.push_back(1 + i * max_sequences_ + index);
  table_.write(s->table_row, 0, s->pages);
  logits_.emplace_back(DType::kF32, Shape{length, vocab()});
  poison(logits_.back());
  sequences_.push_back(std::move(s));
  return sequences_.size() - 1;
}

void GoldenBatches::step(const std::vector<Share>& shares) {
  std::vector<ScheduledStep> steps;
  for (const Share& share : shares) {
    Sequence& s = *sequences_[share.sequence];
    const TokenRange run{s.num_cached, std::min(s.num_tokens(), s.num_cached + share.count)};
    if (run.size() == 0) continue;
    steps.push_back({&s, causal_step(run, {std::max(run.begin, run.end - share.wanted), run.end})});
  }
  const Tensor out = runner_.run(builder_.build(steps, table_, &runner_.backend()));
  const float* from = out.data_as<float>();
  for (const ScheduledStep& step : steps) {
    const Tensor& to = logits_[static_cast<size_t>(step.sequence->id)];
    const StepPlan& plan = step.plan;
    if (!plan.sample.empty()) {
      const auto floats = plan.sample.size() * static_cast<size_t>(vocab());
      std::memcpy(to.data_as<float>() + int64_t{plan.sample.front().position - 1} * vocab(), from,
                  floats * sizeof(float));
      from += floats;
    }
    step.sequence->num_cached = plan.stored_end(step.sequence->num_cached);
  }
}

}  // namespace headrace::testing_support
