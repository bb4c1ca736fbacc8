// Chooses the kernels of a GEMM call. Pure: a problem and a device in, a configuration out. Plain C++, part of builds
// without CUDA too: tests ask it on the host, and `headrace doctor --explain` prints its answers.
#pragma once
#include <array>
#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "headrace/ops/cuda/gemm/sm90/small_m_gemm_plan.h"
#include "headrace/ops/cuda/gemm/sm90/swiglu_gemm_plan.h"
#include "headrace/ops/cuda/runtime/device_properties.h"
#include "headrace/ops/fused_linear.h"

namespace headrace::cuda {

enum class GemmFamily : uint8_t {
  kSequence,            // sm90/gemm_sequence
  kGemv,                // sm80/gemv
  kSmallM,              // sm90/small_m_gemm
  kSkinny,              // sm80/skinny_gemm
  kSwiglu,              // sm90/swiglu_gemm
  kBatchInvariantSm90,  // sm90/batch_invariant_gemm
  kBatchInvariantSm80,  // sm80/batch_invariant_gemm
  kCublasLt,            // cublaslt_gemm; simt_gemm where cuBLASLt has no kernel for the shape
  kSimt,                // simt_gemm
};
inline constexpr size_t kNumGemmFamilies = 9;
std::string_view name_of(GemmFamily family);  // "sequence", "gemv", "small_m", ...

// Returns the names that GemmFamilies reads, with commas between them.
std::string gemm_family_names();

// A set of families.
class GemmFamilies {
 public:
  constexpr GemmFamilies() = default;
  // Reads names separated by commas and skips others, which may be families of other ops, and "simt", which takes what
  // no other family takes.
  explicit GemmFamilies(std::string_view names);
  bool contains(GemmFamily family) const { return set_[static_cast<size_t>(family)]; }
  bool empty() const { return set_.none(); }
  // True if no other family may run but kSimt.
  bool leave_only(GemmFamily family) const;

 private:
  std::bitset<kNumGemmFamilies> set_;
};

// One call of fused_linear as kernels see it: y = n W^T (+ bias) (+ residual), n = x or its RMS norm; x [m, k],
// W [n, k], y [m, n].
struct GemmProblem {
  // `align`: the largest power of two, at most 16, that divides the byte address of every row.
  struct Operand {
    DType dtype = DType::kBF16;
    int align = 16;
  };
  struct Product {
    int64_t n = 0;
    Operand weight = {}, y = {};
    std::optional<Operand> bias = {};
    // True if weight rows, bias and result lie right behind the previous product's, so that one GEMM computes both.
    bool continues = false;
  };

  int64_t m = 0, k = 0;
  std::array<Product, FusedLinearArgs::kMaxProducts> products = {};
  int num_products = 1;
  Operand x = {};
  std::optional<Operand> norm = {}, residual = {};
  bool swiglu = false;  // silu(first) * second, in the first product's y
  Determinism mode = Determinism::kFast;
};
// Describes `args`, which must have passed check().
GemmProblem gemm_problem(const FusedLinearArgs& args, Determinism mode);

struct GemmConfig {
  struct Kernel {
    GemmFamily family = GemmFamily::kSimt;
    std::variant<std::monostate, SmallMGemmPlan, SwigluGemmPlan> plan = {};  // of kSmallM and kSwiglu
  };
  bool norm_apart = false;  // rms_norm runs before the GEMMs, as a kernel of its own
  bool silu_apart = false;  // silu(gate) * up runs after the GEMMs, as a kernel of its own
  // True: kernels[0] runs all products. Otherwise each product that does not continue another has a kernel; with
  // silu_apart each product has one.
  bool whole = false;
  std::array<Kernel, FusedLinearArgs::kMaxProducts> kernels = {};
  int num_kernels = 0;

  bool is_sequence() const { return whole && kernels[0].family == GemmFamily::kSequence; }
};
// Returns the kernels in order: "rms_norm+small_m".
std::string kernel_names(const GemmConfig& config);
// Returns the kernels with their plans, one line: "rms_norm, small_m (swap-AB, 64 columns of W a tile, ...)".
std::string to_string(const GemmConfig& config);

// Returns the configuration of a call with m, k and every n above 0. `leave_out`: families that it must not choose, for
// benches and tests. The sequence then also takes calls for which others would be faster, if no other is left.
GemmConfig choose_gemm(const GemmProblem& problem, const DeviceProperties& device, GemmFamilies leave_out = {});

}  // namespace headrace::cuda
