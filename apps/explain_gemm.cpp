#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "explain.h"
#include "explain_text.h"
#include "headrace/core/error.h"
#include "headrace/models/model_gemms.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/json_string.h"

namespace headrace::app {
namespace {

using cuda::choose_gemm;
using cuda::GemmConfig;
using cuda::GemmProblem;

constexpr std::array<int64_t, 11> kM = {1, 2, 3, 4, 8, 16, 32, 64, 128, 512, 16384};

std::string_view name_of_mode(Determinism mode) { return mode == Determinism::kStrict ? "batch-invariant" : "default"; }

// Dense tensors that begin at multiples of 16 bytes; each product has a result of its own.
GemmProblem problem_of(const ExplainText& text) {
  text.allow({"m", "n", "k", "dtype", "mode"}, {"norm", "swiglu", "bias", "residual", "fp32-result"});
  const auto dtype =
      chosen<DType>(text, "dtype", {{"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}});
  const auto operand = [](DType type, int64_t columns) {
    const int64_t bytes = columns * size_of(type);
    return GemmProblem::Operand{.dtype = type, .align = static_cast<int>(std::min<int64_t>(16, bytes & -bytes))};
  };
  std::vector<int64_t> widths = text.numbers("n");
  GemmProblem p{.m = text.number("m"), .k = text.number("k"), .swiglu = text.has("swiglu")};
  if (p.swiglu && widths.size() == 1) widths.push_back(widths[0]);
  HR_REQUIRE(widths.size() <= p.products.size(), ErrorCode::kInvalidArgument, "--explain gemm: n has ", widths.size(),
             " numbers, expected at most ", p.products.size());
  HR_REQUIRE(!p.swiglu || (widths.size() == 2 && widths[0] == widths[1] && !text.has("residual")),
             ErrorCode::kInvalidArgument, "--explain gemm: swiglu takes one n and no residual");
  HR_REQUIRE(!text.has("residual") || widths.size() == 1, ErrorCode::kInvalidArgument,
             "--explain gemm: a residual takes one n");
  p.mode =
      chosen<Determinism>(text, "mode", {{"default", Determinism::kFast}, {"batch-invariant", Determinism::kStrict}});
  p.x = operand(dtype, p.k);
  p.num_products = static_cast<int>(widths.size());
  for (size_t i = 0; i < widths.size(); ++i) {
    p.products[i] = {.n = widths[i],
                     .weight = operand(dtype, p.k),
                     .y = operand(text.has("fp32-result") ? DType::kF32 : dtype, widths[i])};
    if (text.has("bias")) p.products[i].bias = GemmProblem::Operand{.dtype = dtype};
  }
  if (text.has("norm")) p.norm = GemmProblem::Operand{.dtype = dtype};
  if (text.has("residual")) p.residual = p.products[0].y;
  return p;
}

std::vector<int64_t> widths_of(const GemmProblem& p) {
  std::vector<int64_t> widths(static_cast<size_t>(p.num_products));
  std::ranges::transform(std::span(p.products).first(widths.size()), widths.begin(), &GemmProblem::Product::n);
  return widths;
}

std::string gemm_json(const std::string& name, const GemmProblem& p) {
  const GemmConfig config = choose_gemm(p, cuda::kH200);
  return fmt::format("{{{}\"m\": {}, \"n\": [{}], \"k\": {}, \"mode\": \"{}\", \"kernels\": {}, \"plan\": {}}}", name,
                     p.m, fmt::join(widths_of(p), ", "), p.k, name_of_mode(p.mode), json_string(kernel_names(config)),
                     json_string(to_string(config)));
}

// "1-4 sequence, 8-64 small_m, ..."
std::string runs_of(GemmProblem p) {
  std::string text, last;
  int64_t first = 0;
  for (size_t i = 0; i <= kM.size(); ++i) {
    p.m = i < kM.size() ? kM[i] : 0;
    const std::string now = i < kM.size() ? kernel_names(choose_gemm(p, cuda::kH200)) : "";
    if (now == last) continue;
    if (i > 0) {
      const int64_t end = kM[i - 1];
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                          first == end ? fmt::format("{}", end) : fmt::format("{}-{}", first, end), last);
    }
    first = p.m, last = now;
  }
  return text;
}

}  // namespace

std::string explain_gemm(const ExplainText& text, Output output) {
  const GemmProblem p = problem_of(text);
  if (output == Output::kJson) return gemm_json("", p) + "\n";
  return to_string(choose_gemm(p, cuda::kH200)) + "\n";
}

std::string explain_model(const std::filesystem::path& directory, Output output) {
  std::string text = "kernels of the model's GEMMs on an H200, by M, the tokens of a step:\n", json;
  for (ModelGemm& gemm : stated_gemms(read_description(directory, 1), {.random_weights = 1})) {
    text += fmt::format("{}  n={} k={}\n", gemm.name, fmt::join(widths_of(gemm.problem), ","), gemm.problem.k);
    for (const Determinism mode : {Determinism::kFast, Determinism::kStrict}) {
      gemm.problem.mode = mode;
      text += fmt::format("  {:<16} {}\n", name_of_mode(mode), runs_of(gemm.problem));
      for (const int64_t m : kM) {
        gemm.problem.m = m;
        json +=
            (json.empty() ? "" : ", ") + gemm_json(fmt::format("\"gemm\": {}, ", json_string(gemm.name)), gemm.problem);
      }
    }
  }
  return output == Output::kJson ? fmt::format("{{\"device\": \"H200\", \"gemms\": [{}]}}\n", json) : text;
}

}  // namespace headrace::app
