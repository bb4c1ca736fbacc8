// The blocks in flight of a sequence, shared by the block-diffusion strategies.
#pragma once
#include <span>

#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

struct BlockBuffer {
  int32_t block_size = 1;
  int32_t num_blocks = 1;  // blocks that may be active at the same time
  int32_t mask_token_id = 0;
  enum class Edits : uint8_t {
    kNo,   // a decided token is final
    kYes,  // a decided token may change until its block is settled
  } edits = Edits::kNo;

  // Makes the sequence's first blocks: the prompt's whole blocks, ready to be stored, its rest as an active block, and
  // the block after it if it may be opened.
  void start(Sequence& sequence) const;
  // As DecodingStrategy::restart: the text before the sequence's blocks becomes one that is ready to be stored.
  static void restart(Sequence& sequence);
  // Plans the forward pass over `run`, reading the rows `sample`. If `run` exceeds the budget, plans a chunk of whole
  // blocks to store, or nothing.
  StepPlan plan(const Sequence& sequence, TokenRange run, std::vector<SampleRow> sample, int32_t budget) const;
  // Writes a token and marks its position as decided.
  static void decide(Sequence& sequence, DecodingBlock& block, int32_t position, const SampledToken& token);
  // Turns a decided position back into a mask.
  void doubt(Sequence& sequence, DecodingBlock& block, int32_t position) const;
  // Updates the blocks after a pass: drops cached blocks, marks complete ones for storing, drops everything after a
  // final end token, and opens at most one block. Raises num_final to the first undecided position.
  void advance(Sequence& sequence, const StepPlan& plan) const;

 private:
  bool may_open(const Sequence& sequence) const;
  void open(Sequence& sequence) const;
  // The end of the positions that are ever decided in the block that starts at `begin`.
  int32_t valid_end(const Sequence& sequence, int32_t begin) const;
  void add_block(Sequence& sequence, int32_t begin, int32_t editable_begin) const;
  void stop_at_end_token(Sequence& sequence) const;
};

// Returns the traits of a strategy whose text is causal by block. Errors as diffusion_info.
StrategyTraits block_traits(std::string_view strategy, const StrategyConfig& config);

// Returns the model's DiffusionInfo with the configuration's values on top. Error kInvalidArgument names what is
// missing.
DiffusionInfo diffusion_info(std::string_view strategy, const StrategyConfig& config);

// Returns the end of the positions that are ready to be stored: [num_cached, storable_end).
int32_t storable_end(const Sequence& sequence);
// Resizes the tokens to `end`; new ones hold the mask.
void grow(Sequence& sequence, int32_t end, int32_t mask_token_id);
// Stops decisions after the first decided end token; the tokens stay as they are.
void cut_behind_end_token(Sequence& sequence);
// Returns the position of the first end token among the decided tokens of the sequence's blocks, or the number of
// tokens.
int32_t first_end_token(const Sequence& sequence);
// Returns the first undecided position of the sequence's blocks, or the end of what they will ever decide.
int32_t decided_end(const Sequence& sequence);

}  // namespace headrace
