// How a sequence is decoded: what runs in a step, and what the samples change.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/models/diffusion_info.h"
#include "headrace/ops/denoise_state.h"
#include "headrace/request/sequence.h"

namespace headrace {

// Positions [begin, end) of a sequence.
struct TokenRange {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
  bool contains(int32_t position) const { return begin <= position && position < end; }
};

// Consecutive rows of a sequence and who sees whom among them. keys.q_len rows run, from position keys.phys0 on; q_off
// and page_row are the batch's to set.
struct PlannedSpan {
  KeySpan keys;
  TokenRange store;        // of these positions, K and V are kept
  TokenRange hidden = {};  // tokens of these positions go in as the plan's excluded_id, the mask
};

// A row whose logits decide a position: the position's own, or for models that predict the next token the one before.
struct SampleRow {
  int32_t row = 0;                             // counted from the plan's first
  int32_t position = 0;                        // that is decided
  int32_t step = 0;                            // of this position's denoising; the random number depends on it
  std::optional<int32_t> discouraged_id = {};  // whose logit pays the request's copy_penalty
};

// A row whose input is a sum over `parts` of probability * E[id], and of E[excluded_id] by what they lack to 1; as long
// as its summands together, unless the plan says otherwise.
struct SoftRow {
  int32_t row = 0;
  std::vector<TokenShare> parts;
};

// One sequence's share of a step. Strategies fill it; kernels never learn which one did.
struct StepPlan {
  std::vector<PlannedSpan> spans;  // rows in this order; empty: nothing fits the budget
  std::vector<SampleRow> sample;   // ascending in row, each row once; the head runs on these and on `guides`
  // Rows whose logits guide those of `sample` by the request's cfg_scale, one for each and all of them behind these,
  // ascending; empty: none. A strategy whose plans have any keeps neither logits nor candidates.
  std::vector<int32_t> guides = {};
  std::optional<int32_t> excluded_id;                             // never sampled: the mask token
  std::vector<SoftRow> soft;                                      // ascending in row
  TokenMerge::Length soft_length = TokenMerge::Length::kOfParts;  // the same in every plan of a strategy
  int32_t num_candidates = 0;  // of each sampled row, that the sequence keeps in its `candidates`
  float temperature = 1;       // divides the logits of `sample` before anything else reads them
  // kKept: these logits, so divided, are the sequence's `conditioning` of the next step, of the same rows.
  enum class Logits : uint8_t { kRead, kKept } logits = Logits::kRead;

  int32_t num_rows() const;
  // Whether a span's rows see a cached key that the step itself stores. No plan may: who reads cached keys does not
  // wait for the step's own (DeviceMetadata).
  bool calls_cached_what_it_stores() const;
  // Where this sequence's cache ends after the step.
  int32_t stored_end(int32_t num_cached) const;
};

// Runs and stores the positions of `run` under a causal mask; the rows of `sampled` decide what follows them.
StepPlan causal_step(TokenRange run, TokenRange sampled);

// What the steps of a sequence behind its prompt look like, whatever its state, but for those over a whole canvas;
// graphs are recorded for them.
struct StepShape {
  int32_t rows = 1, most_rows = 1;  // a multiple of which most steps have; at most
  int32_t most_samples = 1;
  // Whether K and V of every row are kept.
  enum class Stores : uint8_t { kAll, kSome } stores = Stores::kAll;
  // kMixed: in some of them rows are mixtures of tokens (StepPlan::soft), which no graph takes.
  enum class Inputs : uint8_t { kTokens, kMixed } inputs = Inputs::kTokens;
};

// Steps that run a sequence from its first token to its last, prompt and output: its canvas. K and V of every row are
// kept.
struct CanvasShape {
  int32_t samples = 1;                                                        // of a sequence, in most of them
  enum class AtMost : uint8_t { kThese, kAllRows } at_most = AtMost::kThese;  // in any of them
};

// Steps that run a sequence's last tokens behind all the others, which are cached: each of them is read, none is kept.
struct SegmentShape {
  KeySpan keys;  // but for where it lies
  StepPlan::Logits logits = StepPlan::Logits::kRead;
};

// Blocks that kernels/denoise_step can denoise.
struct BlockShape {
  int32_t block_size = 1, mask_token_id = 0;
  int32_t most_rows = 2 * block_size;  // of a sequence in a step that is over no canvas
};

struct StrategyConfig {
  // kParity, for tests: the origin's schedule with its idle passes. A block that waits for its store counts against
  // the buffer, an aligned prompt decides nothing in its own pass, and blocks behind an end token are still finished.
  enum class Pipeline : uint8_t { kTight, kParity };
  using BlockCache = headrace::BlockCache;

  std::optional<DiffusionInfo> model;                // what it was trained for; absent for a causal model
  std::optional<int32_t> block_size, mask_token_id;  // in place of the model's
  int32_t num_blocks = 1;                            // that may be denoised at the same time
  Pipeline pipeline = Pipeline::kTight;
  // Of strategies that have one; absent: kYes, and for requests of a published loop what that does.
  std::optional<BlockCache> block_cache;
  // What a token that is not final goes in as (dmax).
  struct Merge {
    enum class Mode : uint8_t {
      kTopK,          // a blend of the likeliest tokens and the mask, as long as its parts together (dmax_topk)
      kTopKAsSummed,  // the same, as long as it comes out (dmax_topk without renormalize)
      kSmooth,        // the token, and beside it `weight` of the likeliest by their probability (iter_smooth_topk)
    } mode = Mode::kTopK;
    float weight = 1;
  } merge;
};

// Stateless: all state is the sequence's. Callable from any thread.
class DecodingStrategy {
 public:
  virtual ~DecodingStrategy() = default;
  virtual std::string_view name() const = 0;
  // Whether each row that runs is stored at once and never runs again; recurrent states need it.
  virtual bool runs_rows_once() const { return false; }
  // Prepares a sequence that holds its prompt, parameters and limit.
  virtual void start(Sequence& sequence) const = 0;
  // Rows that every step fits in: with this budget, plan() always makes progress.
  virtual int32_t min_budget(const Sequence& sequence) const = 0;
  // When n is a multiple of this, K and V of the first n cached tokens depend on these n tokens alone, so that another
  // sequence which begins with them may go on from there. Nothing: they depend on what is behind them.
  virtual std::optional<int32_t> reusable_multiple() const { return std::nullopt; }
  // Absent: it has no steps but those of canvas_shape(), or they have no bound but the context, or more than one span.
  virtual std::optional<StepShape> step_shape() const { return std::nullopt; }
  // Absent: it has no such steps.
  virtual std::optional<CanvasShape> canvas_shape() const { return std::nullopt; }
  // Likewise.
  virtual std::optional<SegmentShape> segment_shape() const { return std::nullopt; }
  // What the device goes on with by itself, step after step: the blocks of all sequences, and where one of them stands,
  // if denoise_step can say its rule. commit() must decide as DenoiseState::advance does, plan() lay out rows as
  // denoise_step. Absent: every step goes through the host, and a start report says so and why.
  virtual std::optional<BlockShape> device_blocks() const { return std::nullopt; }
  virtual std::string host_because() const;  // empty where device_blocks() is there
  virtual std::optional<DenoiseState> denoise_state(const Sequence&) const { return std::nullopt; }
  // Positions that may ever be stored; their pages are reserved when the sequence is admitted.
  virtual int32_t max_cached(const Sequence& sequence) const { return sequence.limit; }
  // The next step, with at most `budget` rows.
  virtual StepPlan plan(const Sequence& sequence, int32_t budget) const = 0;
  // What a step that ran changes; one sample for each of plan.sample.
  virtual void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const = 0;
};

std::vector<std::string_view> strategy_names();
// What a model was trained for; "autoregressive" for a causal one.
std::string_view default_strategy(const std::optional<DiffusionInfo>& model);
// That one, and those that are worth comparing with it over the same network, in the registry's order.
std::vector<std::string_view> compared_strategies(const DiffusionInfo& model);
// Whether it decodes models that were so trained; whether these need an adapter for it, of which a checkpoint into
// which one was merged says nothing; whether it reads rows of theirs that were not trained to say what it takes from
// them. Error kInvalidArgument for a name that is unknown.
bool decodes(std::string_view strategy, const DiffusionInfo& trained);
bool requires_adapter(std::string_view strategy, const DiffusionInfo& trained);
bool misreads(std::string_view strategy, const DiffusionInfo& trained);
// Error kInvalidArgument for a name that is unknown, the text lists those that are not; for a configuration that the
// strategy cannot run, a part of one that it does not read (decoding_option.h), or a model that was trained on what it
// does not decode.
std::unique_ptr<DecodingStrategy> make_strategy(std::string_view name, const StrategyConfig& config);

}  // namespace headrace
