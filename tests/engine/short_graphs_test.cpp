// Which graphs are recorded, and which of them runs: with a device whose graphs do nothing but say that they ran.
#include "headrace/core/device_runtime.h"
#include "headrace/engine/cuda_graph_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "support/host_memory.h"

namespace headrace {
namespace {

// Writes down what is recorded and what is launched.
class GraphLog final : public testing_support::HostMemory {
 public:
  // Of the latest recording: rows, keys that a row sees at most as far as the recording knows, and of a graph that
  // serves any split of its rows, those of a request and those with logits.
  void is_recording(const ForwardBatch& batch) {
    const DeviceMetadata& on_device = *batch.attn.on_device;
    int32_t keys = on_device.most_keys;
    if (on_device.most_rows == 0) keys = batch.attn.spans.front().seq_len();
    if (!capturing_) return;
    text_ = str(batch.num_tokens(), " rows");
    if (on_device.most_rows > 0) text_ += str(" of at most ", on_device.most_rows);
    text_ += str(", ", keys, " keys");
    if (on_device.most_rows > 0) text_ += str(", ", batch.logits_rows.size(), " logits");
    if (batch.soft.on_device->self_conditioning) text_ += ", conditioned";
  }
  std::string launched() { return std::exchange(launched_, {}); }
  bool is_capturing() const { return capturing_; }
  void begin_capture() override { capturing_ = true; }
  std::unique_ptr<DeviceGraph> end_capture() override {
    capturing_ = false;
    return std::make_unique<Graph>(text_, launched_);
  }

 private:
  struct Graph final : DeviceGraph {
    Graph(std::string text, std::string& log) : text_(std::move(text)), log_(log) {}
    void launch() override { log_ += text_; }
    std::string text_;
    std::string& log_;
  };
  bool capturing_ = false;
  std::string text_, launched_;
};

// A model with one kind of attention layer. Writes down what each pass was for.
class OneKindModel final : public Model {
 public:
  explicit OneKindModel(GraphLog& log) : log_(log) { info_.attention_kinds.push_back({.num_heads = 4, .head_dim = 8}); }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override {
    log_.is_recording(batch);
    const bool warming_up = batch.attn_backend->metadata_source().is_warming_up();
    passes_.push_back(log_.is_capturing() ? (warming_up ? "recorded as a warm-up" : "recorded")
                                          : (warming_up ? "warm-up" : "run"));
    return Tensor::zeros(DType::kF32, {static_cast<int64_t>(batch.logits_rows.size()), 8});
  }
  const std::vector<std::string>& passes() const { return passes_; }  // what each was for

 private:
  GraphLog& log_;
  mutable std::vector<std::string> passes_;
  ModelInfo info_;
};

// Has another kernel for up to `keys` keys, if that is not 0, where a step has `many` tokens or more.
class RecordedBackend final : public AttentionBackend, public CudaGraphSupport {
 public:
  RecordedBackend(int32_t many, int32_t keys) : many_(many), keys_(keys) {}
  std::string_view name() const override { return "recorded"; }
  std::string describe() const override { return "recorded"; }
  CudaGraphSupport* cuda_graph_support() override { return this; }
  int32_t get_cuda_graph_seq_len_fill_value() const override { return 5; }
  std::vector<int32_t> kv_len_buckets(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                      DType) const override {
    EXPECT_EQ(layer.num_heads, 4);
    return keys_ > 0 && batch.num_tokens() >= many_ ? std::vector<int32_t>{keys_} : std::vector<int32_t>{};
  }
  int32_t replayed_length() const { return replayed_length_; }  // of the last request

 private:
  int32_t many_, keys_, replayed_length_ = 0;
  void init_graph_state(int32_t, int32_t) override {}
  void plan_capture(const ForwardBatch&, int32_t) override {}
  void plan_replay(const ForwardBatch& batch, int32_t) override {
    replayed_length_ = batch.attn.spans.back().seq_len();
  }
  void plan(const ForwardBatch&) override {}
  void forward_extend(const RadixAttention&, const AttnInputs&, const ForwardBatch&, const TensorView&) override {}
  void forward_decode(const RadixAttention&, const AttnInputs&, const ForwardBatch&, const TensorView&) override {}
};

// One request of a step that is no decode row.
struct Rows {
  KeySpan span;
  int32_t logits = 1;
  enum class Stores : uint8_t { kNone, kAll } stores = Stores::kNone;
};

struct Recorded {
  GraphLog log;
  OneKindModel model;
  RecordedBackend backend;
  CudaGraphRunner runner;

  Recorded(const CudaGraphConfig& config, int32_t many, int32_t keys)
      : model(log), backend(many, keys), runner(model, backend, log, config) {
    runner.capture();
  }
  // The graph that a step of these requests runs in, or "none".
  // `conditioned`: rows with SelfConditioning, the first ones.
  std::string ran(const std::vector<Rows>& requests, int32_t conditioned = 0) {
    ForwardBatch batch{.mode = ForwardMode::kExtend};
    std::vector<int64_t> slots;
    int32_t rows = 0;
    for (const Rows& one : requests) {
      KeySpan span = one.span;
      span.q_off = rows;
      for (int32_t i = 0; i < one.logits; ++i) batch.logits_rows.push_back(rows + i);
      rows += span.q_len;
      slots.resize(static_cast<size_t>(rows), one.stores == Rows::Stores::kAll ? 0 : kDoNotStore);
      batch.attn.spans.push_back(span);
    }
    const std::vector<int32_t> ids(static_cast<size_t>(rows), 1);
    const Tensor table = Tensor::zeros(DType::kI32, {1, 256});
    batch.attn.page_table = table;
    batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {rows});
    batch.input_ids = batch.positions = TensorView(const_cast<int32_t*>(ids.data()), DType::kI32, {rows});
    batch.attn_backend = &backend;
    const Tensor mask = Tensor::zeros(DType::kU8, {rows}), signal = Tensor::zeros(DType::kF32, {rows, 8});
    std::fill_n(mask.data_as<uint8_t>(), conditioned, uint8_t{1});
    if (conditioned > 0) batch.soft.self_conditioning = {.mask = mask, .logits = signal.view().slice(0, conditioned)};
    if (!runner.holds(batch)) return "none";
    runner.run(batch);
    return log.launched();
  }
  // The graph that decode rows over contexts of these lengths run in, or "none". The last one is stored, or not.
  std::string decoded(const std::vector<int32_t>& contexts, Rows::Stores last = Rows::Stores::kAll) {
    const auto count = static_cast<int32_t>(contexts.size());
    std::vector<int32_t> ids(contexts.size(), 1);
    std::vector<int64_t> slots(contexts.size(), 0);
    if (last == Rows::Stores::kNone) slots.back() = kDoNotStore;
    ForwardBatch batch{.mode = ForwardMode::kDecode};
    for (int32_t i = 0; i < count; ++i) {
      const int32_t context = contexts[static_cast<size_t>(i)];
      batch.attn.spans.push_back({.q_off = i, .ctx_len = context, .phys0 = context});
      batch.logits_rows.push_back(i);
    }
    const Tensor table = Tensor::zeros(DType::kI32, {1, 256});
    batch.attn.page_table = table;
    batch.attn.write_slots = TensorView(slots.data(), DType::kI64, {count});
    batch.input_ids = batch.positions = TensorView(ids.data(), DType::kI32, {count});
    batch.attn_backend = &backend;
    if (!runner.holds(batch)) return "none";
    runner.run(batch);
    return log.launched();
  }
};

CudaGraphConfig decode_config(int64_t table_pages) {
  return {.max_requests = 48, .table_rows = 1, .table_pages = table_pages, .page_size = 16, .short_keys = 2048};
}

// Its flag refuses whatever would be kept; what is recorded is no warm-up any more.
TEST(CudaGraphRunner, WarmsUpThroughTheFlagAndRecordsWithoutIt) {
  CudaGraphConfig config = decode_config(256);
  config.max_requests = 2;
  config.rows = {.sizes = {8}, .most_rows = 8, .most_logits = 8};
  Recorded graphs(config, 100, 640);
  const std::vector<std::string>& passes = graphs.model.passes();
  ASSERT_GE(passes.size(), 6u);
  for (size_t i = 0; i < passes.size(); ++i) EXPECT_EQ(passes[i], i % 2 == 0 ? "warm-up" : "recorded") << i;
  EXPECT_FALSE(graphs.backend.metadata_source().is_warming_up());
}

TEST(CudaGraphRunner, FillsStepsWithRowsOfTheLengthThatTheBackendAsksFor) {
  Recorded graphs(decode_config(256), 100, 640);
  graphs.decoded({100, 200, 300});
  EXPECT_EQ(graphs.backend.replayed_length(), 5);
}

// They take their own key from the pool.
TEST(CudaGraphRunner, HoldsNoDecodeRowThatIsNotStored) {
  Recorded graphs(decode_config(256), 100, 640);
  EXPECT_EQ(graphs.decoded({100, 200}), "2 rows, 2048 keys");
  EXPECT_EQ(graphs.decoded({100, 200}, Rows::Stores::kNone), "none");
}

TEST(ShortGraphs, RecordsShortContextsOfManyRequestsWhereTheBackendNamesABucket) {
  Recorded graphs(decode_config(256), 33, 640);
  EXPECT_EQ(graphs.runner.describe(),
            "graphs for 1, 2, 4, 8, 12, 16, 24, 32, 40, 48 requests; with up to 2048 keys for 1, 2, 4, 8 requests; "
            "with up to 640 keys for 40, 48 requests");
}

TEST(ShortGraphs, ChoosesTheGraphByTheLongestContext) {
  Recorded graphs(decode_config(256), 33, 640);
  std::vector<int32_t> contexts(36, 5);
  EXPECT_EQ(graphs.decoded(contexts), "40 rows, 640 keys");
  contexts[30] = 639;
  EXPECT_EQ(graphs.decoded(contexts), "40 rows, 640 keys");
  contexts[30] = 640;
  EXPECT_EQ(graphs.decoded(contexts), "40 rows, 4096 keys");
  EXPECT_EQ(graphs.decoded(std::vector<int32_t>(20, 5)), "24 rows, 4096 keys");  // no graph of its own for short ones
  EXPECT_EQ(graphs.decoded({2047, 7, 7}), "4 rows, 2048 keys");
  EXPECT_EQ(graphs.decoded({2048, 7, 7}), "4 rows, 4096 keys");
}

TEST(ShortGraphs, HasOneForEachBucket) {
  Recorded graphs(decode_config(256), 2, 3000);
  EXPECT_EQ(graphs.runner.describe(),
            "graphs for 1, 2, 4, 8, 12, 16, 24, 32, 40, 48 requests; with up to 3000 keys for 2, 4, 8, 12, 16, 24, 32, "
            "40, 48 requests; with up to 2048 keys for 1, 2, 4, 8 requests");
  EXPECT_EQ(graphs.decoded({2047, 7}), "2 rows, 2048 keys");
  EXPECT_EQ(graphs.decoded({2048, 7}), "2 rows, 3000 keys");
  EXPECT_EQ(graphs.decoded({3000, 7}), "2 rows, 4096 keys");
  EXPECT_EQ(graphs.decoded({2048}), "1 rows, 4096 keys");
}

TEST(ShortGraphs, RecordsEachSizeOnceWhereAllContextsAreShort) {
  Recorded graphs(decode_config(40), 33, 640);
  EXPECT_EQ(graphs.runner.describe(), "graphs for 1, 2, 4, 8, 12, 16, 24, 32, 40, 48 requests");
  EXPECT_EQ(graphs.decoded(std::vector<int32_t>(33, 600)), "40 rows, 640 keys");
}

TEST(ShortGraphs, RecordsStepsOfBlocksForShortContextsToo) {
  CudaGraphConfig config = decode_config(256);
  config.decode_rows = CudaGraphConfig::DecodeRows::kNo;
  config.rows = {.sizes = {8, 72, 512}, .most_rows = 9, .most_logits = 512};
  Recorded graphs(config, 100, 640);
  EXPECT_EQ(
      graphs.runner.describe(),
      "graphs for steps of 8, 72, 512 rows; with up to 2048 keys for steps of 8, 72 rows; with up to 640 keys for "
      "steps of 512 rows");
  const auto run = [&](size_t requests, int32_t most_keys) {
    const int32_t cached = most_keys - 9;
    return graphs.ran(std::vector<Rows>(requests, {{.q_len = 9, .ctx_len = cached, .phys0 = cached}}));
  };
  EXPECT_EQ(run(48, 640), "512 rows of at most 9, 640 keys, 320 logits");
  EXPECT_EQ(run(48, 641), "512 rows of at most 9, 0 keys, 320 logits");
  EXPECT_EQ(run(8, 2048), "72 rows of at most 9, 2048 keys, 72 logits");
  EXPECT_EQ(run(8, 2049), "72 rows of at most 9, 0 keys, 72 logits");
}

// Blocks by themselves beside whole canvases, as dual_cache has them, of two requests.
CudaGraphConfig canvas_config() {
  CudaGraphConfig config = decode_config(256);
  config.max_requests = 2;
  config.decode_rows = CudaGraphConfig::DecodeRows::kNo;
  config.rows = {.sizes = {8, 16}, .most_rows = 8, .most_logits = 16};
  config.canvases = {.sizes = {32, 64, 96}, .most_rows = 80, .most_logits = 96, .few_logits = 16};
  return config;
}

constexpr KeySpan canvas(int32_t rows) { return {.q_len = rows, .kind = KeySpan::Kind::kFull}; }
constexpr KeySpan block(int32_t rows) {
  return {.q_len = rows, .ctx_len = 60, .phys0 = 20, .hole_begin = 20, .hole_end = 28, .kind = KeySpan::Kind::kFull};
}

TEST(CanvasGraphs, RunInTheSmallestThatHoldsTheStep) {
  Recorded graphs(canvas_config(), 1000, 0);
  EXPECT_EQ(graphs.runner.describe(),
            "graphs for steps of 8, 16 rows and for whole canvases of up to 96 rows, more run without; with up to 2048 "
            "keys for steps of 8, 16 rows");
  using enum Rows::Stores;
  EXPECT_EQ(graphs.ran({{canvas(9), 8, kAll}}), "32 rows of at most 32, 32 keys, 16 logits");
  EXPECT_EQ(graphs.ran({{canvas(60), 8, kAll}}), "64 rows of at most 64, 64 keys, 16 logits");
  EXPECT_EQ(graphs.ran({{canvas(60), 8, kAll}, {block(8), 3}}), "96 rows of at most 80, 96 keys, 16 logits");
  EXPECT_EQ(graphs.ran({{canvas(60), 17, kAll}}), "64 rows of at most 64, 64 keys, 64 logits");
  EXPECT_EQ(graphs.ran({{canvas(70), 66, kAll}}), "96 rows of at most 80, 96 keys, 96 logits");
  EXPECT_EQ(graphs.ran({{block(8), 3}}), "8 rows of at most 8, 2048 keys, 8 logits");
  EXPECT_EQ(graphs.ran({{block(8), 3}, {block(4), 1}}), "16 rows of at most 8, 2048 keys, 16 logits");
}

TEST(CanvasGraphs, HoldNoStepThatIsTooLarge) {
  Recorded graphs(canvas_config(), 1000, 0);
  EXPECT_EQ(graphs.ran({{canvas(81)}}), "none");                           // more rows than a request has
  EXPECT_EQ(graphs.ran({{canvas(60)}, {canvas(40)}}), "none");             // than a graph has
  EXPECT_EQ(graphs.ran({{canvas(9)}, {canvas(9)}, {canvas(9)}}), "none");  // more requests
}

TEST(CanvasGraphs, ThatTakeKeysFromThePoolHoldNoStepThatIsNotStored) {
  CudaGraphConfig config = canvas_config();
  config.canvases.new_keys = DeviceMetadata::NewKeys::kAllStored;
  Recorded graphs(config, 1000, 0);
  using enum Rows::Stores;
  EXPECT_EQ(graphs.ran({{canvas(60), 8, kAll}}), "64 rows of at most 64, 64 keys, 16 logits");
  EXPECT_EQ(graphs.ran({{canvas(60), 8}}), "none");
  EXPECT_EQ(graphs.ran({{canvas(60), 8, kAll}, {block(8), 3}}), "none");
  EXPECT_EQ(graphs.ran({{canvas(30), 8, kAll}, {canvas(30), 8}}), "none") << "the two texts of a guided request";
}

// Those of blocks take their new keys from the step, stored or not, or all from the pool.
TEST(RowGraphs, HoldStepsThatAreStoredAndThoseThatTakeKeysFromThePoolNoOthers) {
  CudaGraphConfig config = canvas_config();
  config.canvases = {};
  Recorded some(config, 1000, 0);
  using enum Rows::Stores;
  EXPECT_EQ(some.ran({{block(8), 3}}), "8 rows of at most 8, 2048 keys, 8 logits");
  EXPECT_EQ(some.ran({{block(8), 3, kAll}}), "8 rows of at most 8, 2048 keys, 8 logits");
  config.rows.new_keys = DeviceMetadata::NewKeys::kAllStored;
  Recorded all(config, 1000, 0);
  EXPECT_EQ(all.ran({{block(8), 3}}), "none");
  EXPECT_EQ(all.ran({{block(8), 3, kAll}}), "8 rows of at most 8, 2048 keys, 8 logits");
}

TEST(RowGraphs, SayThatMixturesOfTokensRunWithout) {
  CudaGraphConfig config = canvas_config();
  config.canvases = {};
  config.rows.mixtures = RowGraphs::Mixtures::kSome;
  Recorded graphs(config, 1000, 0);
  EXPECT_EQ(graphs.runner.describe(),
            "graphs for steps of 8, 16 rows, those with mixtures of tokens run without; with up to 2048 keys for steps "
            "of 8, 16 rows");
}

// Canvases of 16 rows behind cached text, as diffusion_gemma has them.
constexpr KeySpan segment(int32_t context) {
  return {.q_len = 16,
          .ctx_len = context,
          .phys0 = context,
          .kind = KeySpan::Kind::kFull,
          .window_from = KeySpan::WindowFrom::kSegment};
}

CudaGraphConfig segment_config() {
  CudaGraphConfig config = decode_config(256);
  config.max_requests = 5;
  config.decode_rows = CudaGraphConfig::DecodeRows::kNo;
  config.segments = {.requests = {1, 2, 4}, .keys = segment(0), .conditioning = 8};
  return config;
}

TEST(SegmentGraphs, RunWithConditioningOfAllRowsOrOfNone) {
  Recorded graphs(segment_config(), 1000, 0);
  EXPECT_EQ(graphs.runner.describe(),
            "graphs for 1, 2, 4 canvases of 16 rows behind cached text, which runs without, as does a finished canvas "
            "that becomes text, and first steps of canvases beside later ones");
  EXPECT_EQ(graphs.ran({{segment(9), 16}}), "16 rows of at most 16, 0 keys, 16 logits");
  EXPECT_EQ(graphs.ran({{segment(9), 16}}, 16), "16 rows of at most 16, 0 keys, 16 logits, conditioned");
  EXPECT_EQ(graphs.ran({{segment(9), 16}, {segment(40), 16}, {segment(7), 16}}, 48),
            "64 rows of at most 16, 0 keys, 64 logits, conditioned");
  EXPECT_EQ(graphs.ran({{segment(9), 16}, {segment(40), 16}}, 16), "none");  // one of them at its first step
}

TEST(SegmentGraphs, OfOneRequestHaveNoFirstStepBesideOthers) {
  CudaGraphConfig config = segment_config();
  config.segments.requests = {1};
  Recorded graphs(config, 1000, 0);
  EXPECT_EQ(graphs.runner.describe(),
            "graphs for 1 canvases of 16 rows behind cached text, which runs without, as does a finished canvas that "
            "becomes text");
}

TEST(SegmentGraphs, HoldNoOtherSteps) {
  Recorded graphs(segment_config(), 1000, 0);
  const Rows whole{segment(9), 16};
  EXPECT_EQ(graphs.ran({whole, whole, whole, whole, whole}), "none");                     // more than the largest graph
  EXPECT_EQ(graphs.ran({{segment(9), 15}}), "none");                                      // a row that is not read
  EXPECT_EQ(graphs.ran({{segment(9), 16, Rows::Stores::kAll}}), "none");                  // rows that are stored
  EXPECT_EQ(graphs.ran({whole, {{.q_len = 16, .ctx_len = 9, .phys0 = 9}, 16}}), "none");  // text, which sees otherwise
  EXPECT_EQ(graphs.ran({whole, {canvas(16), 16}}), "none");                               // a window from each row
}

TEST(SegmentGraphs, HaveNoConditioningWhereTheStrategyKeepsNoLogits) {
  CudaGraphConfig config = segment_config();
  config.segments.conditioning = 0;
  Recorded graphs(config, 1000, 0);
  EXPECT_EQ(graphs.ran({{segment(9), 16}}), "16 rows of at most 16, 0 keys, 16 logits");
  EXPECT_EQ(graphs.ran({{segment(9), 16}}, 16), "none");
}

TEST(CanvasGraphs, AreRecordedForFewLogitsAloneWhereNoStepHasMore) {
  CudaGraphConfig config = canvas_config();
  config.rows = {};
  config.canvases.most_logits = 16;
  Recorded graphs(config, 1000, 0);
  EXPECT_EQ(graphs.runner.describe(), "graphs for whole canvases of up to 96 rows, more run without");
  EXPECT_EQ(graphs.ran({{canvas(60), 16}}), "64 rows of at most 64, 64 keys, 16 logits");
  EXPECT_EQ(graphs.ran({{canvas(60), 17}}), "none");
  EXPECT_EQ(graphs.ran({{block(8), 8}}), "32 rows of at most 32, 32 keys, 16 logits");
}

}  // namespace
}  // namespace headrace
