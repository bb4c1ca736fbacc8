// Chats with hybrid models: a turn goes on behind the states and the text that earlier ones left, and says what it
// would say if all of it were computed again; in strict mode to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/golden_batches.h"
#include "headrace/core/device_runtime.h"
#include "headrace/engine/engine.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "support/device_mirror.h"
#include "support/gpu.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

using KeepText = SchedulerConfig::KeepText;
using Ids = std::vector<int32_t>;

constexpr int32_t kPage = 16, kPages = 48, kRequests = 2;

struct Setting {
  KeepText keep = KeepText::kYes;
  int32_t cached_states = 8;
  Determinism determinism = Determinism::kStrict;
  int64_t rows = 100;               // of a step
  DeviceRuntime* device = nullptr;  // null: the CPU
  std::optional<std::string> kernel_set = {};
};

OpContext context_of(const Setting& s) {
  return {.threads = 2, .determinism = s.determinism, .stream = s.device != nullptr ? s.device->stream() : nullptr};
}

struct Answer {
  Ids ids;
  std::vector<float> logprobs;
  int32_t num_reused = 0;
};

class Chat {
 public:
  Chat(const Model& model, const Setting& setting) : engine_(model, config_of(setting)) {}

  // Who is over takes part no more. `stop_after`: tokens after which the caller wants no more.
  Answer ask(const Ids& prompt, int32_t max_tokens, int32_t stop_after = 1 << 20) {
    const int64_t id = start(prompt, max_tokens);
    while (static_cast<int32_t>(answers_[id].ids.size()) < std::min(max_tokens, stop_after)) step();
    engine_.abort(id);
    return answers_[id];
  }

  int64_t start(const Ids& prompt, int32_t max_tokens) {
    return engine_.add(
        prompt, {.max_tokens = max_tokens, .temperature = 0, .end_of_text = SamplingParams::EndOfText::kIgnored});
  }
  void step() {
    for (const StepOutput& out : engine_.step()) {
      Answer& answer = answers_[out.sequence_id];
      answer.ids.push_back(out.token.id);
      answer.logprobs.push_back(out.token.logprob);
      answer.num_reused = out.num_reused;
    }
  }
  const Answer& answer(int64_t id) { return answers_[id]; }
  Engine& engine() { return engine_; }

  void expect_all_free(int32_t cached_states) {
    EXPECT_TRUE(engine_.idle());
    EXPECT_EQ(engine_.scheduler().free_pages(), kPages);
    EXPECT_EQ(engine_.scheduler().free_states(), kRequests + cached_states);
  }

 private:
  static EngineConfig config_of(const Setting& s) {
    RunnerConfig runner{.kernel_set = s.kernel_set,
                        .context = context_of(s),
                        .num_pages = kPages,
                        .page_size = kPage,
                        .num_states = kRequests + s.cached_states,
                        .max_tokens = s.rows};
    if (s.device != nullptr) runner.runtime = s.device;
    return {.runner = runner, .max_requests = kRequests, .max_context_len = 384, .keep_text = s.keep};
  }

  Engine engine_;
  std::map<int64_t, Answer> answers_;
};

Ids text_of(uint64_t seed, int32_t length) {
  Random random(seed);
  Ids ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(random.below(200)));
  return ids;
}

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// `got`, of a chat that keeps texts, is what one without any says.
void expect_same(const Answer& got, const Model& model, Setting setting, const Ids& prompt) {
  setting.keep = KeepText::kNo;
  const Answer want = Chat(model, setting).ask(prompt, static_cast<int32_t>(got.ids.size()));
  EXPECT_EQ(want.num_reused, 0);
  EXPECT_EQ(got.ids, want.ids);
  if (setting.determinism != Determinism::kStrict) return;
  EXPECT_EQ(got.logprobs, want.logprobs);
}

// Three turns; the third one's template has rewritten the second answer, as those do that leave thoughts out. Then the
// second one again, with another question.
void expect_turns_to_go_on(const Model& model, const Setting& setting) {
  Chat chat(model, setting);
  const Ids first = text_of(1, 70);
  const Answer one = chat.ask(first, 43);  // 112 of 113 tokens are cached: seven pages
  EXPECT_EQ(one.num_reused, 0);
  const Ids second = joined(joined(first, one.ids), text_of(2, 20));
  const Answer two = chat.ask(second, 50);
  EXPECT_EQ(two.num_reused, 112);
  expect_same(two, model, setting, second);
  const Ids third = joined(joined(second, text_of(3, 30)), text_of(4, 9));
  const Answer three = chat.ask(third, 12);
  EXPECT_EQ(three.num_reused, 128) << "the last whole page of the second prompt, of 133";
  expect_same(three, model, setting, third);
  const Ids other = joined(joined(first, one.ids), text_of(5, 20));
  const Answer again = chat.ask(other, 12);
  EXPECT_EQ(again.num_reused, 112);
  expect_same(again, model, setting, other);
  chat.expect_all_free(setting.cached_states);
}

class KeptStatesOfHybrids : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Model> load(const Setting& setting, DType dtype = DType::kF32) {
    ModelOptions options{.dtype = dtype, .context = context_of(setting)};
    if (setting.kernel_set) options.ops = &cpu::select_kernel_set(setting.kernel_set);
    if (setting.device != nullptr) options.ops = &cuda_module().ops("cuda"), options.runtime = setting.device;
    return load_model(golden_folder(GetParam()), options);
  }
};

TEST_P(KeptStatesOfHybrids, TurnsGoOnBehindWhatEarlierOnesLeftAndChangeNoBit) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!set.runs_here()) continue;
    SCOPED_TRACE(set.ops->name);
    const Setting setting{.kernel_set = std::string(set.ops->name)};
    for (const DType dtype : {DType::kF32, DType::kBF16}) expect_turns_to_go_on(*load(setting, dtype), setting);
  }
}

TEST_P(KeptStatesOfHybrids, TurnsSayTheSameInFastMode) {
  const Setting setting{.determinism = Determinism::kFast};
  expect_turns_to_go_on(*load(setting), setting);
}

TEST_P(KeptStatesOfHybrids, PromptsThatAreCutLeaveTheSameStates) {
  const Setting setting{.rows = 13};
  expect_turns_to_go_on(*load(setting), setting);
}

TEST_P(KeptStatesOfHybrids, TurnsGoOnOnADevice) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const Determinism determinism : {Determinism::kStrict, Determinism::kFast}) {
    const Setting setting{.determinism = determinism, .device = &testing_support::gpu()};
    expect_turns_to_go_on(*load(setting), setting);
  }
}

TEST_P(KeptStatesOfHybrids, WhoeverStopsEarlyLeavesWhatItHasSaid) {
  const Setting setting;
  const auto model = load(setting);
  for (const int32_t said : {1, 10, 11, 12, 30}) {
    SCOPED_TRACE(said);
    Chat chat(*model, setting);
    const Ids first = text_of(1, 70);
    const Answer one = chat.ask(first, 100, said);  // all but the last token are cached: 80 with 11
    ASSERT_EQ(static_cast<int32_t>(one.ids.size()), said);
    const Ids second = joined(joined(first, one.ids), text_of(2, 20));
    const Answer two = chat.ask(second, 8);
    EXPECT_EQ(two.num_reused, (70 + said - 1) / kPage * kPage);
    expect_same(two, *model, setting, second);
    chat.expect_all_free(setting.cached_states);
  }
}

TEST_P(KeptStatesOfHybrids, APromptThatIsAbortedLeavesWhatItHasPassed) {
  const Setting setting{.rows = 48};
  const auto model = load(setting);
  Chat chat(*model, setting);
  const Ids prompt = text_of(1, 200);
  const int64_t id = chat.start(prompt, 5);
  for (int i = 0; i < 2; ++i) chat.step();
  chat.engine().abort(id);
  const Answer answer = chat.ask(prompt, 8);
  EXPECT_EQ(answer.num_reused, 96);
  expect_same(answer, *model, setting, prompt);
}

// Two requests at a time in turns of three chats, with room for the states of about one: whoever finds nothing computes
// all of it and says the same.
TEST_P(KeptStatesOfHybrids, StatesThatGaveWayAreComputedAgain) {
  const Setting setting{.cached_states = 3};
  const auto model = load(setting);
  Chat chat(*model, setting);
  std::vector<Ids> texts = {text_of(1, 40), joined(text_of(1, 33), text_of(2, 9)), text_of(3, 50)};
  int32_t most = 0;
  bool nothing = false;
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t c = 0; c < texts.size(); ++c) {
      const Ids other = joined(text_of(1, 33), text_of(100 + static_cast<uint64_t>(turn), 20));
      const int64_t id = chat.start(texts[c], 20), beside = chat.start(other, 9);
      while (!chat.engine().idle()) chat.step();
      expect_same(chat.answer(id), *model, setting, texts[c]);
      expect_same(chat.answer(beside), *model, setting, other);
      most = std::max(most, chat.answer(id).num_reused);
      nothing |= turn > 0 && chat.answer(id).num_reused == 0;
      texts[c] = joined(joined(texts[c], chat.answer(id).ids), text_of(50 + c, 7));
    }
  }
  EXPECT_GT(most, 0);
  EXPECT_TRUE(nothing) << "nothing gave way";
  chat.expect_all_free(setting.cached_states);
}

TEST_P(KeptStatesOfHybrids, ScoresBetweenTurnsReadNothingAndLeaveNothing) {
  const Setting setting;
  const auto model = load(setting);
  Chat chat(*model, setting);
  const Ids first = text_of(1, 70);
  const Answer one = chat.ask(first, 43);
  const Ids second = joined(joined(first, one.ids), text_of(2, 20));
  Setting none = setting;
  none.keep = KeepText::kNo;
  const Ids part(second.begin(), second.begin() + 96);
  EXPECT_EQ(chat.engine().score(part), Chat(*model, none).engine().score(part));
  const Answer two = chat.ask(second, 8);
  EXPECT_EQ(two.num_reused, 112);
  expect_same(two, *model, setting, second);
  chat.expect_all_free(setting.cached_states);
}

// A dense family and a hybrid one; each tail parts from the cached text at another place of a page.
TEST(PrefixHits, SayWhatMissesSayForEveryTail) {
  for (const char* family : {"qwen3", "qwen3_5"}) {
    for (const Determinism determinism : {Determinism::kStrict, Determinism::kFast}) {
      const Setting setting{.determinism = determinism};
      const auto model = load_model(golden_folder(family), {.context = context_of(setting)});
      Chat chat(*model, setting);
      const Ids text = text_of(7, 200);
      chat.ask(text, 2);
      int32_t hits = 0;
      for (int32_t tail = 1; tail <= 130; ++tail) {
        SCOPED_TRACE(str(family, ", a tail of ", tail));
        const Ids prompt = joined(Ids(text.begin(), text.begin() + 80 + tail % 40), text_of(8, tail));
        const Answer got = chat.ask(prompt, 2);
        hits += got.num_reused > 0 ? 1 : 0;
        expect_same(got, *model, setting, prompt);
      }
      EXPECT_GT(hits, 120) << family;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, KeptStatesOfHybrids, testing::Values("qwen3_next", "qwen3_5", "qwen3_5_moe"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace headrace::testing_support
