// The bundled model through the whole engine, against tokens that transformers made.
#include "headrace/llm/llm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/fake_device.h"
#include "headrace/llm/engine_setup.h"
#include "headrace/llm/start_report.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/weights/config_file.h"
#include "support/device_mirror.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

const std::filesystem::path kRoot = testing_support::source_tree();
const std::filesystem::path kDemo = kRoot / "demo_models" / "fairy-hybrid";

LLMOptions options(int threads, Determinism determinism = Determinism::kFast) {
  return {.dtype = DType::kF32, .context = {.threads = threads, .determinism = determinism}, .max_model_len = 1024};
}

std::optional<LLMOptions> device_options() {
  const bool weights = std::filesystem::exists(kDemo / "model-00001-of-00002.safetensors");
  if (testing_support::mirrored_cuda_ops() == nullptr || !weights) return std::nullopt;
  LLMOptions on_device = options(2);
  on_device.device = "cuda";
  return on_device;
}

Completion complete(LLM& llm, const std::string& prompt, SamplingParams params) {
  params.end_of_text = SamplingParams::EndOfText::kIgnored;
  std::string streamed;
  Completion c = llm.generate(prompt, params, [&](std::string_view piece, const Completion&) {
    streamed += piece;
    return StreamAction::kContinue;
  });
  EXPECT_EQ(streamed, c.text);
  return c;
}

void expect_the_golden_tales(const LLMOptions& options) {
  LLM llm(kDemo, options);
  const JsonValue golden = read_json_file(kRoot / "tests" / "golden" / "fairy_hybrid_greedy.json");
  for (const JsonValue& entry : golden.as_array()) {
    const Completion c = complete(llm, entry.at("prompt").as_string(), {.max_tokens = 200, .temperature = 0});
    const std::vector<int64_t> want = entry.at("ids").as_ints(), prompt = entry.at("prompt_ids").as_ints();
    EXPECT_EQ(std::vector<int64_t>(c.prompt_ids.begin(), c.prompt_ids.end()), prompt);
    EXPECT_EQ(std::vector<int64_t>(c.ids.begin(), c.ids.end()), want) << entry.at("prompt").as_string();
  }
}

TEST(FairyHybrid, TwoHundredGreedyTokensEqualTransformers) { expect_the_golden_tales(options(2)); }

TEST(FairyHybrid, CudaTellsTheSameTales) {
  const std::optional<LLMOptions> on_device = device_options();
  if (!on_device) GTEST_SKIP() << "no CUDA device, or no weights here";
  expect_the_golden_tales(*on_device);
}

TEST(FairyHybrid, TheTextDoesNotDependOnTheThreads) {
  for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
    LLM one(kDemo, options(1, determinism)), two(kDemo, options(2, determinism));
    const SamplingParams params{.max_tokens = 40, .temperature = 0.9f, .seed = 11};
    EXPECT_EQ(complete(one, "Once upon a time", params).ids, complete(two, "Once upon a time", params).ids);
  }
}

TEST(FairyHybrid, FP8HalvesTheCacheOfBFloat16AndTellsTheSameTaleAgain) {
  const auto with = [](DType kv) {
    LLMOptions o = options(1);
    o.kv_dtype = kv;
    o.keep_text = SchedulerConfig::KeepText::kNo;  // as many pages and states of each
    return LLM(kDemo, o);
  };
  LLM floats = with(DType::kF32), halves = with(DType::kBF16), bytes = with(DType::kE4M3);
  EXPECT_EQ(floats.engine().runner().pool_bytes() - halves.engine().runner().pool_bytes(),
            2 * (halves.engine().runner().pool_bytes() - bytes.engine().runner().pool_bytes()));
  EXPECT_EQ(bytes.engine().runner().kv_dtype(), DType::kE4M3);
  const SamplingParams params{.max_tokens = 24, .temperature = 0};
  const Completion once = complete(bytes, "Once upon a time there was", params);
  EXPECT_EQ(complete(bytes, "Once upon a time there was", params).ids, once.ids);
}

TEST(FairyHybrid, Int8TakesAByteForANumberAndAScalePerTokenAndHead) {
  const auto bytes_of = [](DType kv) {
    LLMOptions o = options(1);
    o.kv_dtype = kv;
    o.keep_text = SchedulerConfig::KeepText::kNo;  // as many pages and states of each
    LLM llm(kDemo, o);
    EXPECT_EQ(llm.engine().runner().kv_dtype(), kv);
    return llm.engine().runner().pool_bytes();
  };
  // Bytes of a token's key and value of one head, which has 64 dimensions.
  constexpr int64_t kFloats = 2 * 64 * 4, kHalves = 2 * 64 * 2, kInt8 = 2 * (64 + 4);
  const int64_t floats = bytes_of(DType::kF32), halves = bytes_of(DType::kBF16), int8 = bytes_of(DType::kI8);
  EXPECT_EQ((floats - halves) * (kHalves - kInt8), (halves - int8) * (kFloats - kHalves));
}

TEST(FairyHybrid, CachedTextInInt8GoesOnAsWhenItWasComputed) {
  LLMOptions o = options(2, Determinism::kStrict);
  o.kv_dtype = DType::kI8, o.page_size = 16;
  LLM llm(kDemo, o);
  const std::string tale = "Once upon a time there was a king who had a golden bird, and the bird said to the king";
  const SamplingParams params{.max_tokens = 40, .temperature = 0};
  const Completion first = complete(llm, tale, params), second = complete(llm, tale, params);
  EXPECT_EQ(first.num_reused, 0);
  EXPECT_GE(second.num_reused, 16);
  EXPECT_EQ(second.ids, first.ids);
}

TEST(FairyHybrid, Int8OnADeviceIsRefusedBeforeWeightsAreRead) {
  bench::FakeDevice device(cpu::select_kernel_set());
  const test::TempDir dir;  // without weights
  std::filesystem::copy_file(kDemo / "config.json", dir / "config.json");
  LLMOptions o = options(1);
  o.kv_dtype = DType::kI8;
  const auto refusal = testing_support::refusal_of([&] { load_checked(read_description(dir.path()), device, o); });
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_TRUE(refusal.sentence.starts_with("keys and values in int8 run on a CPU alone, not on cuda:0"))
      << refusal.sentence;
}

TEST(FairyHybrid, TheLogSaysWhatRunsAndWarnsOfAContextBeyondTheModels) {
  std::vector<std::string> infos, warnings;
  LLMOptions chatty = options(1);
  chatty.max_model_len = 65536;
  chatty.log = [&](LogLevel level, std::string_view message) {
    (level == LogLevel::kWarning ? warnings : infos).emplace_back(message);
  };
  LLM llm(kDemo, chatty);
  ASSERT_EQ(infos.size(), 3u);
  EXPECT_EQ(infos[2], "cache: " + llm.memory_plan().reasons);
  EXPECT_EQ(infos[0],
            "Qwen3_5ForCausalLM on cpu: 8 layers, 6 of them Gated DeltaNet, 23 MB of weights, activations in float32, "
            "keys and values in float32");
  EXPECT_TRUE(infos[1].starts_with("attention by " + llm.engine().runner().backend().describe())) << infos[1];
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with("a context of 65536 tokens is beyond the ")) << warnings[0];
}

TEST(FairyHybrid, OneBudgetHoldsPagesAndStates) {
  for (const int64_t budget : {int64_t{0}, int64_t{16} << 20, int64_t{64} << 20}) {
    LLMOptions o = options(1);
    if (budget > 0) o.kv_cache_memory_bytes = budget;
    LLM llm(kDemo, o);
    const RunnerConfig& runner = llm.config().runner;
    const int64_t pools = llm.engine().runner().pool_bytes();
    EXPECT_EQ(pools, llm.memory_plan().bytes);
    if (budget > 0) {
      EXPECT_LE(pools, budget);
      EXPECT_GT(pools, budget * 8 / 10);
    }
    EXPECT_GE(runner.num_pages * runner.page_size, 1024);
    EXPECT_EQ(llm.engine().scheduler().free_pages(), runner.num_pages);
    EXPECT_EQ(llm.engine().scheduler().free_states(), runner.num_states);
  }
  LLMOptions alone = options(1);
  alone.keep_text = SchedulerConfig::KeepText::kNo;
  LLM llm(kDemo, alone);
  EXPECT_EQ(llm.config().runner.num_pages * 64, 1024);
  EXPECT_EQ(llm.config().runner.num_states, 1);
}

// Bytes of a context of 8192 tokens and the page for padding, and of two states.
TEST(LLM, ABudgetWithoutRoomForTheContextIsRefusedBeforeWeightsAreRead) {
  constexpr int64_t kTokens = 129 * 64;
  const std::vector<std::pair<const char*, int64_t>> least = {
      {"qwen3_4b", kTokens * 36 * 8 * 256 * 2},
      {"qwen3_5_0_8b", kTokens * 6 * 2 * 512 * 2 + 2 * 18 * (16 * 128 * 128 * 4 + 6144 * 3 * 2)},
      {"qwen3_next_8_layers", kTokens * 2 * 2 * 512 * 2 + 2 * 6 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)}};
  for (const auto& [shape, bytes] : least) {
    const ModelDescription model = read_description(kRoot / "bench" / "shapes" / shape, /*random_weights=*/1);
    LLMOptions o{.kv_cache_memory_bytes = bytes - 1, .random_weights = 1};
    const auto refused = testing_support::refusal_of([&] { checked_strategy(model, o, {}); });
    EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
    EXPECT_TRUE(refused.sentence.starts_with(
        str("kv_cache_memory_bytes is ", bytes - 1, " bytes, expected ", bytes, " or more: ")))
        << refused.sentence;
    o.kv_cache_memory_bytes = bytes;
    EXPECT_EQ(checked_strategy(model, o, {}), "autoregressive");
  }
}

TEST(FairyHybrid, TokensAreDrawnAsGenerationConfigSays) {
  const SamplingParams params = LLM(kDemo, options(1)).default_params();
  EXPECT_FLOAT_EQ(params.temperature, 0.8f);
  EXPECT_FLOAT_EQ(params.top_p, 0.95f);
  EXPECT_EQ(params.top_k, 0);
  EXPECT_EQ(params.max_tokens, SamplingParams{}.max_tokens);
}

TEST(FairyHybrid, PagesOfNoTokenWereDividedBy) {
  for (const int32_t size : {0, -1, 7, std::numeric_limits<int32_t>::max()}) {
    LLMOptions bad = options(1);
    bad.page_size = size;
    EXPECT_EQ(testing_support::refusal_of([&] { const LLM llm(kDemo, bad); }).sentence,
              str("kv pool: page size is ", size, ", expected 1, 16, 32, 64, 128 or 256"));
  }
}

TEST(FairyHybrid, AStopTextEndsTheOutputAndIsNotPartOfIt) {
  LLM llm(kDemo, options(1));
  const Completion whole = complete(llm, "Once upon a time", {.max_tokens = 40, .temperature = 0});
  const std::string stop = whole.text.substr(20, 6);
  const Completion cut = complete(llm, "Once upon a time", {.max_tokens = 40, .temperature = 0, .stop = {stop}});
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
  EXPECT_TRUE(llm.engine().idle());
}

// Text that may be the beginning of a stop text is held back; the reader is asked all the same.
TEST(FairyHybrid, TheReaderCanStopWhileNoTextIsCertain) {
  LLM llm(kDemo, options(1));
  SamplingParams params{.max_tokens = 40, .temperature = 0};
  params.stop = {complete(llm, "Once upon a time", params).text + "never"};
  const Completion c = llm.generate("Once upon a time", params, [](std::string_view piece, const Completion& so_far) {
    EXPECT_EQ(piece, "");
    return so_far.ids.size() < 3 ? StreamAction::kContinue : StreamAction::kStop;
  });
  EXPECT_EQ(c.ids.size(), 3u);
  EXPECT_EQ(c.text, "");
  EXPECT_EQ(c.finish_reason, FinishReason::kAborted);
}

// A chat's second turn behind an answer that ended by itself, at a stop text, or because the reader had enough.
TEST(FairyHybrid, ASecondTurnGoesOnBehindTheFirstOnesAnswer) {
  const std::string asked = "The old woman looked at the boy and said";
  LLM alone(kDemo, options(1, Determinism::kStrict));
  const Completion whole = complete(alone, asked, {.max_tokens = 200, .temperature = 0.9f, .seed = 11});
  const std::string stop = whole.text.substr(whole.text.size() - 30, 10);
  enum class End : uint8_t { kLength, kStopText, kReader };
  for (const End end : {End::kLength, End::kStopText, End::kReader}) {
    SCOPED_TRACE(static_cast<int>(end));
    LLM llm(kDemo, options(1, Determinism::kStrict));
    SamplingParams params{.max_tokens = end == End::kLength ? 200 : 400, .temperature = 0.9f, .seed = 11};
    params.end_of_text = SamplingParams::EndOfText::kIgnored;
    if (end == End::kStopText) params.stop = {stop};
    int32_t pieces = 0;
    const Completion first = llm.generate(asked, params, [&](std::string_view piece, const Completion&) {
      return end == End::kReader && !piece.empty() && ++pieces == 150 ? StreamAction::kStop : StreamAction::kContinue;
    });
    EXPECT_EQ(first.num_reused, 0);
    const std::string next = asked + first.text + " And then";
    const Completion second = complete(llm, next, {.max_tokens = 40, .temperature = 0});
    std::vector<int32_t> known = first.prompt_ids;
    known.insert(known.end(), first.ids.begin(), first.ids.end() - 1);  // the last one was not run
    const auto common = std::ranges::mismatch(known, second.prompt_ids).in1 - known.begin();
    EXPECT_GE(common, 128);
    EXPECT_EQ(second.num_reused, common / 64 * 64);
    LLM fresh(kDemo, options(1, Determinism::kStrict));
    EXPECT_EQ(second.ids, complete(fresh, next, {.max_tokens = 40, .temperature = 0}).ids);
  }
}

TEST(FairyHybrid, PerplexityOfASentenceIsThatOfItsTokens) {
  LLM llm(kDemo, options(1));
  constexpr std::string_view kSentence = "Once upon a time there was a king.";
  const LLM::Perplexity p = llm.perplexity(kSentence);
  const std::vector<int32_t> ids = llm.tokenizer().encode(kSentence, {.add_special_tokens = AddSpecialTokens::kNo});
  double nats = 0, first_bytes = static_cast<double>(llm.tokenizer().bytes_of(ids[0]).size());
  for (const float logprob : llm.engine().score(ids)) nats -= static_cast<double>(logprob);
  EXPECT_NEAR(p.per_token(), std::exp(nats / static_cast<double>(ids.size() - 1)), 1e-6);
  EXPECT_NEAR(p.bits_per_byte() * (static_cast<double>(kSentence.size()) - first_bytes), nats / std::log(2.0), 1e-6);
  EXPECT_GT(p.bits_per_byte(), 0.3);
  EXPECT_LT(p.bits_per_byte(), 2.0);
  EXPECT_THROW(llm.perplexity(""), Error);
  std::vector<std::pair<int64_t, int64_t>> told;
  llm.perplexity("Once upon a time there was a king.", 4,
                 [&told](int64_t done, int64_t total) { told.emplace_back(done, total); });
  EXPECT_EQ(told, (std::vector<std::pair<int64_t, int64_t>>{{4, 9}, {8, 9}})) << "a single token is no window";
}

TEST(FairyHybrid, PerplexityFitsItsWindowToTheContext) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "There was once a king who had three sons. ";
  const auto measured = [&text](int32_t context) {
    LLMOptions o = options(1);
    o.max_model_len = context;
    LLM llm(kDemo, o);
    return llm.perplexity(text);
  };
  EXPECT_EQ(measured(1024).window, 512);
  EXPECT_EQ(measured(64).window, 63);
  EXPECT_GT(measured(64).tokens, 250);
  EXPECT_THROW(measured(2), Error);
}

TEST(FairyHybrid, ARequestWhoseReaderThrewTalkedIntoTheNextOne) {
  LLM llm(kDemo, options(1));
  const SamplingParams params{.max_tokens = 8, .temperature = 0};
  const std::vector<int32_t> want = complete(llm, "Once upon a time", params).ids;
  const auto throws = [](std::string_view, const Completion&) -> StreamAction {
    throw std::runtime_error("no reader");
  };
  EXPECT_THROW(llm.generate("The old woman said", {.max_tokens = 64}, throws), std::runtime_error);
  EXPECT_TRUE(llm.engine().idle());
  EXPECT_EQ(complete(llm, "Once upon a time", params).ids, want);
}

TEST(FairyHybrid, ALongPromptCanBeStoppedBeforeItIsThrough) {
  LLM llm(kDemo, options(1));
  std::string prompt;
  for (int i = 0; i < 80; ++i) prompt += "There was once a king who had three sons. ";
  int calls = 0;
  const Completion c = llm.generate(prompt, {.max_tokens = 5}, [&calls](std::string_view piece, const Completion&) {
    EXPECT_EQ(piece, "");
    ++calls;
    return StreamAction::kStop;
  });
  EXPECT_GT(c.prompt_ids.size(), 512u) << "more than one step";
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(c.ids.empty());
  EXPECT_EQ(c.finish_reason, FinishReason::kAborted);
  EXPECT_TRUE(llm.engine().idle());
}

void expect_the_golden_bits(const LLMOptions& options) {
  LLM llm(kDemo, options);
  const JsonValue golden = read_json_file(kRoot / "tests" / "golden" / "fairy_hybrid_bpb.json");
  for (const JsonValue& window : golden.at("first_windows").as_array()) {
    std::vector<int32_t> ids;
    for (const int64_t id : window.at("ids").as_ints()) ids.push_back(static_cast<int32_t>(id));
    double bits = 0;
    for (const float logprob : llm.engine().score(ids)) bits -= static_cast<double>(logprob) / std::log(2.0);
    EXPECT_NEAR(bits, window.at("bits").as_float(), 0.05);  // of about two thousand, summed over 511 tokens in float32
  }
}

TEST(FairyHybrid, BitsOfHeldOutWindowsEqualTransformers) { expect_the_golden_bits(options(2)); }

TEST(FairyHybrid, CudaGivesHeldOutWindowsTheSameBits) {
  const std::optional<LLMOptions> on_device = device_options();
  if (!on_device) GTEST_SKIP() << "no CUDA device, or no weights here";
  expect_the_golden_bits(*on_device);
}

// Every token counts that a letter of the text came from, be it the last byte of a character or the first.
TEST(LLM, TokensOfUnfinishedCharactersCountWithTheirCharacter) {
  LLMOptions of_bytes = options(1);
  of_bytes.random_weights = 1;
  LLM llm(kRoot / "tests" / "golden" / "qwen3_5", of_bytes);
  const Completion c = complete(llm, "a tale", {.max_tokens = 64, .temperature = 1, .seed = 5});
  EXPECT_EQ(c.ids.size(), 64u);
  EXPECT_EQ(c.num_visible, 64) << "bytes, each of them spelt or U+FFFD";
}

// Tokens 0 to 255 are bytes, `added` the ones behind them; a text begins with the first of these.
void write_byte_tokenizer(const std::filesystem::path& folder, const std::vector<std::string>& added) {
  TinyTokenizer tiny;
  tiny.words.clear(), tiny.merges = "[]", tiny.added_tokens.clear();
  for (size_t i = 0; i < added.size(); ++i) {
    tiny.added_tokens.push_back({256 + static_cast<int>(i), added[i], "special"});
  }
  tiny.post_processor =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"B"}},{"Sequence":{"id":"A"}}],)"
      R"("special_tokens":{"B":{"ids":[256]}}})";
  test::write_file(folder / "tokenizer.json", tiny.json());
}

LLMOptions random_options() {
  LLMOptions o = options(1);
  o.random_weights = 1, o.max_model_len = 64;
  return o;
}

std::filesystem::path random_model(const test::TempDir& folder, const std::vector<std::string>& added) {
  std::filesystem::copy_file(kRoot / "tests" / "golden" / "llama" / "config.json", folder / "config.json");
  write_byte_tokenizer(folder.path(), added);
  return folder.path();
}

// llama.cpp's perplexity does so, too: a model that was trained behind this token is lost without it.
TEST(LLM, WindowsOfPerplexityBeginWithWhatTheTokenizerPutsBeforeAText) {
  const test::TempDir folder;
  LLM llm(random_model(folder, {"<begin>"}), random_options());
  const LLM::Perplexity p = llm.perplexity("abcdefg", 5);
  EXPECT_EQ(p.tokens, 7);
  EXPECT_EQ(p.bytes, 7);
  double nats = 0;
  for (const std::vector<int32_t>& window : {std::vector<int32_t>{256, 'a', 'b', 'c', 'd'}, {256, 'e', 'f', 'g'}}) {
    for (const float logprob : llm.engine().score(window)) nats -= static_cast<double>(logprob);
  }
  EXPECT_NEAR(p.bits, nats / std::log(2.0), 1e-6);
  EXPECT_THROW(llm.perplexity("abc", 1), Error);
  EXPECT_THROW(llm.perplexity(""), Error);
}

TEST(LLM, ScoresAreLogProbabilitiesOverTheModelsWholeVocabulary) {
  const test::TempDir folder;
  LLM llm(random_model(folder, {"<begin>"}), random_options());
  const int32_t vocab = llm.model_info().vocab_size;
  ASSERT_GT(vocab, llm.tokenizer().vocab_size());
  double sum = 0;
  for (int32_t id = 0; id < vocab; ++id) {
    sum += std::exp(static_cast<double>(llm.engine().score({'a', id}).front()));
  }
  EXPECT_NEAR(sum, 1, 1e-4);
  const Completion c = complete(llm, "a", {.max_tokens = 1, .temperature = 0});
  EXPECT_NEAR(c.logprobs.front(), llm.engine().score({256, 'a', c.ids.front()}).back(), 1e-5);
}

TEST(LLM, AStopTextMayBeASpecialTokenWhichNoTextShows) {
  const test::TempDir folder;
  std::vector<std::string> added = {"<begin>"};
  const int32_t vocab = 272;
  while (std::ssize(added) < vocab - 256) added.push_back(str("<", added.size(), ">"));
  LLM llm(random_model(folder, added), random_options());
  ASSERT_EQ(llm.model_info().vocab_size, vocab);
  const SamplingParams params{.max_tokens = 30, .temperature = 1, .seed = 3};
  const Completion whole = complete(llm, "a", params);
  const auto special = std::ranges::find_if(whole.ids, [&](int32_t id) { return llm.tokenizer().is_special(id); });
  ASSERT_NE(special, whole.ids.end()) << "half of the tokens are";
  const std::vector<int32_t> until(whole.ids.begin(), special + 1);
  const std::string before = llm.tokenizer().decode(std::span(until).first(until.size() - 1));
  SamplingParams stopped = params;
  stopped.stop = {*llm.tokenizer().id_to_token(*special)};
  const Completion by_text = complete(llm, "a", stopped);
  EXPECT_EQ(by_text.ids, until);
  EXPECT_EQ(by_text.text, before);
  EXPECT_EQ(by_text.finish_reason, FinishReason::kStop);
  stopped.stop.clear(), stopped.stop_token_ids = {*special};
  const Completion by_id = complete(llm, "a", stopped);  // which ignores the model's own end tokens
  EXPECT_EQ(by_id.ids, until);
  EXPECT_EQ(by_id.text, before);
  EXPECT_EQ(by_id.finish_reason, FinishReason::kStop);
}

TEST(LLM, AnEndTokenThatTheTokenizerLacksIsWarnedOf) {
  const test::TempDir folder;
  std::filesystem::create_symlink(testing_support::golden_folder("llama") / "model.safetensors",
                                  folder / "model.safetensors");
  random_model(folder, {"<begin>"});
  test::write_file(folder / "generation_config.json", R"({"eos_token_id": [3, 270, 9999], "top_k": -5})");
  std::vector<std::string> warnings;
  LLMOptions o = options(1);
  o.max_model_len = 64;
  o.log = [&warnings](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) warnings.emplace_back(text);
  };
  const LLM llm(folder.path(), o);
  EXPECT_EQ(llm.model_info().eos_ids, (std::vector<int32_t>{2, 3, 270}));
  EXPECT_EQ(llm.default_params().top_k, 0);
  const auto warned = [&warnings](std::string_view what) {
    return std::ranges::count_if(warnings, [what](const std::string& w) { return w.find(what) != w.npos; });
  };
  EXPECT_EQ(warned("the end token 270 is never chosen: the tokenizer has ids below 257"), 1);
  EXPECT_EQ(warned("generation_config.json: eos_token_id[2] is 9999, expected 0 to 271"), 1);
  EXPECT_EQ(warned("generation_config.json: top_k is -5"), 1);
}

TEST(LLM, StopTokensThatAreNeverChosenAreRefused) {
  const test::TempDir folder;
  LLM llm(random_model(folder, {"<begin>"}), random_options());
  const auto refusal = [&llm](int32_t id) {
    return testing_support::refusal_of([&] { complete(llm, "a", {.stop_token_ids = {id}}); }).sentence;
  };
  EXPECT_EQ(refusal(-1), "stop_token_ids: -1, expected 0 or more");
  EXPECT_EQ(refusal(270), "stop_token_ids: 270 is never chosen: the tokenizer has ids below 257");
  EXPECT_EQ(refusal(272), "stop_token_ids: 272 is outside the model's vocabulary of 272");
}

TEST(LLM, APromptThatIsTooLongIsToldWhatLimitsIt) {
  const test::TempDir folder;
  const auto refusal = [&folder](int32_t max_model_len, size_t length) {
    LLMOptions o = random_options();
    o.max_model_len = max_model_len;
    LLM llm(folder.path(), o);
    return testing_support::refusal_of([&] { complete(llm, std::string(length, 'a'), {.max_tokens = 1}); }).sentence;
  };
  random_model(folder, {"<begin>"});
  EXPECT_EQ(refusal(16, 20),
            "request 1: the prompt has 21 tokens, the context (max_model_len) holds 16 with at least one new token");
  const JsonValue config = read_json_file(folder / "config.json");
  const int64_t most = config.at("max_position_embeddings").as_int();
  const std::string of_model = str("request 1: the prompt has ", most, " tokens, the model's context holds ", most,
                                   " with at least one new token");
  EXPECT_EQ(refusal(0, static_cast<size_t>(most) - 1), of_model);
  EXPECT_EQ(refusal(kWholeContext, static_cast<size_t>(most) - 1), of_model);
}

TEST(LLM, WeightsThatAreNoNumbersAreToldWithTheirModel) {
  const test::TempDir folder;
  random_model(folder, {"<begin>"});
  std::ifstream whole(testing_support::golden_folder("llama") / "model.safetensors", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(whole), std::istreambuf_iterator<char>()};
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::fill(bytes.begin() + static_cast<int64_t>(sizeof(header) + header), bytes.end(), '\xff');
  test::write_file(folder / "model.safetensors", bytes);
  LLMOptions o = options(1);
  o.max_model_len = 64;
  LLM llm(folder.path(), o);
  const std::string begin =
      str(folder.path().string(), ": request 1: the logits of position 2 are NaN or infinite: the model's ");
  const auto chosen = testing_support::refusal_of([&] { complete(llm, "a", {.max_tokens = 1}); });
  EXPECT_EQ(chosen.code, ErrorCode::kModelFile);
  EXPECT_TRUE(chosen.sentence.starts_with(begin)) << chosen.sentence;
  const auto scored = testing_support::refusal_of([&] { llm.perplexity("abcdefgh"); });
  EXPECT_TRUE(scored.sentence.starts_with(folder.path().string() + ": ")) << scored.sentence;
}

// It was found after gigabytes of weights.
TEST(LLM, WhatTheConfigRefusesIsRefusedBeforeWeightsAreRead) {
  const test::TempDir folder;  // without weights
  for (const char* file : {"config.json", "tokenizer.json"}) {
    std::filesystem::copy_file(kRoot / "demo_models" / "puzzle-diffusion" / file, folder / file);
  }
  const auto refusal = [&folder](const LLMOptions& o) {
    return testing_support::refusal_of([&] { const LLM llm(folder.path(), o); }).sentence;
  };
  LLMOptions block = options(1), strategy = options(1);
  block.max_model_len = 0, block.decoding.block_size = 65536;
  EXPECT_EQ(refusal(block), "strategy 'multi_bd': block_size is 65536, expected at most 4096, what the context holds");
  block.max_model_len = 100, block.decoding.block_size = 101;
  EXPECT_EQ(refusal(block), "strategy 'multi_bd': block_size is 101, expected at most 100, what the context holds");
  strategy.strategy = "diffusion_gemma";
  EXPECT_TRUE(refusal(strategy).starts_with("strategy 'diffusion_gemma': ")) << refusal(strategy);
  strategy.strategy = "auto", strategy.decoding.mask_token_id = 1 << 20;
  EXPECT_TRUE(refusal(strategy).starts_with("strategy 'multi_bd': mask_token_id is ")) << refusal(strategy);
  const ModelDescription model = read_description(folder.path());
  EXPECT_EQ(checked_strategy(model, options(1), {}), "multi_bd");
  const auto asked = testing_support::refusal_of(
      [&model] { checked_strategy(model, options(1), {.decoding = {.threshold = -1.0f}}); });
  EXPECT_EQ(asked.sentence, "threshold is -1, expected 0 to 1, or inf for a probability that no token passes");
}

// What is said of the strategy when an LLM starts.
std::vector<std::string> strategy_warnings(const std::filesystem::path& model, const char* strategy) {
  std::vector<std::string> list;
  LLMOptions o = options(1);
  o.random_weights = 1, o.strategy = strategy, o.max_model_len = 64;
  o.log = [&list](LogLevel level, std::string_view message) {
    if (level == LogLevel::kWarning && message.starts_with("strategy")) list.emplace_back(message);
  };
  const LLM llm(model, o);
  return list;
}

TEST(LLM, EditsOfAModelThatWasNotTrainedForThemAreWarnedOf) {
  const auto golden = kRoot / "tests" / "golden";
  const std::string sentence =
      "strategy 'multi_bd_edit' replaces decided tokens by what their rows say, which this model was not trained for, "
      "so that right ones are lost; its own strategy is 'multi_bd'";
  EXPECT_EQ(strategy_warnings(golden / "sdar", "multi_bd_edit"), std::vector<std::string>{sentence});
  EXPECT_TRUE(strategy_warnings(golden / "sdar", "multi_bd").empty());
  EXPECT_TRUE(strategy_warnings(golden / "llada2", "multi_bd_edit").empty()) << "it may be LLaDA2.1";
  const test::TempDir folder;
  std::filesystem::create_directory(folder / "LLaDA2.0-mini");
  std::filesystem::copy_file(golden / "llada2" / "config.json", folder / "LLaDA2.0-mini" / "config.json");
  EXPECT_EQ(strategy_warnings(folder / "LLaDA2.0-mini", "multi_bd_edit"), std::vector<std::string>{sentence});
  EXPECT_EQ(strategy_warnings(folder / "LLaDA2.0-mini", "dmax").size(), 1u);
  EXPECT_EQ(strategy_warnings(golden / "sdar", "dmax").size(), 1u);
  std::filesystem::rename(folder / "LLaDA2.0-mini", folder / "LLaDA2.0-mini-DMax");
  EXPECT_TRUE(strategy_warnings(folder / "LLaDA2.0-mini-DMax", "dmax").empty());
}

TEST(LLM, D2FWithoutAnAdapterWarnsOfAModelThatWasNotTrainedForIt) {
  const auto warnings = [](const char* family, const char* strategy) {
    return strategy_warnings(kRoot / "tests" / "golden" / family, strategy);
  };
  EXPECT_EQ(warnings("llada", "d2f"),
            std::vector<std::string>{"strategy 'd2f' decodes models that were trained for it, and no adapter is given: "
                                     "LLaDAModelLM itself is trained to see a text as a whole"});
  EXPECT_TRUE(warnings("llada", "full_attention").empty());
  EXPECT_TRUE(warnings("sdar", "d2f").empty()) << "it sees blocks as d2f does";
}

TEST(LLM, ARequestThatTheContextHoldsIsNeverTooLargeForAStep) {
  const struct {
    const char *family, *strategy;
    int32_t context;
    StrategyConfig decoding;
  } kCases[] = {{"sdar", "multi_bd", 128, {.block_size = 32, .num_blocks = 2}},
                {"sdar", "multi_bd", 1024, {.block_size = 64, .num_blocks = 8}},
                {"llada2", "dmax", 100, {.block_size = 32, .num_blocks = 8}},
                {"llada", "d2f", 100, {.block_size = 32}},
                {"llada", "full_attention", 100, {.block_size = 32}},
                {"fast_dllm_v2", "fast_dllm_v2", 16, {}},
                {"diffusion_gemma", "diffusion_gemma", 12, {}}};
  for (const auto& c : kCases) {
    LLMOptions of_bytes = options(1);
    of_bytes.random_weights = 1, of_bytes.strategy = c.strategy, of_bytes.decoding = c.decoding;
    of_bytes.max_model_len = c.context;
    LLM llm(kRoot / "tests" / "golden" / c.family, of_bytes);
    EXPECT_EQ(complete(llm, "a tale", {.max_tokens = 200, .temperature = 0}).ids.size(),
              static_cast<size_t>(std::min(200, c.context - 6)))
        << c.strategy << ", " << c.context;
  }
}

// Who logs warnings alone, as the program does by default, hears of graphs that could not be recorded; that a strategy
// has none is no warning.
TEST(StartReport, WarnsOfGraphsThatCouldNotBeRecorded) {
  std::vector<std::string> warnings;
  const LogCallback log = [&](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) warnings.emplace_back(text);
  };
  report_failed_capture(log, std::nullopt);
  EXPECT_TRUE(warnings.empty());
  report_failed_capture(log, "recording steps of up to 8 rows: cuda:0: 7 of 9 are free");
  EXPECT_EQ(warnings,
            std::vector<std::string>{
                "no CUDA graphs, so that steps take longer: recording steps of up to 8 rows: cuda:0: 7 of 9 are free"});
}

}  // namespace
}  // namespace headrace
