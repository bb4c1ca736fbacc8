// Decoding strategies: a strategy plans what a sequence runs in a step and commits the sampled tokens.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/batch/soft_inputs.h"
#include "headrace/core/small_vector.h"
#include "headrace/models/diffusion_info.h"
#include "headrace/request/sequence.h"

namespace headrace {

// Positions [begin, end) of a sequence.
struct TokenRange {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
  bool contains(int32_t position) const { return begin <= position && position < end; }
};

// Consecutive tokens of a sequence and their mask. keys.q_len tokens run, from position keys.phys0 on; the batch sets
// q_off and page_row.
struct PlannedSpan {
  KeySpan keys;
  TokenRange store;        // positions whose K and V are written to the cache
  TokenRange hidden = {};  // positions that run as the plan's excluded_id, the mask
};

// A row whose logits decide a position: its own, or for next-token models the position before it.
struct SampleRow {
  int32_t row = 0;                             // index from the plan's first token
  int32_t position = 0;                        // the decided position
  int32_t step = 0;                            // denoising step of this position; seeds its random number
  std::optional<int32_t> discouraged_id = {};  // token whose logit is lowered by the request's copy_penalty
};

// A token whose input is a soft embedding: the sum of probability * E[id] over `parts`, plus the rest to 1 times
// E[excluded_id]. Rescaled to the summed norms of its terms unless the plan's soft_length says otherwise.
struct SoftRow {
  int32_t row = 0;
  std::vector<TokenShare> parts;
};

// One sequence's share of a step. Strategies fill it; kernels do not depend on the strategy.
struct StepPlan {
  SmallVector<PlannedSpan> spans;  // tokens in this order; empty: nothing fits the budget
  // Positions of the prompt whose rows give the log-probability of the token behind them (prompt_logprobs). They lie
  // before all of `sample`. A plan with some has one span.
  TokenRange scored = {};
  SmallVector<SampleRow> sample;  // ascending in row, each row once; the LM head runs on these, `scored` and `guides`
  // Rows of the unconditional logits for classifier-free guidance (cfg_scale): one per entry of `sample`, all behind
  // these, ascending; empty: no guidance. A strategy that uses guides keeps neither logits nor candidates.
  std::vector<int32_t> guides = {};
  std::optional<int32_t> excluded_id;                             // never sampled: the mask token
  std::vector<SoftRow> soft;                                      // ascending in row
  TokenMerge::Length soft_length = TokenMerge::Length::kOfParts;  // constant for a strategy
  int32_t num_candidates = 0;  // most likely tokens per sampled row to keep in the sequence's `candidates`
  float temperature = 1;       // divides the logits of `sample` before all other processing
  // kKept: the divided logits become the sequence's `conditioning`, read by the next step over the same rows.
  enum class Logits : uint8_t { kRead, kKept } logits = Logits::kRead;

  int32_t num_rows() const;
  int32_t num_logits_rows() const;
  // Returns true if a span's tokens see a cached key that the step itself stores. No plan may do this: attention may
  // read cached keys before the step's own stores (DeviceMetadata).
  bool calls_cached_what_it_stores() const;
  // Returns the number of cached tokens after the step.
  int32_t stored_end(int32_t num_cached) const;
};

// Returns a plan that runs and stores the positions of `run` under a causal mask; the rows of `sampled` predict the
// tokens after them.
StepPlan causal_step(TokenRange run, TokenRange sampled);

// Bounds of a sequence's decoding steps behind cached text.
struct StepShape {
  int32_t rows = 1, most_rows = 1;  // tokens: a multiple that most steps have; the maximum
  int32_t most_samples = 1;
  // kAll: each token's K and V are stored.
  enum class Stores : uint8_t { kAll, kSome } stores = Stores::kAll;
  // kMixed: some steps use soft embeddings (StepPlan::soft), which graphs do not support.
  enum class Inputs : uint8_t { kTokens, kMixed } inputs = Inputs::kTokens;
};

// Steps that run a sequence's canvas: all tokens from the first to the last, prompt and output. K and V of every token
// are stored.
struct CanvasShape {
  int32_t samples = 1;  // sampled rows of a sequence, in most steps
  enum class AtMost : uint8_t { kThese, kAllRows } at_most = AtMost::kThese;  // bound in any step
};

// Steps that run a sequence's last tokens (a segment) after all others, which are cached. Every row is sampled, none is
// stored.
struct SegmentShape {
  KeySpan keys;  // template; position and cached length differ per sequence
  StepPlan::Logits logits = StepPlan::Logits::kRead;
};

struct StrategyConfig {
  using BlockCache = headrace::BlockCache;

  std::optional<DiffusionInfo> model;                // how it was trained; absent for a causal model
  std::optional<int32_t> block_size, mask_token_id;  // override the model's
  int32_t num_blocks = 1;                            // blocks denoised at the same time
  // For strategies with a block cache; absent: kYes, or the published loop's choice for requests of the schedule
  // 'reference'.
  std::optional<BlockCache> block_cache;
  // The input embedding of a token that is not final (dmax).
  struct Merge {
    enum class Mode : uint8_t {
      kTopK,          // soft embedding of the likeliest tokens and the mask, rescaled to its terms' norms (dmax_topk)
      kTopKAsSummed,  // the same, not rescaled (dmax_topk without renormalize)
      kSmooth,        // the token plus `weight` times the likeliest, by probability (iter_smooth_topk)
    } mode = Mode::kTopK;
    float weight = 1;
  } merge;
};

// The shapes of a strategy's steps, fixed at construction. The engine derives from them the graphs to capture, the
// tokens of a step, the pages of a request, and what requests share.
struct StrategyTraits {
  // Each token runs once and is stored at once. Recurrent states require it.
  bool runs_tokens_once = false;
  // The text's tokens see those before them and those of their own block of so many tokens; 1: causal. A prompt then
  // runs in chunks, and another request reuses K and V of whole blocks. Absent: they see the whole prompt, which runs
  // in one step and is not shared.
  std::optional<int32_t> text_block = {};
  // Absent: all steps behind cached text run canvases or segments, or have no bound but the context. The latter run
  // without graphs.
  std::optional<StepShape> step = {};
  std::optional<CanvasShape> canvas = {};    // absent: no such steps
  std::optional<SegmentShape> segment = {};  // absent: no such steps
};

// Returns the tokens of a step with which plan() always makes progress. `sequence` has been started.
int32_t rows_needed(const StrategyTraits& traits, const Sequence& sequence);
// Returns the number of positions that may ever be stored. A request is refused if their pages exceed the pool.
int32_t most_stored(const StrategyTraits& traits, const Sequence& sequence);
// Returns the most tokens of one sequence in a step that runs neither its prompt nor a whole canvas; INT32_MAX if only
// the context bounds them.
int32_t most_step_rows(const StrategyTraits& traits);

// Stateless: all state is in the sequence. Callable from any thread.
class DecodingStrategy {
 public:
  virtual ~DecodingStrategy() = default;
  DecodingStrategy(const DecodingStrategy&) = delete;
  DecodingStrategy& operator=(const DecodingStrategy&) = delete;

  std::string_view name() const { return name_; }
  const StrategyTraits& traits() const { return traits_; }

  // Initialises a sequence that holds its prompt, parameters and limit.
  virtual void start(Sequence& sequence) const = 0;
  // Plans the next step, with at most `budget` tokens. Without spans if none fits.
  virtual StepPlan plan(const Sequence& sequence, int32_t budget) const = 0;
  // Returns true if the sequence may lose what is cached of it now: after restart() it decides the same tokens.
  virtual bool may_preempt(const Sequence& /*sequence*/) const { return true; }
  // Makes a sequence without cached tokens run all of its text again, or what of it the prefix cache does not have.
  virtual void restart(Sequence& sequence) const { sequence.num_cached = 0; }
  // Updates the sequence after a step; `sampled` has one token per entry of plan.sample.
  virtual void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const = 0;

 protected:
  // `name` outlives the strategy.
  DecodingStrategy(std::string_view name, const StrategyTraits& traits) : name_(name), traits_(traits) {}

 private:
  std::string_view name_;
  StrategyTraits traits_;
};

std::vector<std::string_view> strategy_names();
// Returns the strategy that a model was trained for; "autoregressive" for a causal one.
std::string_view default_strategy(const std::optional<DiffusionInfo>& model);
// Returns the default strategy and those worth comparing with it on the same weights, in the registry's order.
std::vector<std::string_view> compared_strategies(const DiffusionInfo& model);
// decodes: true if the strategy supports models trained this way. requires_adapter: true if such models need an adapter
// for it; a checkpoint does not show whether one was merged into it. misreads: true if the strategy reads rows that
// such models were not trained to predict. Error kInvalidArgument for an unknown name.
bool decodes(std::string_view strategy, const DiffusionInfo& trained);
bool requires_adapter(std::string_view strategy, const DiffusionInfo& trained);
bool misreads(std::string_view strategy, const DiffusionInfo& trained);
// Creates a strategy. Error kInvalidArgument for an unknown name (the text lists the known ones), a configuration that
// the strategy cannot run or with an option that it does not read (decoding_option.h), or a model whose training it
// does not support.
std::unique_ptr<DecodingStrategy> make_strategy(std::string_view name, const StrategyConfig& config);

}  // namespace headrace
