// Gates of Gated DeltaNet. All kernels share this definition, so that their bits agree.
#pragma once

namespace headrace::cuda {

// Returns the log of the decay, <= 0. softplus(u) = u for u > 20.
__device__ inline float gdn_log_decay(float a, float a_log, float dt_bias) {
  const float u = a + dt_bias;
  return -expf(a_log) * (u > 20.0f ? u : log1pf(expf(u)));
}
__device__ inline float gdn_beta(float b) { return 1.0f / (1.0f + expf(-b)); }

// Returns the factor that normalises q or k to length one (eps inside the root).
__device__ inline float gdn_unit_factor(float sum_of_squares) { return rsqrtf(sum_of_squares + 1e-6f); }

}  // namespace headrace::cuda
