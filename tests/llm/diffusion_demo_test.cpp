// The bundled block-diffusion models through the whole engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "headrace/llm/llm.h"
#include "headrace/weights/config_file.h"
#include "support/device_mirror.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

const std::filesystem::path kRoot = testing_support::source_tree();
const std::filesystem::path kFairy = kRoot / "demo_models" / "fairy-diffusion";
const std::filesystem::path kPuzzle = kRoot / "demo_models" / "puzzle-diffusion";
const std::filesystem::path kLlada = kRoot / "demo_models" / "puzzle-llada";

LLMOptions options(const std::string& strategy) {
  return {.dtype = DType::kF32, .context = {.threads = 2}, .max_model_len = 1024, .strategy = strategy};
}

Completion complete(LLM& llm, const std::string& prompt, const SamplingParams& params,
                    const LLM::OnStep& on_step = {}) {
  return llm.generate(
      prompt, params, [](std::string_view, const Completion&) { return StreamAction::kContinue; }, on_step);
}

// Which positions got which tokens in each step that decided any.
using Kept = std::vector<std::map<int32_t, int32_t>>;

Kept kept_of(const JsonValue& entry) {
  Kept kept;
  for (const JsonValue& step : entry.at("kept").as_array()) {
    std::map<int32_t, int32_t>& now = kept.emplace_back();
    for (const JsonValue& pair : step.as_array()) {
      const std::vector<int64_t> values = pair.as_ints();
      now[static_cast<int32_t>(values.at(0))] = static_cast<int32_t>(values.at(1));
    }
  }
  return kept;
}

// It is Qwen3's in SDAR's files, and was taken for SDAR's loop too.
TEST(FairyDiffusion, GenerationConfigDrawsAllButThePublishedLoop) {
  const LLM llm(kFairy, options("multi_bd"));
  EXPECT_FLOAT_EQ(llm.default_params().top_p, 0.9f);
  const SamplingParams published = llm.default_params(DecodingParams::Schedule::kReference);
  EXPECT_EQ(published.temperature, 1);
  EXPECT_EQ(published.top_k, 0);
  EXPECT_EQ(published.top_p, 1);
}

// SDAR's own loop in Python, prompt by prompt: the same positions get the same tokens in the same steps.
TEST(FairyDiffusion, GreedyBlocksEqualTheReferenceLoopStepByStep) {
  LLM llm(kFairy, options("multi_bd"));
  const JsonValue golden = read_json_file(kRoot / "tests" / "golden" / "fairy_diffusion_greedy.json");
  EXPECT_EQ(golden.at("block_size").as_int(1, 64), llm.model_info().diffusion->block_size);
  for (const JsonValue& entry : golden.at("prompts").as_array()) {
    const std::vector<int64_t> want = entry.at("ids").as_ints(), prompt = entry.at("prompt_ids").as_ints();
    SamplingParams params{.max_tokens = static_cast<int32_t>(want.size()), .temperature = 0};
    params.decoding.threshold = static_cast<float>(golden.at("threshold").as_float());
    Kept kept;
    const auto on_step = [&kept](const StepReport& report) {
      std::map<int32_t, int32_t> now;
      for (const StepReport::Token& token : report.decided) now[token.position] = token.id;
      if (!now.empty()) kept.push_back(std::move(now));
    };
    const EngineCounters before = llm.engine().counters();
    const Completion c = complete(llm, entry.at("prompt").as_string(), params, on_step);
    EXPECT_EQ(std::vector<int64_t>(c.prompt_ids.begin(), c.prompt_ids.end()), prompt);
    EXPECT_EQ(std::vector<int64_t>(c.ids.begin(), c.ids.end()), want) << entry.at("prompt").as_string();
    EXPECT_EQ(kept, kept_of(entry)) << entry.at("prompt").as_string();
    EXPECT_EQ(llm.engine().counters().steps - before.steps, entry.at("forwards").as_int(1, 1000)) << "no idle passes";
  }
}

TEST(FairyDiffusion, CudaWritesTheSameTokens) {
  if (testing_support::mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  if (!std::filesystem::exists(kFairy / "model-00001-of-00002.safetensors")) GTEST_SKIP() << "no weights here";
  LLMOptions on_device = options("multi_bd");
  on_device.device = "cuda";
  LLM llm(kFairy, on_device);
  const JsonValue golden = read_json_file(kRoot / "tests" / "golden" / "fairy_diffusion_greedy.json");
  for (const JsonValue& entry : golden.at("prompts").as_array()) {
    const std::vector<int64_t> want = entry.at("ids").as_ints();
    SamplingParams params{.max_tokens = static_cast<int32_t>(want.size()), .temperature = 0};
    params.decoding.threshold = static_cast<float>(golden.at("threshold").as_float());
    const Completion c = complete(llm, entry.at("prompt").as_string(), params);
    EXPECT_EQ(std::vector<int64_t>(c.ids.begin(), c.ids.end()), want) << entry.at("prompt").as_string();
  }
}

class StopTexts : public testing::TestWithParam<const char*> {};

// A letter of the text of so many bytes or the first one behind begins here.
size_t begin_of_letter(const std::string& text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

void expect_a_stop_text_to_cut(LLM& llm) {
  SamplingParams params{.max_tokens = 40, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored};
  const Completion all = complete(llm, "Once upon a time", params);
  const size_t begin = begin_of_letter(all.text, 23), end = begin_of_letter(all.text, begin + 7);
  params.stop = {"not in it", all.text.substr(begin, end - begin)};
  std::string streamed;
  const Completion cut =
      llm.generate("Once upon a time", params, [&streamed](std::string_view piece, const Completion&) {
        streamed += piece;
        return StreamAction::kContinue;
      });
  EXPECT_EQ(cut.text, all.text.substr(0, all.text.find(params.stop[1])));
  EXPECT_EQ(streamed, cut.text);
  EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
  EXPECT_LT(cut.ids.size(), all.ids.size());
}

// Every strategy that decodes the model, trained for it or not.
TEST_P(StopTexts, CutABlockInItsMiddle) {
  LLM llm(kFairy, options(GetParam()));
  expect_a_stop_text_to_cut(llm);
}

// The others, by networks of random numbers whose tokens are bytes.
TEST(StopTextsOfOtherModels, CutACanvasOrAPartOfABlock) {
  const std::pair<const char*, const char*> pairs[] = {{"full_attention", "llada"},
                                                       {"dual_cache", "llada"},
                                                       {"fast_dllm_v2", "fast_dllm_v2"},
                                                       {"diffusion_gemma", "diffusion_gemma"}};
  for (const auto& [strategy, family] : pairs) {
    SCOPED_TRACE(strategy);
    LLMOptions of_bytes = options(strategy);
    of_bytes.random_weights = 1, of_bytes.max_model_len = 128;
    LLM llm(testing_support::golden_folder(family), of_bytes);
    expect_a_stop_text_to_cut(llm);
  }
}

INSTANTIATE_TEST_SUITE_P(FairyDiffusion, StopTexts,
                         testing::Values("autoregressive", "multi_bd", "multi_bd_edit", "d2f", "dmax"),
                         [](const auto& strategy) { return std::string(strategy.param); });

// A stop text that hid the whole output counted the tokens of it, and an end token counted as one of the text.
TEST(PuzzleDiffusion, TokensOfAStopTextAndEndTokensAreNotCounted) {
  LLM llm(kPuzzle, options("multi_bd"));
  const auto answer = [&llm](SamplingParams params) {
    params.max_tokens = 20, params.temperature = 0, params.decoding.threshold = 0.9f;
    return complete(llm, "sort: 79285432 =", params);
  };
  const Completion whole = answer({});
  EXPECT_EQ(whole.text, "22345789");
  EXPECT_EQ(whole.ids.size(), 9u) << "with the end token";
  EXPECT_EQ(whole.num_visible, 8);
  EXPECT_EQ(whole.logprobs.size(), whole.ids.size());
  const Completion cut = answer({.stop = {"578"}});
  EXPECT_EQ(cut.text, "2234");
  EXPECT_EQ(cut.num_visible, 4);
  EXPECT_EQ(cut.num_first, 4);
  EXPECT_DOUBLE_EQ(cut.tokens_per_forward(), 4.0 / cut.num_forwards);
  const Completion hidden = answer({.stop = {"22"}});
  EXPECT_EQ(hidden.text, "");
  EXPECT_EQ(hidden.num_visible, 0);
  EXPECT_EQ(hidden.num_first, 0);
  const Completion held = answer({.stop = {"9 and more"}});  // the last letter comes out with the end
  EXPECT_EQ(held.text, "22345789");
  EXPECT_EQ(held.num_visible, 8);
  const Completion on = answer({.end_of_text = SamplingParams::EndOfText::kIgnored});
  EXPECT_EQ(on.ids.size(), 20u);
  EXPECT_EQ(on.num_visible, static_cast<int32_t>(on.text.size())) << "a letter a token";
  EXPECT_LT(on.num_visible, 20);
}

// The demo's tokenizer with a token for the mask: text that spells it is text.
TEST(FairyDiffusion, B33_TheMaskTokensTextInAPromptIsPlainText) {
  const test::TempDir folder;
  for (const auto& file : std::filesystem::directory_iterator(kFairy)) {
    if (file.path().filename() != "tokenizer.json") {
      std::filesystem::create_symlink(file.path(), folder.path() / file.path().filename());
    }
  }
  std::ifstream in(kFairy / "tokenizer.json");
  std::string tokenizer((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string key = R"("added_tokens": [)";
  ASSERT_NE(tokenizer.find(key), std::string::npos);
  tokenizer.insert(tokenizer.find(key) + key.size(),
                   R"({"id": 4096, "content": "<|MASK|>", "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true},)");
  test::write_file(folder.path() / "tokenizer.json", tokenizer);
  LLM llm(folder.path(), options("multi_bd"));
  EXPECT_EQ(llm.model_info().diffusion->mask_token_id, 4096);
  for (const std::string prompt : {"Once <|MASK|> upon", "<|MASK|>", "a<|MASK|>"}) {
    const Completion c = complete(llm, prompt, {.max_tokens = 12, .temperature = 0});
    EXPECT_EQ(std::ranges::count(c.prompt_ids, 4096), 0) << prompt;
    EXPECT_EQ(std::ranges::count(c.ids, 4096), 0) << prompt;
    EXPECT_EQ(c.text.find("<|MASK|>"), std::string::npos) << prompt;
    EXPECT_FALSE(c.ids.empty()) << prompt;
  }
}

// Full attention runs a text as a whole, so a step takes what the context holds, not a prompt chunk.
TEST(FullAttention, APromptThatIsLongerThanAChunkIsDecoded) {
  const test::TempDir folder;
  test::write_file(folder.path() / "config.json",
                   R"({"architectures": ["LLaDAModelLM"], "model_type": "llada", "d_model": 32, "n_layers": 1,
                       "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 48, "vocab_size": 260, "embedding_size": 260,
                       "max_sequence_length": 1024, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "mask_token_id": 258,
                       "weight_tying": false})");
  LLMOptions random = options("auto");
  random.random_weights = 1;
  LLM llm(folder.path(), random);
  EXPECT_EQ(llm.engine().config().strategy, "full_attention");
  const Completion c = complete(llm, std::string(700, 'x'), {.max_tokens = 10, .temperature = 0});
  EXPECT_EQ(c.ids.size(), 10u);
  EXPECT_EQ(c.num_forwards, 10);  // random weights are sure of nothing
}

struct Item {
  std::string task, prompt, answer;
};

// Upper half of the 64-bit FNV-1a hash; modulo 64 it says whether a prompt is the test's (0) or may be trained on.
uint64_t part_of(const std::string& prompt) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : prompt) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return (hash >> 32) % 64;
}

// The first `count` items of each task.
std::vector<Item> first_items(int count) {
  std::ifstream in(kPuzzle / "test.jsonl");
  std::map<std::string, int> seen;
  std::vector<Item> items;
  for (std::string line; std::getline(in, line);) {
    const JsonValue value = JsonValue::parse(line, "test.jsonl");
    const std::string task = value.at("task").as_string();
    if (seen[task]++ < count) items.push_back({task, value.at("prompt").as_string(), value.at("answer").as_string()});
  }
  EXPECT_EQ(seen.size(), 4u);
  return items;
}

TEST(PuzzleDiffusion, NoTestItemWasOneToTrainOn) {
  const std::vector<Item> items = first_items(1000);
  EXPECT_EQ(items.size(), 400u);
  for (const Item& item : items) EXPECT_EQ(part_of(item.prompt), 0u) << item.prompt;
}

TEST(PuzzleDiffusion, SolvesTestItemsInBlocksAndTokenByToken) {
  for (const std::string strategy : {"multi_bd", "autoregressive"}) {
    LLM llm(kPuzzle, options(strategy));
    int right = 0, all = 0;
    const int64_t before = llm.engine().counters().steps;
    int64_t tokens = 0;
    for (const Item& item : first_items(5)) {
      SamplingParams params{.max_tokens = static_cast<int32_t>(item.answer.size()), .temperature = 0};
      if (strategy == "multi_bd") params.decoding.threshold = 0.9f;
      const Completion c = complete(llm, item.prompt, params);
      right += c.text == item.answer ? 1 : 0;
      ++all;
      tokens += static_cast<int64_t>(item.answer.size());
    }
    EXPECT_GE(right, all - 1) << strategy;
    const double per_forward =
        static_cast<double>(tokens) / static_cast<double>(llm.engine().counters().steps - before);
    EXPECT_GE(per_forward, strategy == "multi_bd" ? 5.0 : 1.0);
  }
}

TEST(PuzzleDiffusion, TheNetworkEndsAnAnswerByItself) {
  LLM llm(kPuzzle, options("multi_bd"));
  const Completion c = complete(llm, "add: 123 + 456 =", {.max_tokens = 40, .temperature = 0});
  EXPECT_EQ(c.text, "0579");
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
}

// Prompts of every length that it was trained on, most of which end within a block, and some with spaces before or
// behind them.
std::vector<Item> items_of_odd_lengths() {
  return {{"add", "add: 1 + 1 =", "0002"},
          {"add", "add: 12 + 30 =", "0042"},
          {"add", "add: 7 + 935 =", "0942"},
          {"add", "add: 999 + 9 =", "1008"},
          {"add", "  add: 48 + 765 =", "0813"},
          {"sort", "sort: 1 =", "1"},
          {"sort", "sort: 20 =", "02"},
          {"sort", "sort: 5391 =", "1359"},
          {"sort", "sort: 3141592 =", "1123459"},
          {"sort", " sort: 86420 = ", "02468"},
          {"reverse", "rev:a", "a"},
          {"reverse", "rev:hello", "olleh"},
          {"reverse", "rev:diffusion", "noisuffid"},
          {"reverse", "   rev:headrace", "ecardaeh"},
          {"sudoku", "sudoku 4x4: .432 3... .1.. .341=", "1432321441232341"}};
}

class PuzzleLlada : public testing::TestWithParam<const char*> {};

void expect_right_answers(LLM& llm, const std::vector<Item>& items) {
  for (const Item& item : items) {
    const Completion c = complete(llm, item.prompt, {.max_tokens = 32, .temperature = 0});
    EXPECT_EQ(c.text, item.answer) << item.prompt;
    EXPECT_EQ(c.finish_reason, FinishReason::kStop) << item.prompt;
  }
}

TEST_P(PuzzleLlada, SolvesTestItems) {
  LLM llm(kLlada, options(GetParam()));
  const int64_t before = llm.engine().counters().steps;
  expect_right_answers(llm, first_items(5));
  EXPECT_LE(llm.engine().counters().steps - before, 3 * 20) << "several tokens a pass";
}

TEST_P(PuzzleLlada, SolvesPuzzlesOfAnyLength) {
  LLM llm(kLlada, options(GetParam()));
  expect_right_answers(llm, items_of_odd_lengths());
}

INSTANTIATE_TEST_SUITE_P(OfFullAttention, PuzzleLlada, testing::Values("full_attention", "dual_cache", "d2f"),
                         [](const auto& strategy) { return std::string(strategy.param); });

TEST(PuzzleLladaModel, ItsOwnStrategyIsFullAttention) {
  EXPECT_EQ(LLM(kLlada, options("auto")).config().strategy, "full_attention");
}

}  // namespace
}  // namespace headrace
