#include "headrace/decoding/block_buffer.h"

#include <algorithm>
#include <utility>

#include "headrace/decoding/reference_loop.h"

namespace headrace {
void grow(Sequence& s, int32_t end, int32_t mask_token_id) {
  s.tokens.resize(static_cast<size_t>(end), mask_token_id);
  s.chosen.resize(static_cast<size_t>(end - s.prompt_len));
}

void cut_behind_end_token(Sequence& s) {
  const int32_t end = first_end_token(s);
  if (end == s.num_tokens()) return;
  s.limit = std::min(s.limit, end + 1);
  for (DecodingBlock& block : s.blocks) block.clip(s.limit);
}

int32_t first_end_token(const Sequence& s) {
  for (const DecodingBlock& block : s.blocks) {
    if (block.may_change()) continue;
    for (int32_t p = block.editable_begin(); p < block.valid_end(); ++p) {
      const int32_t id = s.tokens[static_cast<size_t>(p)];
      if (!block.masked(p) && std::ranges::find(s.eos_ids, id) != s.eos_ids.end()) return p;
    }
  }
  return s.num_tokens();
}

int32_t decided_end(const Sequence& s) {
  for (const DecodingBlock& block : s.blocks) {
    if (block.may_change()) return block.begin();
    if (!block.complete()) return block.decided_end();
  }
  return s.blocks.empty() ? s.num_tokens() : std::min(s.num_tokens(), s.blocks.back().valid_end());
}

int32_t storable_end(const Sequence& s) {
  const auto active = std::ranges::find_if(s.blocks, &DecodingBlock::is_active);
  return active == s.blocks.end() ? s.num_tokens() : active->begin();
}

StrategyTraits block_traits(std::string_view strategy, const StrategyConfig& config) {
  const DiffusionInfo info = diffusion_info(strategy, config);
  // Per denoised block at most one other is stored. A token runs again only in a step that stores no block, so it fits.
  return {.text_block = info.block_size,
          .step = StepShape{.rows = info.block_size,
                            .most_rows = 2 * config.num_blocks * info.block_size,
                            .most_samples = config.num_blocks * info.block_size,
                            .stores = StepShape::Stores::kSome}};
}

void BlockBuffer::start(Sequence& s) const {
  const int32_t whole = s.prompt_len / block_size * block_size;
  if (whole > 0) s.blocks.push_back(DecodingBlock::of_prompt(0, whole));
  if (whole < s.prompt_len) add_block(s, whole, s.prompt_len);
  s.num_final = s.prompt_len;
  if (may_open(s)) open(s);
}

void BlockBuffer::restart(Sequence& s) {
  const int32_t begin = s.blocks.empty() ? s.num_cached : s.blocks.front().begin();
  if (begin > 0) s.blocks.insert(s.blocks.begin(), DecodingBlock::of_prompt(0, begin));
  s.num_cached = 0;
}

int32_t BlockBuffer::valid_end(const Sequence& s, int32_t begin) const {
  return follows_reference(s.params.decoding) ? begin + block_size : s.limit;
}

void BlockBuffer::decide(Sequence& s, DecodingBlock& block, int32_t position, const SampledToken& token) {
  block.decide(position);
  s.tokens[static_cast<size_t>(position)] = token.id;
  s.chosen[static_cast<size_t>(position - s.prompt_len)] = token;
}

void BlockBuffer::doubt(Sequence& s, DecodingBlock& block, int32_t position) const {
  block.remask(position);
  s.tokens[static_cast<size_t>(position)] = mask_token_id;
}

bool BlockBuffer::may_open(const Sequence& s) const {
  if (s.num_tokens() >= s.limit) return false;
  if (std::ranges::count_if(s.blocks, &DecodingBlock::is_active) >=
      (follows_reference(s.params.decoding) ? 1 : num_blocks))
    return false;
  if (s.blocks.empty()) return true;
  const DecodingBlock& last = s.blocks.back();
  const bool stable = !last.is_active() || last.stable_share() >= s.params.decoding.stability;
  return stable && last.progress() >= s.params.decoding.add_block;
}

void BlockBuffer::open(Sequence& s) const {
  const int32_t begin = s.num_tokens();
  add_block(s, begin, begin);
}

void BlockBuffer::add_block(Sequence& s, int32_t begin, int32_t editable_begin) const {
  s.blocks.emplace_back(begin, begin + block_size, editable_begin, valid_end(s, begin));
  if (edits == Edits::kYes) s.blocks.back().keep_open();
  grow(s, begin + block_size, mask_token_id);
}

StepPlan BlockBuffer::plan(const Sequence& s, TokenRange run, std::vector<SampleRow> sample, int32_t budget) const {
  StepPlan plan{.excluded_id = mask_token_id};
  const int32_t stored = storable_end(s);
  if (run.size() > budget) {
    run.end = std::min(stored, run.begin + budget / block_size * block_size);
    if (run.end <= s.num_cached) return plan;
  } else {
    plan.sample = std::move(sample);
  }
  plan.spans.push_back({.keys = {.q_len = run.size(),
                                 .ctx_len = run.begin,
                                 .phys0 = run.begin,
                                 .kind = KeySpan::Kind::kBlock,
                                 .block_size = block_size},
                        .store = {s.num_cached, std::min(run.end, stored)}});
  return plan;
}

void BlockBuffer::stop_at_end_token(Sequence& s) const {
  const int32_t end = first_end_token(s);
  if (end == s.num_tokens()) return;
  if (follows_reference(s.params.decoding)) {
    s.limit = std::min(s.limit, s.num_tokens());  // opens no new block; those in flight are finished
    return;
  }
  s.limit = std::min(s.limit, end + 1);
  std::erase_if(s.blocks, [&s](const DecodingBlock& block) { return block.begin() >= s.limit; });
  for (DecodingBlock& block : s.blocks) block.clip(s.limit);
  if (!s.blocks.empty()) grow(s, s.blocks.back().end(), mask_token_id);
}

void BlockBuffer::advance(Sequence& s, const StepPlan& plan) const {
  s.num_cached = plan.stored_end(s.num_cached);
  std::erase_if(s.blocks, [&s](const DecodingBlock& block) { return block.end() <= s.num_cached; });
  if (edits == Edits::kNo) stop_at_end_token(s);
  for (DecodingBlock& block : s.blocks) {
    if (!block.settled()) break;
    if (block.is_active()) block.commit();
  }
  if (edits == Edits::kYes) {
    for (DecodingBlock& block : s.blocks) {
      if (block.is_active()) block.keep_open();  // while it waits for an earlier block, it may still change
    }
    stop_at_end_token(s);  // only now: end tokens of blocks that have just become final
  }
  s.num_final = std::max(s.num_final, decided_end(s));
  // A store-only pass was cut by the budget, which depends on other requests; decisions must not depend on these.
  if ((!plan.sample.empty() || s.blocks.empty()) && may_open(s)) open(s);
}

}  // namespace headrace
