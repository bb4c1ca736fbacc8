#include "headrace/ops/cuda/gemm/heuristics.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm_plan.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"
#include "headrace/ops/cuda/limits.h"

namespace headrace::cuda {
namespace {

using Operand = GemmProblem::Operand;
using Product = GemmProblem::Product;
using Kernel = GemmConfig::Kernel;

constexpr std::array<std::string_view, kNumGemmFamilies> kNames = {
    "sequence", "gemv", "small_m", "skinny", "swiglu", "batch_invariant_sm90", "batch_invariant_sm80",
    "cublaslt", "simt"};

Operand operand_of(const TensorView& x) {
  const int64_t size = size_of(x.dtype());
  uint64_t bits = reinterpret_cast<uintptr_t>(x.data()) | 16U;
  if (x.rank() == 2) bits |= static_cast<uint64_t>(x.stride(0) * size);
  if (x.stride(x.rank() - 1) != 1) bits |= static_cast<uint64_t>(size);  // no packed access
  return {.dtype = x.dtype(), .align = static_cast<int>(bits & (~bits + 1))};
}
std::optional<Operand> operand_if(const TensorView& x) { return x ? std::optional(operand_of(x)) : std::nullopt; }
// Returns the operand of a dense temporary, which begins at a multiple of 256 bytes.
Operand temporary(DType dtype, int64_t columns) {
  const auto bits = static_cast<uint64_t>(columns * size_of(dtype)) | 16U;
  return {.dtype = dtype, .align = static_cast<int>(bits & (~bits + 1))};
}

// Returns true if `next` begins where the `bytes` of `first` end, with the same dtype.
bool follows(const TensorView& first, const TensorView& next, int64_t bytes) {
  return static_cast<char*>(first.data()) + bytes == next.data() && first.dtype() == next.dtype();
}
bool continues(const FusedLinearArgs::Product& first, const FusedLinearArgs::Product& next) {
  const int64_t n = first.weight.dim(0);
  const bool biases = first.bias ? next.bias && follows(first.bias, next.bias, first.bias.bytes()) : !next.bias;
  return first.weight.is_contiguous() && follows(first.weight, next.weight, first.weight.bytes()) &&
         first.y.stride(0) == next.y.stride(0) && follows(first.y, next.y, n * size_of(first.y.dtype())) && biases;
}

// Returns true if a kernel can read or write the operand in 16-byte vectors of the dtype `type`.
bool in_vec8(const Operand& o, DType type, int64_t columns) {
  return o.dtype == type && o.align == 16 && columns % 8 == 0;
}
// Pairs of 16-bit elements, 4 bytes each.
bool in_pairs(const Operand& o, DType type, int64_t columns) {
  return o.dtype == type && o.align >= 4 && columns % 2 == 0;
}

// A problem, a device and the families that may run it. Every `..._runs` asks for limits of a kernel and whether it is
// the fastest there.
class Choice {
 public:
  Choice(const DeviceProperties& device, GemmFamilies leave_out) : device_(device), leave_out_(leave_out) {}

  GemmConfig of(const GemmProblem& p) const {
    if (sequence_runs(p)) return whole(GemmFamily::kSequence);
    if (gemv_runs(p)) return whole(GemmFamily::kGemv);
    // In batch-invariant mode a norm has the bits of rms_norm: it is that kernel.
    const bool invariant = p.mode == Determinism::kStrict;
    if (!(invariant && p.norm) && skinny_runs(p)) return whole(GemmFamily::kSkinny);
    GemmConfig config = without_norm(normed_apart(p));
    config.norm_apart = p.norm.has_value();
    return config;
  }

 private:
  bool may(GemmFamily family) const { return !leave_out_.contains(family); }
  bool is_hopper() const { return device_.arch == 90; }

  static GemmConfig whole(GemmFamily family) { return whole(Kernel{.family = family}); }
  static GemmConfig whole(const Kernel& kernel) { return {.whole = true, .kernels = {kernel}, .num_kernels = 1}; }
  static GemmProblem normed_apart(GemmProblem p) {
    if (p.norm) p.x = temporary(p.x.dtype, p.k), p.norm.reset();
    return p;
  }

  // For a problem whose norm, if it had one, has run: as one kernel, else product by product.
  GemmConfig without_norm(const GemmProblem& p) const {
    if (p.mode == Determinism::kStrict && skinny_runs(p)) return whole(GemmFamily::kSkinny);
    if (p.swiglu) {
      if (const auto kernel = swiglu_kernel(p)) return whole(*kernel);
    }
    GemmConfig config{.silu_apart = p.swiglu};
    for (int i = 0; i < p.num_products;) {
      GemmProblem one = p;
      one.num_products = 1, one.swiglu = false;
      Product& product = one.products[0] = p.products[static_cast<size_t>(i)];
      if (p.swiglu) product.y = y_apart(p, i);
      for (++i; !p.swiglu && i < p.num_products && p.products[static_cast<size_t>(i)].continues; ++i) {
        product.n += p.products[static_cast<size_t>(i)].n;
      }
      config.kernels[static_cast<size_t>(config.num_kernels++)] = kernel_of_one(one);
    }
    return config;
  }
  // gate and up before silu(gate) * up: float32 in batch-invariant mode, as in the kernels that do it all.
  static Operand y_apart(const GemmProblem& p, int product) {
    const Product& first = p.products[0];
    if (p.mode == Determinism::kStrict) return temporary(DType::kF32, first.n);
    return product == 0 ? first.y : temporary(first.y.dtype, first.n);
  }

  std::optional<Kernel> swiglu_kernel(const GemmProblem& p) const {
    if (const auto plan = small_m_plan(p)) return Kernel{GemmFamily::kSmallM, *plan};
    const bool invariant = p.mode == Determinism::kStrict;
    if (!can_batch_invariant_sm90(p)) return std::nullopt;
    if (invariant && may(GemmFamily::kBatchInvariantSm90)) return Kernel{GemmFamily::kBatchInvariantSm90};
    if (invariant || p.products[0].y.dtype != p.x.dtype || !may(GemmFamily::kSwiglu)) return std::nullopt;
    const SwigluGemmPlan plan = plan_swiglu_gemm(p.m, p.products[0].n, p.k, device_.num_sms);
    if (plan.kernel == SwigluGemmPlan::Kernel::kParts) return std::nullopt;
    return Kernel{GemmFamily::kSwiglu, plan};
  }

  // For one product without a norm.
  Kernel kernel_of_one(const GemmProblem& p) const {
    if (gemv_runs(p)) return {GemmFamily::kGemv};
    if (const auto plan = small_m_plan(p)) return {GemmFamily::kSmallM, *plan};
    if (skinny_runs(p)) return {GemmFamily::kSkinny};
    if (p.mode == Determinism::kStrict) {
      if (may(GemmFamily::kBatchInvariantSm90) && can_batch_invariant_sm90(p)) return {GemmFamily::kBatchInvariantSm90};
      if (may(GemmFamily::kBatchInvariantSm80) && can_mma(p)) return {GemmFamily::kBatchInvariantSm80};
    } else if (may(GemmFamily::kCublasLt) && can_cublaslt(p)) {
      return {GemmFamily::kCublasLt};
    }
    return {GemmFamily::kSimt};
  }

  // 16-bit floats, in 16-byte vectors along K.
  static bool can_mma(const GemmProblem& p) {
    if (p.x.dtype == DType::kF32 || !in_vec8(p.x, p.x.dtype, p.k)) return false;
    return std::ranges::all_of(p.products.begin(), p.products.begin() + p.num_products,
                               [&](const Product& one) { return in_vec8(one.weight, p.x.dtype, p.k); });
  }
  // SwiGLU's epilogue adds neither bias nor residual.
  static bool has_bias(const GemmProblem& p) {
    return std::ranges::any_of(p.products.begin(), p.products.begin() + p.num_products,
                               [](const Product& one) { return one.bias.has_value(); });
  }

  static bool can_skinny(const GemmProblem& p) {
    const int64_t largest_k = p.norm ? 5120 : 5632;  // for M = 16; larger ones are not measured
    return p.m <= SkinnyGemmShape::kMostRows && can_mma(p) && p.k <= largest_k * SkinnyGemmShape::kMostRows / p.m &&
           !(p.swiglu && has_bias(p));
  }
  // On sm_90 the kernels around it are as fast.
  bool skinny_runs(const GemmProblem& p) const {
    const SkinnyGemmShape shape{.rows = p.m,
                                .in = p.k,
                                .normed = p.norm.has_value(),
                                .combined = p.swiglu,
                                .strict = p.mode == Determinism::kStrict};
    return may(GemmFamily::kSkinny) && !is_hopper() && can_skinny(p) &&
           shape.fits(static_cast<int64_t>(device_.shared_bytes_of_block));
  }

  bool gemv_runs(const GemmProblem& p) const {
    if (!may(GemmFamily::kGemv) || p.m > skinny::kMostGemvRows || !can_skinny(p)) return false;
    int64_t tiles = 0;
    for (int i = 0; i < (p.swiglu ? 1 : p.num_products); ++i) {
      tiles += skinny::tiles_of(p.products[static_cast<size_t>(i)].n);
    }
    return skinny::gemv_passes(p.k, tiles, p.swiglu, device_.num_sms) > 0;
  }

  // The sequence always adds in batch-invariant order. The exception is a norm of rows that are too long for the order
  // of rms_norm.
  bool sequence_runs(const GemmProblem& p) const {
    if (!may(GemmFamily::kSequence) || !is_hopper() || !can_skinny(p)) return false;
    if (p.norm && (p.norm->dtype != p.x.dtype || p.norm->align != 16)) return false;
    if (p.norm && p.mode == Determinism::kStrict && p.k > kLongestOrderedNorm) return false;
    int64_t bytes = 0;
    bool results_are_as_x = true;
    for (int i = 0; i < p.num_products; ++i) {
      const Product& one = p.products[static_cast<size_t>(i)];
      bytes += one.n * p.k * size_of(one.weight.dtype);
      results_are_as_x = results_are_as_x && ((p.swiglu && i == 1) || one.y.dtype == p.x.dtype);
    }
    const GemmSequenceStep step{.in = p.k, .normed = p.norm.has_value()};
    const bool pays = gemm_sequence_pays(bytes, results_are_as_x) || leave_out_.leave_only(GemmFamily::kSequence);
    return pays && plan_gemm_sequence(static_cast<int>(p.m), &step, 1).slots > 0;
  }

  std::optional<SmallMGemmPlan> small_m_plan(const GemmProblem& p) const {
    if (!may(GemmFamily::kSmallM) || !is_hopper() || !can_mma(p)) return std::nullopt;
    const Product& product = p.products[0];
    if (p.swiglu && (p.residual || has_bias(p))) return std::nullopt;
    // A lane writes two neighbouring 16-bit results at once, and reads such residuals; it writes float32 one by one.
    const bool writes = (product.y.dtype == DType::kF32 && !p.swiglu) || in_pairs(product.y, p.x.dtype, product.n);
    if (!writes || (p.residual && !in_pairs(*p.residual, p.x.dtype, product.n))) return std::nullopt;
    const SmallMGemmPlan plan = plan_small_m_gemm(
        {.rows = p.m, .out = product.n, .in = p.k, .combined = p.swiglu, .strict = p.mode == Determinism::kStrict},
        device_.num_sms);
    return plan.box_rows != 0 ? std::optional(plan) : std::nullopt;
  }

  // Limits of the WGMMA kernels for large M.
  bool can_batch_invariant_sm90(const GemmProblem& p) const {
    const DType type = p.x.dtype;
    if (!is_hopper() || !can_mma(p) || (p.swiglu && (p.residual || has_bias(p)))) return false;
    const Product& product = p.products[0];
    if (product.bias && (product.bias->dtype != type || product.bias->align < 4)) return false;
    if (product.y.dtype == DType::kF32) return !p.residual && product.y.align >= 8 && product.n % 2 == 0;
    return in_vec8(product.y, type, product.n) && (!p.residual || in_vec8(*p.residual, type, product.n));
  }

  // With a bias, rows at any address would get cuBLASLt kernels that round the sum before they add the bias.
  static bool can_cublaslt(const GemmProblem& p) {
    const Product& product = p.products[0];
    const DType type = p.x.dtype, result = product.y.dtype;
    if (product.bias && (p.x.align < 16 || product.weight.align < 16)) return false;
    return product.weight.dtype == type && (result == type || result == DType::kF32) &&
           (!product.bias || product.bias->dtype == type || product.bias->dtype == result);
  }

  const DeviceProperties& device_;
  GemmFamilies leave_out_;
};

std::string printed(const Kernel& kernel) {
  std::string text(name_of(kernel.family));
  if (const auto* small = std::get_if<SmallMGemmPlan>(&kernel.plan)) {
    const int turned = small->turned_rows();
    text += str(" (", turned > 0 ? "swap-AB, " : "", small->columns, " columns of W",
                small->weights == 2 ? "'s two" : "", " a tile, ", small->box_rows, " rows of x, ", small->clusters,
                " clusters of ", small->blocks, ", ", small->stages, " stages)");
  }
  if (const auto* swiglu = std::get_if<SwigluGemmPlan>(&kernel.plan)) {
    const bool wide = swiglu->kernel == SwigluGemmPlan::Kernel::kWide;
    text += str(" (", wide ? swiglu->width : SwigluGemmPlan::kOrderedRows, " x ",
                wide ? SwigluGemmPlan::kColumns : SwigluGemmPlan::kOrderedColumns, " tiles",
                wide ? "" : " of batch_invariant_sm90", ")");
  }
  return text;
}

}  // namespace

std::string_view name_of(GemmFamily family) { return kNames[static_cast<size_t>(family)]; }

bool GemmFamilies::leave_only(GemmFamily family) const {
  std::bitset<kNumGemmFamilies> all = set_;
  all.set(static_cast<size_t>(GemmFamily::kSimt));
  return !contains(family) && all.set(static_cast<size_t>(family)).all();
}

std::string gemm_family_names() {
  std::string names;
  for (const std::string_view name : kNames) {
    if (name != name_of(GemmFamily::kSimt)) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

GemmFamilies::GemmFamilies(std::string_view names) {
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const auto* const found = std::ranges::find(kNames, name);
    if (found != kNames.end() && *found != name_of(GemmFamily::kSimt))
      set_.set(static_cast<size_t>(found - kNames.begin()));
  }
}

GemmProblem gemm_problem(const FusedLinearArgs& a, Determinism mode) {
  GemmProblem p{.m = a.x.dim(0),
                .k = a.x.dim(1),
                .num_products = a.num_products,
                .x = operand_of(a.x),
                .norm = operand_if(a.norm_weight),
                .residual = operand_if(a.residual),
                .swiglu = a.combine == FusedLinearArgs::Combine::kSiluMul,
                .mode = mode};
  for (size_t i = 0; i < static_cast<size_t>(a.num_products); ++i) {
    const FusedLinearArgs::Product& from = a.products[i];
    p.products[i] = {.n = from.weight.dim(0),
                     .weight = operand_of(from.weight),
                     .y = operand_of(from.y ? from.y : a.products[0].y),
                     .bias = operand_if(from.bias),
                     .continues = !p.swiglu && i > 0 && continues(a.products[i - 1], from)};
  }
  return p;
}

std::string kernel_names(const GemmConfig& config) {
  std::string text = config.norm_apart ? "rms_norm" : "";
  for (int i = 0; i < config.num_kernels; ++i) {
    text += (text.empty() ? "" : "+") + std::string(name_of(config.kernels[static_cast<size_t>(i)].family));
  }
  return config.silu_apart ? text + "+silu_mul" : text;
}

std::string to_string(const GemmConfig& config) {
  std::string text = config.norm_apart ? "rms_norm" : "";
  for (int i = 0; i < config.num_kernels; ++i) {
    text += (text.empty() ? "" : ", ") + printed(config.kernels[static_cast<size_t>(i)]);
  }
  return config.silu_apart ? text + ", silu_mul" : text;
}

GemmConfig choose_gemm(const GemmProblem& problem, const DeviceProperties& device, GemmFamilies leave_out) {
  return Choice(device, leave_out).of(problem);
}

}  // namespace headrace::cuda
