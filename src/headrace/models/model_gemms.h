// The GEMMs of a model's forward pass on a device, from its configuration alone: which kernels they get can be asked
// before weights are read (cuda::choose_gemm).
#pragma once
#include <string>
#include <vector>

#include "headrace/models/diffusion_gemma.h"
#include "headrace/models/model_config.h"
#include "headrace/ops/cuda/gemm/heuristics.h"

namespace headrace {

// One call of fused_linear or linear. The problem's `m` and `mode` are the caller's to set; experts' GEMMs are another
// op's and not among them.
struct ModelGemm {
  std::string name;  // "attention qkv", "mlp down", ...
  cuda::GemmProblem problem;
};

// Returns each distinct GEMM of the model once, in the order of a layer, the LM head last. Activations and weights have
// `dtype`.
std::vector<ModelGemm> causal_lm_gemms(const ModelConfig& config, DType dtype);
std::vector<ModelGemm> diffusion_gemma_gemms(const ModelConfig& config, const DiffusionGemmaConfig& gemma, DType dtype);
// As diffusion_gemma_gemms, from config.json.
std::vector<ModelGemm> stated_diffusion_gemma_gemms(const JsonValue& root, const ModelConfig& config, DType dtype);

}  // namespace headrace
