#include "conformance/attention_checks.h"

#include <algorithm>
#include <cmath>

#include "conformance/random_attention_case.h"
#include "support/all_close.h"
#include "support/device_mirror.h"
#include "support/tolerances.h"

namespace headrace::testing_support {
namespace {

using Result = AttentionProblem::Result;

// Thrown by what is wrong, with what it was that ran.
struct Wrong {
  std::string text;
};

void expect(const testing::AssertionResult& result, const std::string& what) {
  if (!result) throw Wrong{what + ": " + result.message()};
}

class Checker {
 public:
  Checker(const AttentionCase& c, uint64_t seed, const AttentionChecks& checks)
      : case_(c), seed_(seed), checks_(checks), random_(~seed), problem_(c, seed) {}

  void check() {
    find_truth();
    const Result fast = run(fast_mode());
    expect_truth(fast, "fast mode");
    expect_bits(run(fast_mode()), fast, "fast mode, once more");
    whole_ = run(strict_mode());
    expect_truth(whole_, "strict mode");
    expect_all_near(fast);
    check_company();
    check_cuts();
    check_other_memory();
    if (checks_.backend != kCudaSets[0]) return;
    for (const std::string_view set : {kRecordedSet, kRecordedShortSet})
      expect_bits(problem_.run(set, std::nullopt, strict_mode()), whole_, str("strict mode, ", set));
  }

 private:
  const std::vector<KeySpan>& spans() { return problem_.batch().attn.spans; }
  OpContext fast_mode() { return {.threads = 1 + static_cast<int>(random_.below(3))}; }
  OpContext strict_mode() {
    OpContext context = fast_mode();
    context.determinism = Determinism::kStrict;
    return context;
  }
  Result run(const OpContext& context) { return problem_.run(checks_.backend, checks_.kernel_set, context); }

  void find_truth();
  AttentionProblem::OneRow random_row();
  void expect_truth(const Result& got, const std::string& what);
  void expect_all_near(const Result& fast);
  void expect_bits(const Result& got, const Result& want, const std::string& what);
  void expect_part(AttentionProblem::Part part);
  void expect_cut(size_t request, const std::vector<int32_t>& cuts);
  void check_company();
  void check_cuts();
  void check_other_memory();
  std::string name_of(size_t request);

  const AttentionCase& case_;
  uint64_t seed_;
  const AttentionChecks& checks_;
  Random random_;
  AttentionProblem problem_;
  std::vector<AttentionProblem::OneRow> rows_;  // that the oracle found
  Result truth_, whole_;                        // whole_: the batch in strict mode
  Tensor stored_;                               // the pool after any run
};

std::string Checker::name_of(size_t request) {
  return request < case_.requests.size() ? str("request ", request, " (", summary_of(case_.requests[request]), ")")
                                         : std::string("padding");
}

// The first and the last row of a request more often than others.
AttentionProblem::OneRow Checker::random_row() {
  const auto request = static_cast<size_t>(random_.below(static_cast<int64_t>(spans().size())));
  const int32_t rows = spans()[request].q_len;
  const int64_t place = random_.below(4);
  const int64_t row = place == 0 ? 0 : place == 1 ? rows - 1 : random_.below(std::max(1, rows));
  return {request, rows == 0 ? -1 : static_cast<int32_t>(row), random_.below(case_.num_heads)};
}

void Checker::find_truth() {
  const double dims = problem_.layer().qk_head_dim() + problem_.layer().v_head_dim();
  const auto products = [&](const KeySpan& s) { return dims * (s.ctx_len + s.q_len + s.encoder_len); };
  double all = 0, spent = 0;
  for (const KeySpan& span : spans()) all += products(span) * span.q_len * case_.num_heads;
  if (all <= checks_.oracle_products) {
    for (size_t r = 0; r < spans().size(); ++r) {
      for (int32_t row = 0; row < spans()[r].q_len; ++row) {
        for (int64_t head = 0; head < case_.num_heads; ++head) rows_.push_back({r, row, head});
      }
    }
  }
  while (all > checks_.oracle_products && spent < checks_.oracle_products) {
    const AttentionProblem::OneRow row = random_row();
    spent += 1 + (row.row < 0 ? 0 : products(spans()[row.request]));
    if (row.row >= 0) rows_.push_back(row);
  }
  truth_ = problem_.run_oracle(rows_);
  stored_ = problem_.pool_copy();
}

// Every row that the oracle found, and of the others that none is NaN.
void Checker::expect_truth(const Result& got, const std::string& what) {
  expect(bit_equal(problem_.pool_copy(), stored_), what + ", the pool");
  const DType type = case_.dtype;
  for (const auto& found : rows_) {
    const size_t request = found.request;
    const int32_t row = found.row;
    const int64_t head = found.head;
    const int64_t token = spans()[request].q_off + row;
    const auto of = [&](const Tensor& x) { return x.view().select(token).slice(head, head + 1); };
    const auto close = [&](const Tensor& x, const Tensor& want, Tolerance tolerance) {
      const testing::AssertionResult result = all_close(of(x), of(want), tolerance);
      if (!result) expect(result, str(what, ", ", name_of(request), ", row ", row, ", head ", head));
    };
    close(got.out, truth_.out, attention_tolerance(type));
    close(got.lse, truth_.lse, lse_tolerance(type));
  }
  const int64_t dim = problem_.layer().v_head_dim();
  for (int64_t i = 0; i < got.out.numel(); ++i) {
    if (!std::isnan(element_as_double(got.out, i))) continue;
    throw Wrong{str(what, ": NaN at token ", i / dim / case_.num_heads, ", head ", i / dim % case_.num_heads)};
  }
}

// Rows that the oracle did not find: two modes, most often two kernels, that each are near to what it would have said.
void Checker::expect_all_near(const Result& fast) {
  const auto twice = [](Tolerance t) { return Tolerance{.abs = 2 * t.abs, .rel = 2 * t.rel}; };
  expect(all_close(fast.out, whole_.out, twice(attention_tolerance(case_.dtype))), "fast mode beside strict mode");
  expect(all_close(fast.lse, whole_.lse, twice(lse_tolerance(case_.dtype))), "fast mode beside strict mode, lse");
}

// A device sums what an infinite value spoiled again, row by row, in another order: see docs/numerics.md. Those are the
// elements 0, which the oracle holds to what is seen.
void Checker::expect_bits(const Result& got, const Result& want, const std::string& what) {
  const bool spoiled = checks_.backend != "cpu" && case_.values == AttentionCase::Values::kInfinite;
  const auto firm = [&](const Tensor& out) { return out.view().narrow(2, spoiled ? 1 : 0, out.dim(2)); };
  expect(bit_equal(firm(got.out), firm(want.out)), what);
  expect(bit_equal(got.lse, want.lse), what + ", lse");
}

void Checker::expect_part(AttentionProblem::Part part) {
  const int64_t begin = spans()[part.first].q_off, end = spans()[part.last - 1].q_off + spans()[part.last - 1].q_len;
  const Result got = problem_.run_part(part, checks_.backend, checks_.kernel_set, strict_mode());
  const auto rows = [&](const Tensor& x) { return copy_of(x.view().slice(begin, end)); };
  expect_bits(got, {rows(whole_.out), rows(whole_.lse)},
              str("strict mode, requests ", part.first, " to ", part.last, " apart, from ", name_of(part.first)));
}

// Some requests alone, and all of them in two batches, so that every row has another company once.
void Checker::check_company() {
  constexpr size_t kMostAlone = 5;
  const size_t count = spans().size();
  for (size_t i = 0; i < std::min(count, kMostAlone); ++i) {
    const size_t r = count <= kMostAlone ? i : static_cast<size_t>(random_.below(static_cast<int64_t>(count)));
    expect_part({r, r + 1});
  }
  if (count < 3) return;
  const size_t half = 1 + static_cast<size_t>(random_.below(static_cast<int64_t>(count - 1)));
  expect_part({0, half}), expect_part({half, count});
}

void Checker::expect_cut(size_t request, const std::vector<int32_t>& cuts) {
  const int64_t begin = spans()[request].q_off, end = begin + spans()[request].q_len;
  const Result got = problem_.run_cut(request, cuts, checks_.backend, checks_.kernel_set, strict_mode());
  const auto rows = [&](const Tensor& x) { return copy_of(x.view().slice(begin, end)); };
  std::string where;
  for (const int32_t cut : cuts) where += str(" ", cut);
  expect_bits(got, {rows(whole_.out), rows(whole_.lse)}, str("strict mode, ", name_of(request), " cut at rows", where));
}

// Some requests cut at random rows, one of them at many.
void Checker::check_cuts() {
  for (int i = 0; i < 3; ++i) {
    const auto request = static_cast<size_t>(random_.below(static_cast<int64_t>(case_.requests.size())));
    const int32_t rows = spans()[request].q_len;
    std::vector<int32_t> cuts;
    for (int wanted = i == 0 ? 6 : 1, tries = 0; tries < 3 * wanted && rows > 1; ++tries) {
      const auto row = static_cast<int32_t>(1 + random_.below(rows - 1));
      if (problem_.can_cut(request, row) && std::ssize(cuts) < wanted) cuts.push_back(row);
    }
    std::ranges::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    if (!cuts.empty()) expect_cut(request, cuts);
  }
}

// The same tokens in other pages, beside something else that nobody may read.
void Checker::check_other_memory() {
  using Unread = AttentionCase::Unread;
  AttentionCase other = case_;
  other.page_order = 1;
  other.unread = case_.unread == Unread::kNaN ? Unread::kLarge : Unread::kNaN;
  AttentionProblem problem(other, seed_);
  expect_bits(problem.run(checks_.backend, checks_.kernel_set, strict_mode()), whole_, "strict mode, other pages");
}

}  // namespace

std::string wrong_with(const AttentionCase& c, uint64_t seed, const AttentionChecks& checks) {
  try {
    Checker(c, seed, checks).check();
  } catch (const Wrong& wrong) {
    return wrong.text;
  } catch (const std::exception& error) {  // of the library, or an assertion of the problem's own
    return error.what();
  }
  return {};
}

}  // namespace headrace::testing_support
