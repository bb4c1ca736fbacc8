// Block-causal diffusion that looks at decided tokens again: a block is final when its strategy says so.
#pragma once
#include "headrace/decoding/block_buffer.h"

namespace headrace {

// What a pass means for a block.
struct BlockVerdict {
  std::vector<size_t> kept;      // candidates that take their places, ascending
  std::vector<size_t> remasked;  // whose places become masks again
  enum class Then : uint8_t {
    kGoesOn,   // the block is looked at again
    kSettles,  // it is final if it has no masks left
  } then = Then::kGoesOn;
};

class RefiningBD : public DecodingStrategy {
 public:
  void start(Sequence& sequence) const override { buffer_.start(sequence); }
  std::optional<int32_t> reusable_multiple() const override { return buffer_.block_size; }
  int32_t min_budget(const Sequence& sequence) const override { return buffer_.most_rows(sequence); }
  std::optional<StepShape> step_shape() const override { return buffer_.step_shape(); }
  // As MultiBD's, but every token of a block that is not final is decided anew.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 protected:
  // Error kInvalidArgument as diffusion_info, and for a model whose logits decide the position after theirs.
  RefiningBD(std::string_view name, const StrategyConfig& config);

  // One candidate for each position of `block` from editable_begin to valid_end. The pass is not counted yet.
  virtual BlockVerdict judge(const Sequence& sequence, const DecodingBlock& block,
                             std::span<const SampledToken> candidates) const = 0;

 private:
  BlockBuffer buffer_;
};

}  // namespace headrace
