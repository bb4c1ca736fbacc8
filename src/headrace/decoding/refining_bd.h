// Block-causal diffusion that may change decided tokens: the strategy decides when a block is final.
#pragma once
#include "headrace/decoding/block_buffer.h"

namespace headrace {

// The result of a pass for a block.
struct BlockVerdict {
  std::vector<size_t> kept;      // indices of candidates to write, ascending
  std::vector<size_t> remasked;  // indices of candidates whose positions become masks again
  enum class Then : uint8_t {
    kGoesOn,   // the block runs again
    kSettles,  // final if it has no masks left
  } then = Then::kGoesOn;
};

class RefiningBD : public DecodingStrategy {
 public:
  void start(Sequence& sequence) const override { buffer_.start(sequence); }
  void restart(Sequence& sequence) const override { BlockBuffer::restart(sequence); }
  // As MultiBD::plan, but samples every token of a block that is not final.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 protected:
  // `traits`: block_traits, or what the strategy changes of them. Error kInvalidArgument as diffusion_info, and for a
  // next-token model.
  RefiningBD(std::string_view name, const StrategyTraits& traits, const StrategyConfig& config);

  // Judges a pass. `candidates` has one entry per position from block.editable_begin() to valid_end(). The pass is not
  // counted yet.
  virtual BlockVerdict judge(const Sequence& sequence, const DecodingBlock& block,
                             std::span<const SampledToken> candidates) const = 0;

 private:
  BlockBuffer buffer_;
};

}  // namespace headrace
