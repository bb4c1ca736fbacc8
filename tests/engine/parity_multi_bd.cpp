#include "parity_multi_bd.h"

#include <algorithm>

#include "headrace/decoding/block_buffer.h"
#include "headrace/sampling/acceptance.h"

namespace headrace::testing_support {

ParityMultiBD::ParityMultiBD(const StrategyConfig& config)
    : DecodingStrategy("multi_bd", block_traits("multi_bd", config)),
      tight_(config),
      info_(diffusion_info("multi_bd", config)),
      num_blocks_(config.num_blocks) {}

void ParityMultiBD::start(Sequence& s) const {
  const int32_t whole = s.prompt_len / info_.block_size * info_.block_size;
  if (whole > 0) s.blocks.push_back(DecodingBlock::of_prompt(0, whole));
  if (whole < s.prompt_len) open(s, whole);
  s.num_final = s.prompt_len;
  if (may_open(s)) open(s, s.num_tokens());
}

bool ParityMultiBD::may_open(const Sequence& s) const {
  if (s.num_tokens() >= s.limit || (!s.blocks.empty() && s.blocks.back().is_prompt())) return false;
  const auto in_flight = std::ranges::count_if(s.blocks, [](const DecodingBlock& b) { return !b.is_prompt(); });
  return in_flight < num_blocks_ && (s.blocks.empty() || s.blocks.back().progress() >= s.params.decoding.add_block);
}

void ParityMultiBD::open(Sequence& s, int32_t begin) const {
  const int32_t end = begin + info_.block_size;
  s.blocks.emplace_back(begin, end, std::max(begin, s.prompt_len), s.limit);
  grow(s, end, *info_.mask_token_id);
}

void ParityMultiBD::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  const AcceptanceRule rule = acceptance_rule(s.params.decoding, info_);
  size_t next = 0;
  float progress_before = 1;
  for (DecodingBlock& block : s.blocks) {
    const size_t first = next;
    while (next < plan.sample.size() && plan.sample[next].position < block.end()) ++next;
    const float progress = block.progress();
    if (first != next) {
      const bool sure =
          info_.progress == DiffusionInfo::Progress::kAlways || progress_before >= s.params.decoding.semi_complete;
      const auto kept = accepted(sampled.subspan(first, next - first), rule, sure ? AtLeast::kOne : AtLeast::kNone);
      block.count_step();
      for (const size_t i : kept) BlockBuffer::decide(s, block, plan.sample[first + i].position, sampled[first + i]);
    }
    progress_before = progress;
  }
  s.num_cached = plan.stored_end(s.num_cached);
  std::erase_if(s.blocks, [&s](const DecodingBlock& block) { return block.end() <= s.num_cached; });
  const bool ends = first_end_token(s) < s.num_tokens();
  if (ends) s.limit = std::min(s.limit, s.num_tokens());
  for (DecodingBlock& block : s.blocks) {
    if (!block.settled()) break;
    if (block.is_active()) block.commit();
  }
  if (!ends || std::ranges::all_of(s.blocks, &DecodingBlock::complete)) {
    s.num_final = std::max(s.num_final, decided_end(s));
  }
  if (may_open(s)) open(s, s.num_tokens());
}

}  // namespace headrace::testing_support
