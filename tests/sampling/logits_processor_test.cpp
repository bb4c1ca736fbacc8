// What changes rows of logits, against the same in double, written out for a token at a time.
#include "headrace/sampling/logits_processor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "bench/fake_device.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "ops/kernel_sets.h"
#include "support/all_close.h"
#include "support/gpu.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A row, what belongs to it, and its spot.
struct Row {
  SamplingParams params;
  std::vector<int32_t> history, banned, early;
  size_t prompt_len = 0;
  float temperature = 1;
  std::optional<int32_t> discouraged_id;
  std::vector<uint32_t> allowed;
  TokenCounts counts;
  int64_t text = 0;

  SampleSpot spot() const {
    return {.params = &params,
            .text = text,
            .history = history,
            .num_final = static_cast<int32_t>(history.size()),
            .temperature = temperature,
            .discouraged_id = discouraged_id,
            .banned_ids = banned,
            .early_ids = early,
            .output_counts = &counts,
            .allowed_bits = allowed};
  }
};

bool contains(const std::vector<int32_t>& ids, int32_t id) { return std::ranges::find(ids, id) != ids.end(); }

// The oracle.
double changed(double logit, const Row& row, int32_t id) {
  logit /= static_cast<double>(row.temperature);
  for (const LogitBias& one : row.params.logit_bias) {
    if (one.id == id) logit += static_cast<double>(one.bias);
  }
  if (row.discouraged_id == id) logit -= static_cast<double>(row.params.decoding.copy_penalty);
  if (contains(row.banned, id) || contains(row.early, id)) logit = -kInfinity;
  const auto penalty = static_cast<double>(row.params.repetition_penalty);
  if (contains(row.history, id)) logit = logit > 0 ? logit / penalty : logit * penalty;
  const auto output = row.history.begin() + static_cast<std::ptrdiff_t>(row.prompt_len);
  const auto count = static_cast<double>(std::count(output, row.history.end(), id));
  if (count > 0) logit -= static_cast<double>(row.params.presence_penalty);
  logit -= static_cast<double>(row.params.frequency_penalty) * count;
  const bool allowed = row.allowed.empty() || (row.allowed[static_cast<size_t>(id / 32)] >> id % 32 & 1) != 0;
  return allowed ? logit : -kInfinity;
}

std::vector<int32_t> some_ids(Random& random, int64_t most, int32_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = random.below(most + 1); i > 0; --i) ids.push_back(static_cast<int32_t>(random.below(vocab)));
  return ids;
}

std::vector<LogitBias> some_biases(Random& random, int32_t vocab) {
  const std::vector<int32_t> drawn = some_ids(random, 20, vocab);
  std::vector<LogitBias> biases;
  for (const int32_t id : std::set<int32_t>(drawn.begin(), drawn.end())) {
    const float bias = static_cast<float>(random.below(2001) - 1000) / 10;
    biases.push_back({id, random.below(5) == 0 ? -std::numeric_limits<float>::infinity() : bias});
  }
  return biases;
}

Row random_row(Random& random, int32_t vocab, int64_t text) {
  Row row{.text = text};
  if (random.below(4) == 0) return row;  // unchanged
  const auto maybe = [&random](float value) { return random.below(2) == 0 ? value : 0; };
  row.history = some_ids(random, 60, vocab);
  row.prompt_len = static_cast<size_t>(random.below(std::ssize(row.history) + 1));
  row.params.repetition_penalty = 1 + maybe(0.7f) - maybe(0.3f);
  row.params.presence_penalty = maybe(1.25f) - maybe(2);
  row.params.frequency_penalty = maybe(0.3f) - maybe(0.75f);
  row.params.decoding.copy_penalty = 3.5f;
  row.params.logit_bias = some_biases(random, vocab);
  if (random.below(2) == 0) row.banned = some_ids(random, 5, vocab + 3);  // some are no tokens
  if (random.below(2) == 0) row.early = some_ids(random, 5, vocab);
  if (random.below(2) == 0) row.temperature = 0.4f;
  if (random.below(2) == 0) row.discouraged_id = static_cast<int32_t>(random.below(vocab));
  if (random.below(2) == 0 && !row.params.logit_bias.empty()) row.discouraged_id = row.params.logit_bias.front().id;
  if (random.below(2) == 0) {
    row.allowed.resize(static_cast<size_t>(MaskTokensArgs::words_of(vocab)));
    for (uint32_t& word : row.allowed) word = static_cast<uint32_t>(random.next() & random.next());
  }
  const std::span output = std::span(row.history).subspan(row.prompt_len);
  row.counts.update(output, static_cast<int32_t>(output.size()), {});
  return row;
}

struct Changed {
  Tensor logits, model_logits;
};

// Where `runtime` is.
Changed changed_on(const OpSet& ops, DeviceRuntime& runtime, const Tensor& logits, LogitChanges& changes,
                   int32_t vocab) {
  const Tensor there(DType::kF32, logits.view().shape(), runtime);
  const Tensor model(DType::kF32, {changes.num_additions()}, runtime);
  runtime.copy_to_device(there.data(), logits.data(), static_cast<size_t>(logits.bytes()));
  LogitsProcessor processor(ops, {.stream = runtime.stream()}, runtime, vocab);
  processor.apply(changes, there, {}, model);
  Changed result{Tensor(DType::kF32, logits.view().shape()), Tensor(DType::kF32, model.view().shape())};
  runtime.copy_to_host(result.logits.data(), there.data(), static_cast<size_t>(there.bytes()));
  runtime.copy_to_host(result.model_logits.data(), model.data(), static_cast<size_t>(model.bytes()));
  return result;
}

struct Problem {
  int32_t vocab, width;
  std::vector<Row> rows;
  Tensor logits;

  std::vector<SampleSpot> spots() const {
    std::vector<SampleSpot> all;
    for (const Row& row : rows) all.push_back(row.spot());
    return all;
  }
};

Problem random_problem(uint64_t seed) {
  Random random(seed);
  Problem problem{.vocab = 1 + static_cast<int32_t>(random.below(200)), .width = 0, .rows = {}, .logits = {}};
  problem.width = problem.vocab + static_cast<int32_t>(random.below(3)) * 7;
  for (int64_t text = 0, count = 1 + random.below(6); text < count; ++text) {
    const Row row = random_row(random, problem.vocab, text);
    for (int64_t i = 1 + random.below(3); i > 0; --i) problem.rows.push_back(row);
  }
  problem.logits = random_tensor(random, DType::kF32, {std::ssize(problem.rows), problem.width}, 4);
  return problem;
}

void expect_as_written_out(const Changed& got, const Problem& problem) {
  const Tensor want = copy_of(problem.logits);
  for (size_t r = 0; r < problem.rows.size(); ++r) {
    for (int32_t id = 0; id < problem.width; ++id) {
      const int64_t at = static_cast<int64_t>(r) * problem.width + id;
      const auto logit = static_cast<double>(problem.logits.data_as<float>()[at]);
      const Row& row = problem.rows[r];
      const bool chosen = id < problem.vocab;  // others are divided alone
      set_element(want, at, chosen ? changed(logit, row, id) : logit / static_cast<double>(row.temperature));
    }
  }
  EXPECT_TRUE(all_close(got.logits, want, {.abs = 3e-5, .rel = 1e-6}));
}

void expect_model_logits(const Changed& got, const LogitChanges& changes, const Problem& problem) {
  for (size_t r = 0; r < problem.rows.size(); ++r) {
    const Row& row = problem.rows[r];
    const auto output = std::span(row.history).subspan(row.prompt_len);
    const bool counted = row.params.presence_penalty != 0 || row.params.frequency_penalty != 0;
    for (int32_t id = 0; id < problem.vocab; ++id) {
      const bool biased = std::ranges::find(row.params.logit_bias, id, &LogitBias::id) != row.params.logit_bias.end();
      const bool added = biased || row.discouraged_id == id || contains(row.banned, id) || contains(row.early, id) ||
                         (counted && std::ranges::find(output, id) != output.end());
      const auto addition = changes.addition_to(static_cast<int64_t>(r), id);
      ASSERT_EQ(addition.has_value(), added) << "token " << id << " of row " << r;
      if (!addition) continue;
      EXPECT_EQ(got.model_logits.data_as<float>()[*addition],
                problem.logits.data_as<float>()[static_cast<int64_t>(r) * problem.width + id]);
    }
  }
}

class ProcessedLogits : public KernelSetTest {};

TEST_P(ProcessedLogits, AreThoseOfTheDefinition) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(str("seed ", seed));
    const Problem problem = random_problem(seed);
    LogitChanges changes(cpu_runtime());
    changes.list(problem.spots(), problem.width, problem.vocab);
    const Changed got = changed_on(ops(), cpu_runtime(), problem.logits, changes, problem.vocab);
    expect_as_written_out(got, problem);
    expect_model_logits(got, changes, problem);
    if (HasFailure()) return;
  }
}

HR_INSTANTIATE_KERNEL_SETS(ProcessedLogits);

// Tokens of 2^31 logits and more have no int32 among all rows.
TEST(ProcessedLogitsInParts, HaveTheSameBits) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Problem problem = random_problem(seed);
    LogitChanges whole(cpu_runtime()), parts(cpu_runtime(), 2 * problem.width + 1), rows(cpu_runtime(), 1);
    EXPECT_EQ((rows.list(problem.spots(), problem.width, problem.vocab), rows.rows_of_part()), 1);
    EXPECT_EQ((parts.list(problem.spots(), problem.width, problem.vocab), parts.rows_of_part()), 2);
    whole.list(problem.spots(), problem.width, problem.vocab);
    const OpSet& ops = reference::ops();
    const Changed want = changed_on(ops, cpu_runtime(), problem.logits, whole, problem.vocab);
    for (LogitChanges* changes : {&parts, &rows}) {
      const Changed got = changed_on(ops, cpu_runtime(), problem.logits, *changes, problem.vocab);
      EXPECT_TRUE(bit_equal(got.logits, want.logits)) << "seed " << seed;
      EXPECT_TRUE(bit_equal(got.model_logits, want.model_logits)) << "seed " << seed;
      expect_model_logits(got, *changes, problem);
    }
  }
}

void expect_the_same_on(DeviceRuntime& runtime, const OpSet& ops) {
  LogitChanges changes(runtime);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(str("seed ", seed));
    const Problem problem = random_problem(seed);
    changes.list(problem.spots(), problem.width, problem.vocab);
    const Changed got = changed_on(ops, runtime, problem.logits, changes, problem.vocab);
    expect_as_written_out(got, problem);
    expect_model_logits(got, changes, problem);
  }
}

TEST(ProcessedLogitsOfADevice, AreThoseOfTheDefinition) {
  bench::FakeDevice fake(cpu::select_kernel_set());
  expect_the_same_on(fake, fake.ops());
}

TEST(ProcessedLogitsOnDevice, AreThoseOfTheDefinition) {
  if (mirrored_cuda_ops() == nullptr) GTEST_SKIP() << "no CUDA device";
  expect_the_same_on(gpu(), cuda_module().ops("cuda"));
}

// A device copies a list later than it is sent: the next one waits for it.
TEST(ProcessedLogitsOfADevice, AreOfTheListAsItWasSent) {
  bench::FakeDevice fake(cpu::select_kernel_set());
  LogitsProcessor processor(fake.ops(), {.stream = fake.stream()}, fake, 9);
  LogitChanges changes(fake);
  const Tensor model(DType::kF32, {1}, fake);
  std::vector<Tensor> rows;
  for (int32_t id = 0; id < 3; ++id) {
    rows.emplace_back(DType::kF32, Shape{1, 9}, fake);
    fake.fill_zero(rows.back().data(), 9 * sizeof(float));
    const Row row{.params = {.logit_bias = {{id, 2}}}};
    changes.list(std::vector{row.spot()}, 9, 9);
    processor.apply(changes, rows.back(), {}, model);
  }
  for (int32_t id = 0; id < 3; ++id) {
    const Tensor logits(DType::kF32, {1, 9});
    fake.copy_to_host(logits.data(), rows[static_cast<size_t>(id)].data(), 9 * sizeof(float));
    for (int32_t i = 0; i < 9; ++i) EXPECT_EQ(logits.data_as<float>()[i], i == id ? 2 : 0) << "list " << id;
  }
}

TEST(LogitChanges, OfRowsThatNobodyChangesAreNone) {
  LogitChanges changes(cpu_runtime());
  const Row plain{};
  changes.list(std::vector{plain.spot(), plain.spot()}, 9, 9);
  EXPECT_FALSE(changes.any());
  EXPECT_EQ(changes.num_additions(), 0);
  EXPECT_FALSE(changes.addition_to(1, 3));
}

TEST(LogitChanges, ABanWinsOverABiasAndEachTokenStandsOnce) {
  Row row{.params = {.logit_bias = {{4, 100}, {5, 2}}}, .banned = {4, 4, 6}, .early = {6, 5}, .discouraged_id = 5};
  row.params.decoding.copy_penalty = 1;
  LogitChanges changes(cpu_runtime());
  changes.list(std::vector{row.spot()}, 9, 9);
  EXPECT_EQ(changes.before_penalty().size(), 3);
  const Tensor logits = Tensor::zeros(DType::kF32, {1, 9});
  const Changed got = changed_on(reference::ops(), cpu_runtime(), logits, changes, 9);
  for (int32_t id = 0; id < 9; ++id) {
    EXPECT_EQ(got.logits.data_as<float>()[id], id >= 4 && id <= 6 ? -std::numeric_limits<float>::infinity() : 0) << id;
  }
}

}  // namespace
}  // namespace headrace::testing_support
