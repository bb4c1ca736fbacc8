// The blocks in flight of a sequence: what every block strategy does with them between two passes.
#pragma once
#include <span>

#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

struct BlockBuffer {
  int32_t block_size = 1;
  int32_t num_blocks = 1;  // that may be active at the same time
  int32_t mask_token_id = 0;
  StrategyConfig::Pipeline pipeline = StrategyConfig::Pipeline::kTight;
  enum class Edits : uint8_t {
    kNo,   // a decided token is final
    kYes,  // not before its block is settled
  } edits = Edits::kNo;

  // One block that is stored for each that is denoised. A row that runs again comes where none is stored, so it fits.
  StepShape step_shape() const;
  // Rows of any step of the sequence, at most.
  int32_t most_rows(const Sequence& sequence) const;
  // The prompt's whole blocks, ready to be stored, its rest as an active block, and what may be opened behind it.
  void start(Sequence& sequence) const;
  // The pass over `run` whose rows `sample` are read; where they exceed the budget, a chunk of whole blocks that are
  // only stored, or nothing.
  StepPlan plan(const Sequence& sequence, TokenRange run, std::vector<SampleRow> sample, int32_t budget) const;
  // Writes a token; its position is decided from now on.
  static void decide(Sequence& sequence, DecodingBlock& block, int32_t position, const SampledToken& token);
  // A position that was decided becomes a mask again.
  void doubt(Sequence& sequence, DecodingBlock& block, int32_t position) const;
  // After the tokens of a pass: cached blocks leave, complete ones wait for their store, an end token that is final
  // drops what is behind it, and at most one block is opened. num_final grows to the first undecided position.
  void advance(Sequence& sequence, const StepPlan& plan) const;

 private:
  bool may_open(const Sequence& sequence) const;
  void open(Sequence& sequence) const;
  // Positions of the block from `begin` on that are decided end here.
  int32_t valid_end(const Sequence& sequence, int32_t begin) const;
  void add_block(Sequence& sequence, int32_t begin, int32_t editable_begin) const;
  void stop_at_end_token(Sequence& sequence) const;
};

// The model's description with the configuration's values in its place. Error kInvalidArgument names what is missing.
DiffusionInfo diffusion_info(std::string_view strategy, const StrategyConfig& config);

// Positions that wait for nothing but their store: [num_cached, storable_end).
int32_t storable_end(const Sequence& sequence);
// Tokens up to `end`: those that are new hold the mask.
void grow(Sequence& sequence, int32_t end, int32_t mask_token_id);
// Nothing behind the first decided end token is decided any more; the tokens stay as they are.
void cut_behind_end_token(Sequence& sequence);
// The first end token among the decided tokens of the sequence's blocks, or the number of tokens.
int32_t first_end_token(const Sequence& sequence);
// The first undecided position of the sequence's blocks, or where what they will ever decide ends.
int32_t decided_end(const Sequence& sequence);

}  // namespace headrace
