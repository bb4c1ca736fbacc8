// Over 400 lines: one memory that knows what each slot stands for serves all tests.
// Requests whose prompts begin alike: what is computed once, what is shared, and that nobody reads or writes what is
// not his. The scheduler and the strategies are real; memory is a map from slots to what a token there stands for.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "headrace/engine/scheduler.h"
#include "support/random.h"

namespace headrace {
namespace {

using testing_support::Random;
using KeepText = SchedulerConfig::KeepText;
using Ids = std::vector<int32_t>;

constexpr int32_t kPage = 16, kMask = 95;

std::unique_ptr<DecodingStrategy> strategy_of(const std::string& name) {
  if (name == "autoregressive") return make_strategy(name, {});
  DiffusionInfo info{.mask_token_id = kMask, .block_size = 8, .sub_block_size = 8};
  if (name == "fast_dllm_v2") {
    info.block_size = 32;
    info.logits_of = DiffusionInfo::LogitsOf::kBefore;
  }
  if (name == "full_attention" || name == "dual_cache") info.attention = DiffusionInfo::Attention::kFull;
  if (name == "diffusion_gemma") {
    info.attention = DiffusionInfo::Attention::kCanvas;
    info.canvas.noise_vocab = 90;
  }
  return make_strategy(name, {.model = info});
}

SchedulerConfig sharing_config_of(int32_t rows_per_step = 512, int32_t num_pages = 64) {
  return {.num_pages = num_pages,
          .page_size = kPage,
          .max_requests = 8,
          .max_context_len = 256,
          .max_tokens_per_step = rows_per_step,
          .keep_text = KeepText::kYes};
}

// `kept`: states beyond those of running requests.
SchedulerConfig recurrent(SchedulerConfig config, int32_t kept = 0) {
  config.num_states = config.max_requests + kept;
  return config;
}

Ids prompt_of(int32_t length, int32_t seed = 0) {
  Ids ids;
  for (int32_t p = 0; p < length; ++p) ids.push_back((seed * 31 + p * p * 7 + p * 3) % 90);
  return ids;
}

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class SharedTraffic {
 public:
  SharedTraffic(const std::string& strategy, const SchedulerConfig& config, uint64_t seed = 1)
      : strategy_(strategy_of(strategy)), scheduler_(config, *strategy_), random_(seed) {}

  int64_t add(Ids prompt, int32_t max_tokens = 4) {
    auto s = std::make_unique<Sequence>();
    s->id = next_id_++;
    s->params.temperature = 0;
    s->prompt_len = s->num_published = static_cast<int32_t>(prompt.size());
    s->limit = s->prompt_len + max_tokens;
    s->tokens = std::move(prompt);
    strategy_->start(*s);
    scheduler_.add(*s);
    return sequences_.emplace(s->id, std::move(s)).first->first;
  }

  // The rows of a step: "1:0+37 2:32+5" are 37 of request 1 from position 0 on, and five of request 2.
  std::string step() {
    const std::vector<ScheduledStep> steps = scheduler_.next();
    scheduler_.audit();
    for (const StateCopy& copy : scheduler_.take_state_copies()) states_[copy.to] = states_.at(copy.from);
    std::string trace;
    for (const ScheduledStep& one : steps) {
      EXPECT_FALSE(one.plan.spans.empty());
      for (const PlannedSpan& span : one.plan.spans) {
        trace += str(trace.empty() ? "" : " ", one.sequence->id, ":", span.keys.phys0, "+", span.keys.q_len);
        read(one, span);
      }
      num_rows += one.plan.num_rows();
    }
    for (const ScheduledStep& one : steps) {
      for (const PlannedSpan& span : one.plan.spans) write(one, span);
      write_states(one, steps);
    }
    for (const ScheduledStep& one : steps) commit(one);
    return trace;
  }

  void plan_only() { scheduler_.next(); }
  bool preempt(int64_t id) { return scheduler_.preempt(*sequences_.at(id)); }

  void abort(int64_t id) {
    const Sequence& s = *sequences_.at(id);
    last_text.assign(s.tokens.begin(), s.tokens.begin() + s.num_final);
    scheduler_.release(*sequences_.at(id));
    sequences_.erase(id);
  }

  bool idle() const { return scheduler_.idle(); }
  bool runs(int64_t id) const { return sequences_.contains(id); }
  const Sequence& sequence(int64_t id) const { return *sequences_.at(id); }
  const std::map<int64_t, std::unique_ptr<Sequence>>& sequences() const { return sequences_; }
  const Scheduler& scheduler() const { return scheduler_; }

  int64_t num_rows = 0;
  Ids last_text;  // of the request that was over last

 private:
  // What K and V, or a state, of the first `count` tokens stand for.
  static uint64_t text_of(const Sequence& s, int32_t count) {
    uint64_t text = 0xcbf29ce484222325;
    for (int32_t p = 0; p < count; ++p)
      text = (text ^ static_cast<uint64_t>(s.tokens[static_cast<size_t>(p)] + 1)) * 0x100000001b3;
    return text;
  }

  int64_t slot_of(const Sequence& s, int32_t position) const {
    const int64_t slot = scheduler_.table().slot_of(s.table_row, position);
    EXPECT_EQ(slot / kPage, s.pages[static_cast<size_t>(position / kPage)]) << "the table has another page";
    return slot;
  }

  void read(const ScheduledStep& step, const PlannedSpan& span) {
    const Sequence& s = *step.sequence;
    for (int32_t p = 0; p < std::min(span.keys.ctx_len, s.num_cached); ++p) {
      const auto found = memory_.find(slot_of(s, p));
      ASSERT_TRUE(found != memory_.end() && found->second == text_of(s, p + 1))
          << "request " << s.id << " reads at " << p << " what is not its text";
    }
    if (s.state_slot != kNoState && span.keys.phys0 > 0) {
      ASSERT_EQ(states_.at(step.state_from.value_or(s.state_slot)), text_of(s, span.keys.phys0))
          << "request " << s.id << " from another state";
    }
  }

  void write(const ScheduledStep& step, const PlannedSpan& span) {
    const Sequence& s = *step.sequence;
    for (int32_t p = span.store.begin; p < span.store.end; ++p) {
      const int64_t slot = slot_of(s, p);
      for (const auto& [id, other] : sequences_) {
        if (id == s.id) continue;
        const auto readable = static_cast<std::ptrdiff_t>((other->num_cached + kPage - 1) / kPage);
        const auto end = other->pages.begin() + std::min(readable, static_cast<std::ptrdiff_t>(other->pages.size()));
        ASSERT_TRUE(std::find(other->pages.begin(), end, slot / kPage) == end)
            << "request " << s.id << " writes at " << p << " what request " << id << " reads";
      }
      memory_[slot] = text_of(s, p + 1);
    }
  }

  void write_states(const ScheduledStep& step, const std::vector<ScheduledStep>& steps) {
    const Sequence& s = *step.sequence;
    if (s.state_slot == kNoState) return;
    states_[s.state_slot] = text_of(s, step.plan.stored_end(s.num_cached));
    for (const StateMark& mark : step.left) {
      EXPECT_TRUE(mark.num_tokens > s.num_cached && mark.num_tokens <= step.plan.stored_end(s.num_cached));
      EXPECT_EQ(mark.num_tokens % kPage, 0);
      states_[mark.slot] = text_of(s, mark.num_tokens);
    }
    for (const ScheduledStep& other : steps) {
      const int32_t read = other.state_from.value_or(other.sequence->state_slot);
      EXPECT_TRUE(other.sequence == &s || read != s.state_slot) << "read and written in one step";
      for (const StateMark& mark : step.left) EXPECT_NE(read, mark.slot) << "read and written in one step";
    }
  }

  void commit(const ScheduledStep& one) {
    Sequence& s = *one.sequence;
    const SmallVector<SampleRow>& rows = one.plan.sample;
    std::vector<SampledToken> sampled;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto id = static_cast<int32_t>(random_.below(90));
      const float confidence = random_.below(2) == 0 ? 0.2f : 0.97f;
      sampled.push_back({.id = id, .confidence = confidence, .best_id = id});
    }
    if (!rows.empty()) ++s.num_forwards;
    // What a pass stores must be what its tokens stand for after it: text that is final before.
    strategy_->commit(s, one.plan, sampled);
    s.num_published = std::max(s.num_published, s.num_final);
    if (s.num_final >= s.limit) abort(s.id);
  }

  std::unique_ptr<DecodingStrategy> strategy_;
  Scheduler scheduler_;
  Random random_;
  std::map<int64_t, std::unique_ptr<Sequence>> sequences_;
  std::map<int64_t, uint64_t> memory_;  // by slot of K and V
  std::map<int32_t, uint64_t> states_;  // by slot
  int64_t next_id_ = 1;
};

TEST(SharedPrompts, EqualPromptsAreComputedOnceWhenTheyComeTogether) {
  SharedTraffic traffic("autoregressive", sharing_config_of());
  for (int i = 0; i < 3; ++i) traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:0+37");
  EXPECT_EQ(traffic.step(), "1:37+1 2:32+5 3:32+5");
  EXPECT_EQ(traffic.sequence(1).pages[1], traffic.sequence(2).pages[1]);
  EXPECT_NE(traffic.sequence(1).pages[2], traffic.sequence(2).pages[2]);
  EXPECT_EQ(traffic.step(), "1:38+1 2:37+1 3:37+1");
}

TEST(SharedPrompts, WhoeverComesLaterSharesWhatIsStoredAndWaitsForTheRest) {
  SharedTraffic traffic("autoregressive", sharing_config_of(40));
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "1:0+40");
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "1:40+40");
  EXPECT_EQ(traffic.sequence(2).num_cached, 32);
  EXPECT_TRUE(traffic.scheduler().any_held_back());
  EXPECT_EQ(traffic.step(), "1:80+10 2:80+10");
  EXPECT_FALSE(traffic.scheduler().any_held_back());
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "1:90+1 2:90+1 3:80+10");
}

TEST(SharedPrompts, WholePagesAloneAreShared) {
  for (const auto& [common, shared] : {std::pair{15, 0}, {16, 16}, {31, 16}, {32, 32}}) {
    SharedTraffic traffic("autoregressive", sharing_config_of());
    traffic.add(joined(prompt_of(common), {1, 1, 1, 1}));
    traffic.add(joined(prompt_of(common), {2, 2}));
    const std::string behind = str("2:", shared, "+", common + 2 - shared);
    EXPECT_EQ(traffic.step(), str("1:0+", common + 4, shared == 0 ? " " + behind : ""));
    EXPECT_EQ(traffic.step(), str("1:", common + 4, "+1 ", shared == 0 ? str("2:", common + 2, "+1") : behind));
  }
}

TEST(SharedPrompts, OneTokenOfAPromptAlwaysRuns) {
  SharedTraffic traffic("autoregressive", sharing_config_of());
  for (int i = 0; i < 2; ++i) traffic.add(prompt_of(32));
  EXPECT_EQ(traffic.step(), "1:0+32");
  EXPECT_EQ(traffic.step(), "1:32+1 2:16+16");
}

TEST(SharedPrompts, AnAbortedRequestLeavesWhatItHasStoredAndTheNextOneGoesOn) {
  SharedTraffic traffic("autoregressive", sharing_config_of(40));
  for (int i = 0; i < 3; ++i) traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "1:0+40");
  traffic.abort(1);
  EXPECT_EQ(traffic.step(), "2:32+40");
  EXPECT_EQ(traffic.step(), "2:72+18");
  traffic.abort(3);  // it waited for 2
  EXPECT_EQ(traffic.step(), "2:90+1");
  traffic.abort(2);
  EXPECT_EQ(traffic.scheduler().free_pages(), 64);
}

TEST(SharedPrompts, OthersAreNotHeldBackAndTakeTheRoom) {
  SharedTraffic traffic("autoregressive", sharing_config_of(60));
  traffic.add(prompt_of(90));
  traffic.add(prompt_of(90));
  traffic.add(prompt_of(30, 5));
  EXPECT_EQ(traffic.step(), "1:0+30 3:0+30");  // the shortest first, but the oldest has a quarter at least
  EXPECT_EQ(traffic.step(), "3:30+1 1:30+59");
  EXPECT_EQ(traffic.step(), "3:31+1 1:89+1 2:80+10");
}

TEST(SharedPrompts, WhatIsSharedNeedsNoRoomOfItsOwn) {
  SharedTraffic traffic("autoregressive", sharing_config_of(512, 4));  // three pages for one, and a page more
  for (int i = 0; i < 2; ++i) traffic.add(prompt_of(37), 8);
  EXPECT_EQ(traffic.step(), "1:0+37");
  EXPECT_EQ(traffic.step(), "1:37+1 2:32+5");
}

TEST(SharedPrompts, AKeptTextIsSharedByAllThatBeginWithIt) {
  SharedTraffic traffic("autoregressive", sharing_config_of());
  traffic.add(prompt_of(37), 1);
  EXPECT_EQ(traffic.step(), "1:0+37");
  for (int i = 0; i < 2; ++i) traffic.add(prompt_of(37));
  traffic.add(joined(prompt_of(20), {3, 3}));
  EXPECT_EQ(traffic.step(), "2:32+5 3:32+5 4:16+6");
  EXPECT_EQ(traffic.sequence(2).pages[1], traffic.sequence(3).pages[1]);
}

TEST(SharedPrompts, NothingIsSharedWhereTextIsNotKept) {
  SchedulerConfig config = sharing_config_of();
  config.keep_text = KeepText::kNo;
  SharedTraffic traffic("autoregressive", config);
  for (int i = 0; i < 2; ++i) traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:0+37 2:0+37");
}

TEST(SharedPrompts, AStateIsCopiedWhereTheCommonPagesEnd) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(), 2));
  traffic.add(prompt_of(37));
  traffic.add(joined(prompt_of(20), {3, 3}));
  traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:0+37");  // it leaves a state where 2 goes on by itself, and one where 3 does
  EXPECT_EQ(traffic.step(), "1:37+1 2:16+6 3:32+5");
  traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:38+1 2:22+1 3:37+1 4:32+5");
}

TEST(SharedPrompts, RecurrentRequestsShareNothingWithoutRoomForStates) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of()));
  traffic.add(prompt_of(37));
  traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:0+37 2:0+37");
}

TEST(SharedPrompts, AnAbortedRequestsStateIsComputedByTheNextOne) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(20), 2));
  for (int i = 0; i < 3; ++i) traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:0+16");  // chunks end with pages, where they leave a state
  traffic.abort(1);
  EXPECT_EQ(traffic.step(), "2:16+16");
  traffic.abort(2);  // its slot is free, and what it held goes to 3 before anybody else has it
  traffic.add(prompt_of(9, 4));
  EXPECT_EQ(traffic.step(), "3:32+5 4:0+9");
}

TEST(SharedPrompts, BlocksOfAPromptAreSharedWithThoseThatAreDenoised) {
  SharedTraffic traffic("multi_bd", sharing_config_of());
  for (int i = 0; i < 2; ++i) traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:0+40");  // 32 of whole blocks are stored
  const std::string second = traffic.step();
  EXPECT_EQ(second.substr(second.find("2:")), "2:32+8") << second;
}

TEST(SharedPrompts, ABlockOfSeveralPagesIsSharedWhole) {
  SharedTraffic traffic("fast_dllm_v2", sharing_config_of());  // blocks of two pages
  traffic.add(joined(prompt_of(50), Ids(50, 1)), 60);
  traffic.add(joined(prompt_of(50), Ids(50, 2)), 60);
  traffic.step();
  traffic.step();
  EXPECT_EQ(traffic.sequence(1).pages[1], traffic.sequence(2).pages[1]);
  EXPECT_NE(traffic.sequence(1).pages[2], traffic.sequence(2).pages[2]);
}

TEST(SharedPrompts, KeysThatDependOnWhatIsBehindThemAreNeverShared) {
  for (const char* strategy : {"d2f", "full_attention", "dual_cache"}) {
    SharedTraffic traffic(strategy, sharing_config_of());
    for (int i = 0; i < 2; ++i) traffic.add(prompt_of(37));
    const std::string first = traffic.step();
    EXPECT_NE(first.find("2:0+"), std::string::npos) << strategy << ": " << first;
  }
}

// 3 comes when 1 has passed what they have in common; 2, which waits for 1, will take the state of more tokens too.
TEST(SharedPrompts, AStateOfMoreTokensThanAreInCommonIsNotCopied) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(60), 2));
  traffic.add(prompt_of(90));
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "1:0+48");
  traffic.add(joined(prompt_of(20), {3, 3}));
  EXPECT_EQ(traffic.step(), "1:48+32 3:0+22");
  EXPECT_EQ(traffic.step(), "3:22+1 1:80+10 2:80+10");
}

TEST(SharedPrompts, ARecurrentTextThatIsOverGoesOnBehindItsLastWholePage) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(), 4));
  traffic.add(prompt_of(20), 30);
  traffic.step();
  for (int32_t i = 0; i < 28; ++i) traffic.step();  // 48 are cached, and 49 known
  const Ids known = traffic.sequence(1).tokens;
  traffic.step();
  ASSERT_TRUE(traffic.idle());
  traffic.add(joined(Ids(known), {1, 2}));
  EXPECT_EQ(traffic.step(), "2:48+3");
  EXPECT_EQ(traffic.sequence(2).num_reused, 48);
  traffic.add(joined(Ids(known.begin(), known.begin() + 40), {1, 2}));  // inside the answer: behind the prompt's page
  EXPECT_EQ(traffic.step(), "2:51+1 3:16+26");
  traffic.add(joined(Ids(known.begin(), known.begin() + 40), {3, 2}));  // its state at 32 was left by the one before
  EXPECT_EQ(traffic.step(), "2:52+1 3:42+1 4:32+10");
}

TEST(SharedPrompts, ARecurrentRequestThatEndsAtAPagesEndLeavesItsOwnState) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(), 1));
  traffic.add(prompt_of(15), 2);
  EXPECT_EQ(traffic.step(), "1:0+15");
  const Ids known = traffic.sequence(1).tokens;
  EXPECT_EQ(traffic.step(), "1:15+1");
  ASSERT_TRUE(traffic.idle());
  traffic.add(joined(Ids(known), {1, 2}));
  EXPECT_EQ(traffic.step(), "2:16+2");
}

TEST(SharedPrompts, AStateIsLeftWhereAThirdRequestWillPart) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(), 8));
  const auto ask = [&](int32_t seed) { return traffic.add(joined(prompt_of(40), prompt_of(30, seed)), 1); };
  ask(3);
  EXPECT_EQ(traffic.step(), "1:0+70");  // nobody knows yet where others part from it
  ask(4);
  EXPECT_EQ(traffic.step(), "2:0+70");
  ask(5);
  EXPECT_EQ(traffic.step(), "3:32+38");
}

TEST(SharedPrompts, ARunningRequestsPromptCanBeGoneOnBehindToo) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(), 8));
  traffic.add(prompt_of(37), 20);
  EXPECT_EQ(traffic.step(), "1:0+37");
  traffic.add(prompt_of(37));
  EXPECT_EQ(traffic.step(), "1:37+1 2:32+5");
  EXPECT_EQ(traffic.sequence(1).pages[1], traffic.sequence(2).pages[1]);
}

TEST(SharedPrompts, StatesThatWereUsedLongestAgoGiveWay) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(), 2));
  const auto one_token = [&](int32_t seed) { return traffic.add(prompt_of(37, seed), 1); };
  for (const int32_t seed : {1, 2}) one_token(seed), traffic.step();
  one_token(1);
  EXPECT_EQ(traffic.step(), "3:32+5");
  one_token(3);  // 2's goes
  EXPECT_EQ(traffic.step(), "4:0+37");
  one_token(1);
  EXPECT_EQ(traffic.step(), "5:32+5");
  one_token(2);
  EXPECT_EQ(traffic.step(), "6:0+37");
}

TEST(SharedPrompts, AnAbortedRecurrentRequestLeavesWhatItHasPassed) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(40), 4));
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "1:0+32");
  traffic.abort(1);
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "2:32+32");
  EXPECT_EQ(traffic.step(), "2:64+26");
  traffic.abort(2);
  traffic.add(joined(prompt_of(40), {1, 2}));
  EXPECT_EQ(traffic.step(), "3:32+10");
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "3:42+1 4:80+10");
  while (!traffic.idle()) traffic.step();
  EXPECT_EQ(traffic.scheduler().free_states(), 12);
}

TEST(SharedPrompts, AStateOfAStepThatDidNotRunIsNotKept) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(32), 4));
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "1:0+32");
  traffic.plan_only();  // the model threw: whatever is in the slots that it wrote is no text's state
  traffic.abort(1);
  EXPECT_EQ(traffic.scheduler().free_states(), 12);
  traffic.add(prompt_of(90));
  EXPECT_EQ(traffic.step(), "2:32+32");  // from what the first step left
}

TEST(SharedPrompts, ASlotForAStateOfAStepThatDidNotRunIsFreeAgain) {
  SharedTraffic traffic("autoregressive", recurrent(sharing_config_of(), 1));
  traffic.add(prompt_of(90));
  traffic.plan_only();
  traffic.abort(1);
  EXPECT_EQ(traffic.scheduler().free_states(), 9);
  traffic.add(prompt_of(37), 1);
  EXPECT_EQ(traffic.step(), "2:0+37");
  traffic.add(prompt_of(37), 1);
  EXPECT_EQ(traffic.step(), "3:32+5");
}

// Text that grew longer than a step is run again in several.
TEST(Preemption, StepsOfALongTextStayWithinTheirRows) {
  for (const char* strategy : {"autoregressive", "multi_bd", "d2f"}) {
    constexpr int32_t kRows = 48;
    SharedTraffic traffic(strategy, sharing_config_of(kRows));
    const int64_t id = traffic.add(prompt_of(20), 120);
    while (traffic.sequence(id).num_final < 120) traffic.step();
    ASSERT_TRUE(traffic.preempt(id)) << strategy;
    while (!traffic.idle()) {
      const int64_t before = traffic.num_rows;
      ASSERT_FALSE(traffic.step().empty()) << strategy;
      EXPECT_LE(traffic.num_rows - before, kRows) << strategy;
    }
  }
}

struct Mix {
  std::string strategy;
  bool recurrent = false;
  int32_t cached_states = 0;
  friend std::ostream& operator<<(std::ostream& out, const Mix& m) {
    return out << m.strategy << (m.recurrent ? str("_recurrent", m.cached_states) : "");
  }
};

class RandomTraffic : public testing::TestWithParam<Mix> {
 protected:
  // A beginning of one of two texts, or all of one that is over, and something behind it.
  static Ids prompt(Random& random, const Ids& over) {
    const auto common = static_cast<int32_t>(random.below(100)), text = static_cast<int32_t>(random.below(2));
    Ids ids = random.below(3) == 0 && over.size() < 150 ? over : prompt_of(common, 10 + text);
    const auto more = static_cast<int32_t>(1 + random.below(12));
    return joined(std::move(ids), prompt_of(more, static_cast<int32_t>(random.below(3))));
  }
};

// Requests come, end and are aborted at random, in a pool that is often full: no text is read or written by mistake,
// every step runs something, all requests end, and every page and state is free then.
TEST_P(RandomTraffic, EveryoneReadsHisOwnTextAndEnds) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(str("seed ", seed));
    Random random(seed);
    SchedulerConfig config = sharing_config_of(static_cast<int32_t>(20 + random.below(150)), 24);
    config.max_requests = 5;
    if (GetParam().recurrent) config = recurrent(config, GetParam().cached_states);
    SharedTraffic traffic(GetParam().strategy, config, seed);
    int32_t to_come = 40;
    for (int32_t steps = 0; to_come > 0 || !traffic.idle(); ++steps) {
      ASSERT_LT(steps, 4000);
      while (to_come > 0 && random.below(3) == 0) {
        --to_come;
        try {
          traffic.add(prompt(random, traffic.last_text), static_cast<int32_t>(1 + random.below(20)));
        } catch (const Error&) {  // a step of it has more rows than the engine runs
        }
      }
      for (const bool aborts : {false, true}) {
        if (traffic.sequences().empty() || random.below(12) > 0) continue;
        auto one = traffic.sequences().begin();
        std::advance(one, random.below(static_cast<int64_t>(traffic.sequences().size())));
        aborts ? traffic.abort(one->first) : static_cast<void>(traffic.preempt(one->first));
      }
      const std::string trace = traffic.step();
      ASSERT_TRUE(!trace.empty() || traffic.idle()) << "nothing runs";
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(traffic.scheduler().free_pages(), 24);
    EXPECT_EQ(traffic.scheduler().free_states(), config.num_states);
    for (const char* begin : {"0+", "32+"}) {  // there is room for as many kept states as before
      for (int32_t i = 0; i < std::min(GetParam().cached_states, 6); ++i) {
        const int64_t id = traffic.add(prompt_of(37, 40 + i), 1);
        const std::string trace = traffic.step();
        EXPECT_TRUE(trace.starts_with(str(id, ":", begin))) << trace;
        while (!traffic.idle()) traffic.step();
      }
    }
  }
}

TEST_P(RandomTraffic, FewerRowsRunThanWithoutSharing) {
  std::array<int64_t, 2> rows{};
  for (const KeepText keep : {KeepText::kNo, KeepText::kYes}) {
    SchedulerConfig config = sharing_config_of(200, 64);
    if (GetParam().recurrent) config = recurrent(config, GetParam().cached_states);
    config.keep_text = keep;
    SharedTraffic traffic(GetParam().strategy, config);
    for (int32_t i = 0; i < 4; ++i) traffic.add(joined(prompt_of(100), {i}), 1);
    while (!traffic.idle()) traffic.step();
    rows[keep == KeepText::kYes ? 1 : 0] = traffic.num_rows;
  }
  EXPECT_LE(rows[1], rows[0] - 3 * 80) << "three of four requests share 96 tokens; what passes they need is drawn";
}

INSTANTIATE_TEST_SUITE_P(Strategies, RandomTraffic,
                         testing::Values(Mix{"autoregressive"}, Mix{"autoregressive", true, 1},
                                         Mix{"autoregressive", true, 3}, Mix{"autoregressive", true, 20},
                                         Mix{"multi_bd"}, Mix{"multi_bd_edit"}, Mix{"dmax"}, Mix{"fast_dllm_v2"},
                                         Mix{"diffusion_gemma"}),
                         [](const auto& mix) { return testing::PrintToString(mix.param); });

}  // namespace
}  // namespace headrace
