// choose_gemm: what a call's tensors say, limits of kernels, and families that are left out.
#include <gtest/gtest.h>

#include "headrace/core/tensor.h"
#include "headrace/ops/cuda/gemm/heuristics.h"

namespace headrace::cuda {
namespace {

constexpr auto kBF16 = DType::kBF16, kF32 = DType::kF32;

GemmProblem problem(int64_t m, int64_t n, int64_t k, Determinism mode = Determinism::kFast) {
  GemmProblem p{.m = m, .k = k, .mode = mode};
  p.products[0].n = n;
  return p;
}
std::string names(const GemmProblem& p, std::string_view leave_out = {}) {
  return kernel_names(choose_gemm(p, kH200, GemmFamilies(leave_out)));
}

TEST(GemmHeuristics, PrintTheKernelAndItsPlan) {
  const GemmConfig small = choose_gemm(problem(8, 9728, 2560), kH200);
  EXPECT_EQ(kernel_names(small), "small_m");
  EXPECT_EQ(to_string(small), "small_m (80 columns of W a tile, 16 rows of x, 122 clusters of 1, 8 stages)");
  GemmProblem p = problem(512, 9728, 2560);
  p.num_products = 2, p.products[1].n = 9728, p.swiglu = true, p.norm = GemmProblem::Operand{};
  EXPECT_EQ(kernel_names(choose_gemm(p, kH200)), "rms_norm+swiglu");
  EXPECT_EQ(to_string(choose_gemm(p, kH200)).substr(0, 18), "rms_norm, swiglu (");
}

TEST(GemmHeuristics, LeaveFamiliesOut) {
  const GemmProblem one = problem(1, 1024, 2048);
  EXPECT_EQ(names(one), "gemv");
  EXPECT_EQ(names(one, "gemv"), "small_m");
  EXPECT_EQ(names(one, "gemv,small_m"), "cublaslt");
  EXPECT_EQ(names(one, "gemv,small_m,cublaslt"), "simt");
  EXPECT_EQ(names(one, "simt,another_op"), "gemv");
  const GemmProblem large = problem(2, 9728, 2560);
  EXPECT_EQ(names(large), "sequence");
  EXPECT_EQ(names(large, "sequence"), "small_m");
  const char* others = "gemv,small_m,skinny,swiglu,batch_invariant_sm90,batch_invariant_sm80,cublaslt";
  EXPECT_EQ(names(one, others), "sequence");
  EXPECT_EQ(names(problem(5, 1024, 2048), others), "simt");
}

// No M of batch-invariant mode may get a kernel of another order: on sm_90 these follow fixed_splits.h.
TEST(GemmHeuristics, BatchInvariantModeHasKernelsOfOneOrderForEveryM) {
  const auto follows = [](GemmFamily family) {
    return family != GemmFamily::kCublasLt && family != GemmFamily::kSwiglu && family != GemmFamily::kSimt;
  };
  for (const int64_t n : {8, 70, 1000, 1024, 1030, 4096, 151936}) {
    for (const int64_t k : {64, 72, 960, 968, 2560, 9728, 28672}) {
      for (int64_t m = 1; m < 200; ++m) {
        const GemmConfig config = choose_gemm(problem(m, n, k, Determinism::kStrict), kH200);
        EXPECT_TRUE(follows(config.kernels[0].family)) << m << " " << n << " " << k << ": " << kernel_names(config);
      }
    }
  }
  // K that is no multiple of 8 has the SIMT kernel for every M.
  for (const int64_t m : {1, 2, 4, 16, 64, 200}) {
    GemmProblem p = problem(m, 1024, 2044, Determinism::kStrict);
    p.x.align = 8, p.products[0].weight.align = 8;
    EXPECT_EQ(names(p), "simt") << m;
  }
}

// A norm in batch-invariant mode has the bits of rms_norm: it runs apart, or in a kernel with the same sums.
TEST(GemmHeuristics, BatchInvariantNormsAreApartFromSkinnyGemms) {
  GemmProblem p = problem(8, 4096, 2048, Determinism::kStrict);
  p.norm = GemmProblem::Operand{};
  DeviceProperties older = kH200;
  older.arch = 80;
  EXPECT_EQ(kernel_names(choose_gemm(p, older)), "rms_norm+skinny");
  p.mode = Determinism::kFast;
  EXPECT_EQ(kernel_names(choose_gemm(p, older)), "skinny");
  GemmProblem sequence = problem(4, 9728, 16384, Determinism::kStrict);
  sequence.norm = GemmProblem::Operand{};
  EXPECT_EQ(names(sequence), "sequence");
  sequence.k = 16392;  // rms_norm adds longer rows in another order
  EXPECT_EQ(names(sequence).substr(0, 9), "rms_norm+");
}

TEST(GemmProblem, DescribesTheTensorsOfACall) {
  const Tensor x(kBF16, {3, 64}), w(kBF16, {32, 64}), y(kBF16, {3, 48}), bias(kBF16, {32}), norm(kF32, {64});
  const TensorView first = w.view().slice(0, 16), second = w.view().slice(16, 32);
  FusedLinearArgs a{.x = x, .norm_weight = norm, .num_products = 2};
  a.products[0] = {first, bias.view().slice(0, 16), y.view().narrow(1, 0, 16)};
  a.products[1] = {second, bias.view().slice(16, 32), y.view().narrow(1, 16, 32)};
  GemmProblem p = gemm_problem(a, Determinism::kStrict);
  EXPECT_EQ(p.m, 3);
  EXPECT_EQ(p.k, 64);
  EXPECT_EQ(p.products[1].n, 16);
  EXPECT_EQ(p.mode, Determinism::kStrict);
  EXPECT_EQ(p.norm.value().dtype, kF32);
  EXPECT_FALSE(p.residual.has_value());
  EXPECT_FALSE(p.products[0].continues);
  EXPECT_TRUE(p.products[1].continues);
  a.products[1].y = y.view().narrow(1, 20, 36);  // a gap, and rows at multiples of 8 bytes
  p = gemm_problem(a, Determinism::kFast);
  EXPECT_FALSE(p.products[1].continues);
  EXPECT_EQ(p.products[1].y.align, 8);
  EXPECT_EQ(p.products[0].y.align, 16);
  a.products[1].y = y.view().narrow(1, 16, 32), a.products[1].bias = {};  // one bias for two products
  EXPECT_FALSE(gemm_problem(a, Determinism::kFast).products[1].continues);
}

TEST(GemmHeuristics, UnalignedOperandsGetKernelsThatReadThem) {
  GemmProblem p = problem(16, 4096, 2048);
  EXPECT_EQ(names(p), "small_m");
  p.products[0].y.align = 2;  // single 16-bit results
  EXPECT_EQ(names(p), "cublaslt");
  p.products[0].y.align = 16, p.x.align = 8;
  EXPECT_EQ(names(p), "cublaslt");
  p.products[0].bias = GemmProblem::Operand{};  // cuBLASLt would round the sum before it adds the bias
  EXPECT_EQ(names(p), "simt");
}

}  // namespace
}  // namespace headrace::cuda
