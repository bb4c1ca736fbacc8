#include "headrace/decoding/fast_dllm_v2.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/decoding/block_buffer.h"
#include "headrace/decoding/reference_loop.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {
namespace {

// Returns true if an init pass over the open block has run.
bool initialised(const Sequence& s) {
  return std::ranges::any_of(s.blocks, [](const DecodingBlock& block) { return block.num_steps() > 0; });
}

// Runs the sub-block alone. The hole hides its cached K and V; its new ones are stored, but never read as cached keys
// in the same step, because a device may read those before the store.
StepPlan refine(const DecodingBlock& sub_block, int32_t block_end) {
  const TokenRange run{sub_block.begin(), sub_block.end()};
  return {.spans = {{.keys = {.q_len = run.size(),
                              .ctx_len = block_end,
                              .phys0 = run.begin,
                              .hole_begin = run.begin,
                              .hole_end = run.end,
                              .kind = KeySpan::Kind::kFull},
                     .store = run}}};
}

// Steps run sub-blocks and whole blocks. Exact passes store K and V, too, unless all are exact: attention on a device
// reads keys fastest from the pool.
StrategyTraits sub_block_traits(const DiffusionInfo& info, std::optional<BlockCache> cache) {
  using Stores = StepShape::Stores;
  return {.text_block = info.block_size,
          .step = StepShape{.rows = info.sub_block_size,
                            .most_rows = info.block_size,
                            .most_samples = info.sub_block_size,
                            .stores = cache == BlockCache::kNo ? Stores::kSome : Stores::kAll}};
}

}  // namespace

FastDLLMv2::FastDLLMv2(const StrategyConfig& config)
    : DecodingStrategy("fast_dllm_v2", sub_block_traits(diffusion_info("fast_dllm_v2", config), config.block_cache)),
      info_(diffusion_info(name(), config)),
      block_cache_(config.block_cache) {
  HR_REQUIRE(info_.block_size % info_.sub_block_size == 0, ErrorCode::kInvalidArgument, "strategy '", name(),
             "': the block size is ", info_.block_size, ", expected a multiple of the sub-blocks' ",
             info_.sub_block_size);
  HR_REQUIRE(info_.logits_of == DiffusionInfo::LogitsOf::kBefore, ErrorCode::kInvalidArgument, "strategy '", name(),
             "': the model's logits say the token of their own position, expected the next one's");
}

bool FastDLLMv2::caches(const Sequence& s) const {
  return block_cache_of(s.params.decoding, block_cache_, info_) == BlockCache::kYes;
}

void FastDLLMv2::open_block(Sequence& s, int32_t begin) const {
  const bool whole = follows_reference(s.params.decoding);
  grow(s, begin + info_.block_size, *info_.mask_token_id);
  for (int32_t at = begin; at < s.num_tokens(); at += info_.sub_block_size) {
    const int32_t end = at + info_.sub_block_size;
    s.blocks.emplace_back(at, end, std::clamp(s.prompt_len, at, end), whole ? end : std::max(at, s.limit));
  }
}

void FastDLLMv2::start(Sequence& s) const {
  const int32_t whole = s.prompt_len / info_.block_size * info_.block_size;
  if (whole > 0) s.blocks.push_back(DecodingBlock::of_prompt(0, whole));
  if (whole < s.prompt_len) open_block(s, whole);
  s.num_final = s.prompt_len;
}

bool FastDLLMv2::may_preempt(const Sequence& s) const { return !caches(s) || !initialised(s); }

StepPlan FastDLLMv2::plan(const Sequence& s, int32_t budget) const {
  const auto current = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  const bool commits = current == s.blocks.end();
  const int32_t end = s.num_tokens(), clean_end = commits ? end : end - info_.block_size;
  if (!commits && caches(s) && initialised(s) && !current->masked(current->begin())) {
    StepPlan plan = refine(*current, end);
    if (plan.num_rows() > budget) return {};
    plan.excluded_id = info_.mask_token_id;
    for (const int32_t p : current->masked_positions()) {
      plan.sample.push_back({p - 1 - current->begin(), p, current->num_steps()});
    }
    return plan;
  }
  TokenRange run{s.num_cached, end};
  StepPlan plan{.excluded_id = info_.mask_token_id};
  if (run.size() > budget) {  // a chunk of whole blocks of the prompt
    run.end = std::min(clean_end, run.begin + budget / info_.block_size * info_.block_size);
    if (run.size() == 0) return plan;
  } else if (commits) {
    plan.sample.push_back({end - 1 - run.begin, end, 0});
  } else {
    for (const int32_t p : current->masked_positions()) {
      plan.sample.push_back({p - 1 - run.begin, p, current->num_steps()});
    }
  }
  plan.spans.push_back({.keys = {.q_len = run.size(),
                                 .ctx_len = run.begin,
                                 .phys0 = run.begin,
                                 .kind = KeySpan::Kind::kBlock,
                                 .block_size = info_.block_size},
                        .store = {run.begin, stores_all() ? run.end : std::min(run.end, clean_end)}});
  return plan;
}

void FastDLLMv2::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  const int32_t end = s.num_tokens();
  if (plan.sample.empty()) {
    s.num_cached = plan.stored_end(s.num_cached);
    return;
  }
  if (plan.sample.front().position == end) {
    s.num_cached = end;
    s.blocks.clear();
    open_block(s, end);
    BlockBuffer::decide(s, s.blocks.front(), end, sampled.front());
  } else {
    s.num_cached = end - info_.block_size;
    std::erase_if(s.blocks, [&s](const DecodingBlock& block) { return block.end() <= s.num_cached; });
    const auto current = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
    for (const size_t i : accepted(sampled, acceptance_rule(s.params.decoding, info_), AtLeast::kOne)) {
      BlockBuffer::decide(s, *current, plan.sample[i].position, sampled[i]);
    }
    current->count_step();
  }
  if (!follows_reference(s.params.decoding)) cut_behind_end_token(s);
  s.num_final = std::min(decided_end(s), s.limit);
}

}  // namespace headrace
