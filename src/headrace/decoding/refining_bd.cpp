#include "headrace/decoding/refining_bd.h"

#include "headrace/core/error.h"

namespace headrace {

namespace {

// Returns the share of the block's decided tokens that the pass chose again; 1 if none is decided yet.
float stable_share(const Sequence& s, const DecodingBlock& block, std::span<const SampledToken> candidates) {
  int32_t decided = 0, same = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t p = block.editable_begin() + static_cast<int32_t>(i);
    if (block.masked(p)) continue;
    ++decided;
    same += candidates[i].id == s.tokens[static_cast<size_t>(p)] ? 1 : 0;
  }
  return decided == 0 ? 1 : static_cast<float>(same) / static_cast<float>(decided);
}

}  // namespace

RefiningBD::RefiningBD(std::string_view name, const StrategyTraits& traits, const StrategyConfig& config)
    : DecodingStrategy(name, traits) {
  const DiffusionInfo info = diffusion_info(name, config);
  HR_REQUIRE(info.logits_of == DiffusionInfo::LogitsOf::kSame, ErrorCode::kInvalidArgument, "strategy '", name,
             "': the model's logits decide the next position, expected their own");
  buffer_ = {info.block_size, config.num_blocks, *info.mask_token_id, BlockBuffer::Edits::kYes};
}

StepPlan RefiningBD::plan(const Sequence& s, int32_t budget) const {
  const int32_t begin = s.num_cached;
  std::vector<SampleRow> sample;
  int32_t end = storable_end(s);
  for (const DecodingBlock& block : s.blocks) {
    if (!block.is_active()) continue;
    for (int32_t p = block.editable_begin(); p < block.valid_end(); ++p) {
      sample.push_back({p - begin, p, block.num_steps()});
    }
    end = block.end();
  }
  return buffer_.plan(s, {begin, end}, std::move(sample), budget);
}

void RefiningBD::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  for (DecodingBlock& block : s.blocks) {
    if (plan.sample.empty() || !block.is_active()) continue;
    const int32_t first = block.editable_begin();
    const auto candidates = sampled.first(static_cast<size_t>(block.valid_end() - first));
    sampled = sampled.subspan(candidates.size());
    const BlockVerdict verdict = judge(s, block, candidates);
    block.count_step();
    block.set_stable_share(stable_share(s, block, candidates));
    for (const size_t i : verdict.kept) buffer_.decide(s, block, first + static_cast<int32_t>(i), candidates[i]);
    for (const size_t i : verdict.remasked) buffer_.doubt(s, block, first + static_cast<int32_t>(i));
    if (verdict.then == BlockVerdict::Then::kSettles && block.complete()) {
      block.settle();
    } else {
      block.keep_open();
    }
  }
  buffer_.advance(s, plan);
}

}  // namespace headrace
