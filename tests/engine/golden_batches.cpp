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
          .context = context,
          .num_pages = kPagesOfASequence * GoldenBatches::kMaxSequences,
          .page_size = kPageSize,
          .num_states = GoldenBatches::kMaxSequences};
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
    : model_(load_model(model, {.dtype = dtype, .ops = &ops, .context = context})),
      runner_(*model_, runner_config(ops, context)),
      table_(kMaxSequences, kPageSize * kPagesOfASequence, kPageSize) {}

size_t GoldenBatches::add(uint64_t seed, int32_t length) {
  Random random(seed);
  auto s = std::make_unique<Sequence>();
  for (int32_t i = 0; i < length; ++i) s->tokens.push_back(static_cast<int32_t>(random.below(kVocab)));
  s->prompt_len = length;
  s->id = static_cast<int64_t>(sequences_.size());
  s->table_row = *table_.alloc();
  const auto index = static_cast<int32_t>(sequences_.size());
  if (model_->info().num_gdn_layers > 0) s->state_slot = index + 1;
  // Pages of the sequences lie between each other's, in descending order.
  for (int32_t i = kPagesOfASequence; i-- > 0;) s->pages.push_back(1 + i * kMaxSequences + index);
  table_.write(s->table_row, 0, s->pages);
  logits_.emplace_back(DType::kF32, Shape{length, kVocab});
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
      const auto floats = plan.sample.size() * kVocab;
      std::memcpy(to.data_as<float>() + int64_t{plan.sample.front().position - 1} * kVocab, from,
                  floats * sizeof(float));
      from += floats;
    }
    step.sequence->num_cached = plan.stored_end(step.sequence->num_cached);
  }
}

}  // namespace headrace::testing_support
