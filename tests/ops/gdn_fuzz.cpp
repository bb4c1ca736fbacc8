// Random calls of the gated delta rule on one set of kernels, in fast and in strict mode, against the oracle and
// against themselves.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/reference/reference_ops.h"
#include "ops/gdn_problem.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/fuzz.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

constexpr OpContext kFast{.threads = 2}, kStrict{.threads = 3, .determinism = Determinism::kStrict};

// A case, and what its slots and snapshots are.
struct Drawn {
  GDNCase c;
  std::vector<StateSnapshot> snapshots;  // slots are counted from the first spare one
  enum class States : uint8_t { kApart, kInPlace, kFromZeros, kNotKept } states = States::kApart;
  std::vector<int32_t> cuts;  // sizes of calls that the same tokens are run in
};

// Tokens of a request: around whole chunks, and around where another kernel takes over.
int32_t length(Random& random, int32_t most) {
  const int32_t chunks = static_cast<int32_t>(1 + random.below(std::max(1, most / kGDNChunk))) * kGDNChunk;
  const int32_t len =
      pick(random, {0, 1, 1, 2, 4, 5, 16, chunks - 1, chunks, chunks + 1, static_cast<int32_t>(random.below(most + 1)),
                    static_cast<int32_t>(random.below(100))});
  return std::clamp(len, 0, most);
}

Drawn draw(uint64_t seed, double most_products) {
  Random random(seed);
  Drawn d{.c = {.seed = seed}};
  d.c.k_heads = pick(random, {1, 1, 1, 2, 3, 6});
  d.c.group = pick(random, {1, 2, 3, 4});
  const bool released = random.below(2) == 0;  // sizes that models have
  d.c.dk = released ? 128 : pick(random, {16, 24, 64, 96, 128, 192, 256});
  d.c.dv = released ? 128 : pick(random, {8, 20, 64, 96, 128, 256});
  using Types = std::pair<DType, DType>;
  std::tie(d.c.in, d.c.out) = pick(
      random, {Types(DType::kF32, DType::kF32), Types(DType::kBF16, DType::kBF16), Types(DType::kBF16, DType::kBF16),
               Types(DType::kF16, DType::kF16), Types(DType::kBF16, DType::kF32)});
  d.c.mean_g = pick(random, {-0.001, -0.02, -0.1, -0.5, -2.0, -20.0});
  d.c.key_spread = pick(random, {0.2, 1.0, 1.0});
  const double of_token = 3.0 * d.c.k_heads * d.c.group * d.c.dk * d.c.dv;
  double left = most_products * std::pow(10, -1.5 * random.uniform()) / of_token;
  d.c.lens.clear();
  const auto affordable =
      static_cast<int32_t>(1 + most_products / (10 * of_token));  // whose states are small beside it
  for (int32_t wanted = std::min(affordable, pick(random, {1, 1, 2, 3, 8, 40})); wanted > 0; --wanted) {
    d.c.lens.push_back(length(random, static_cast<int32_t>(std::min(left, 20000.0))));
    left -= d.c.lens.back();
  }
  if (std::ranges::count(d.c.lens, 0) == std::ssize(d.c.lens)) d.c.lens.back() = 1;
  d.states = pick(random, {Drawn::States::kApart, Drawn::States::kApart, Drawn::States::kInPlace,
                           Drawn::States::kFromZeros, Drawn::States::kNotKept});
  for (int32_t i = 0, spare = 0; i < std::ssize(d.c.lens) && spare < GDNProblem::kSpareSlots; ++i) {
    const int32_t len = d.c.lens[static_cast<size_t>(i)];
    if (len == 0 || random.below(3) > 0) continue;
    const int32_t at = pick(random, {len, len / kGDNChunk * kGDNChunk, static_cast<int32_t>(1 + random.below(len))});
    if (at > 0) d.snapshots.push_back({.request = i, .num_tokens = at, .slot = spare++});
  }
  for (int i = 0; i < 4; ++i)
    d.cuts.push_back(static_cast<int32_t>(1 + random.below(pick(random, {4, 70, 300, 3000}))));
  d.cuts.push_back(1 + *std::ranges::max_element(d.c.lens) / 8);  // repeats
  return d;
}

GDNProblem problem_of(const Drawn& d) {
  using States = Drawn::States;
  GDNProblem p(d.c);
  for (StateSlots& slots : p.slots) {
    if (d.states == States::kInPlace) slots.write = slots.read;
    if (d.states == States::kFromZeros) slots.read = kNoState;
    if (d.states == States::kNotKept) slots.write = kNoState;
  }
  return p;
}

// Thrown by what is wrong.
struct Wrong {
  std::string text;
};

void expect(const testing::AssertionResult& result, const std::string& what) {
  if (!result) throw Wrong{what + ": " + result.message()};
}

// Outputs and states of one run.
struct Result {
  Tensor out, state;
};

Result result_of(const GDNProblem& p) { return {copy_of(p.out()), copy_of(p.state())}; }

Result run(GDNProblem& p, const OpSet& ops, const OpContext& context) {
  p.run(ops, context);
  return result_of(p);
}

void expect_near(const Result& got, const Result& want, const Drawn& d, const std::string& what) {
  expect(all_close(got.out, want.out, gdn_tolerance(d.c.out, d.c.in)), what);
  for (int64_t slot = 0; slot < want.state.dim(0); ++slot) {
    const TensorView g = got.state.view().select(slot), w = want.state.view().select(slot);
    const bool untouched = std::isnan(element_as_double(w, 0));
    const std::string name = str(what, ", state ", slot);
    expect(untouched ? bit_equal(g, w) : all_close(g, w, gdn_tolerance(DType::kF32, d.c.in)), name);
  }
}

void expect_bits(const Result& got, const Result& want, const std::string& what) {
  expect(bit_equal(got.out, want.out), what);
  expect(bit_equal(got.state, want.state), what + ", states");
}

void check_strict_bits(const Drawn& d, GDNProblem& p, const OpSet& ops, const Result& strict) {
  if (d.states == Drawn::States::kNotKept) return;
  for (const std::vector<int32_t>& cuts : {std::vector<int32_t>{1 << 20}, d.cuts}) {
    p.run_split(ops, cuts, kStrict);
    expect_bits(result_of(p), strict, str("strict mode, calls of ", cuts.front(), " tokens and others"));
  }
}

// The oracle's outputs are in float32: a tolerance has room for one rounding to fewer bits, not for two.
Drawn oracles(Drawn d) {
  d.c.out = DType::kF32;
  return d;
}

void check(const Drawn& d, const OpSet& ops, const OpSet* recorded) {
  GDNProblem p = problem_of(d), oracle = problem_of(oracles(d));
  const Result plain_truth = run(oracle, reference::ops(), {}), strict = run(p, ops, kStrict);
  expect_near(strict, plain_truth, d, "strict mode");
  check_strict_bits(d, p, ops, strict);
  if (recorded != nullptr) {
    expect_bits(run(p, *recorded, kStrict), strict, "strict mode, recorded");
    expect_near(run(p, *recorded, kFast), plain_truth, d, "fast mode, recorded");
  }
  p.snapshots = d.snapshots;
  for (StateSnapshot& s : p.snapshots) s.slot += p.first_spare();
  oracle.snapshots = p.snapshots;
  const Result truth = run(oracle, reference::ops(), {}), fast = run(p, ops, kFast);
  expect_near(fast, truth, d, "fast mode");
  expect_bits(run(p, ops, {.threads = 1}), fast, "fast mode, once more");
  expect_near(run(p, ops, kStrict), truth, d, "strict mode with snapshots");
}

std::string wrong_with(const Drawn& d, const OpSet& ops, const OpSet* recorded) {
  try {
    check(d, ops, recorded);
  } catch (const Wrong& wrong) {
    return wrong.text;
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

std::string summary_of(const Drawn& d) {
  const GDNCase& c = d.c;
  std::string text = str(c.lens.size(), " requests of");
  for (size_t i = 0; i < std::min<size_t>(8, c.lens.size()); ++i) text += str(" ", c.lens[i]);
  return text + str(c.lens.size() > 8 ? " ..." : "", "; ", c.k_heads, " * ", c.group, " heads of ", c.dk, "/", c.dv,
                    ", ", name_of(c.in), " to ", name_of(c.out), ", g ", c.mean_g, ", spread ", c.key_spread,
                    ", states ", static_cast<int>(d.states), ", ", d.snapshots.size(), " snapshots");
}

// On "cpu" each case runs on one of the kernel sets, by its seed.
const OpSet& ops_for(const std::string& backend, uint64_t seed) {
  if (backend != "cpu") {
    const OpSet* ops = mirrored_cuda_ops(backend);
    HR_REQUIRE(ops != nullptr, ErrorCode::kNoDevice, "no CUDA device for the backend '", backend, "'");
    return *ops;
  }
  std::vector<const OpSet*> sets;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (set.runs_here()) sets.push_back(set.ops);
  }
  return *sets[seed % sets.size()];
}

FuzzCase fuzz_case(uint64_t seed, const FuzzArguments& arguments) {
  const OpSet& ops = ops_for(arguments.backend, seed);
  const OpSet* recorded = arguments.backend == kCudaSets[0] ? mirrored_cuda_ops(kRecordedSet) : nullptr;
  const Drawn d = draw(seed, arguments.products);
  return {.summary = str(ops.name, ", ", summary_of(d)),
          .wrong = [d, &ops, recorded] { return wrong_with(d, ops, recorded); }};
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  return headrace::testing_support::fuzz_main("gdn_fuzz", argc, argv, headrace::testing_support::fuzz_case);
}
