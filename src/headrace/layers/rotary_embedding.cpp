#include "headrace/layers/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace headrace {
namespace {

// Source: Llama 3.1's frequency scaling: long waves slower by `factor`, short ones as they are, a blend between.
double llama3(double w, const RotaryConfig& c) {
  const double wavelength = 2 * std::numbers::pi / w;
  if (wavelength > c.original_max_position / c.low_freq_factor) return w / c.factor;
  if (wavelength < c.original_max_position / c.high_freq_factor) return w;
  const double blend =
      (c.original_max_position / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return (1 - blend) * w / c.factor + blend * w;
}

// Source: Peng et al. 2023, YaRN, eq. 17 to 23.
double yarn(double w, int64_t i, int64_t rotary_dim, const RotaryConfig& c) {
  const auto corrected = [&](double turns) {
    return static_cast<double>(rotary_dim) * std::log(c.original_max_position / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(c.theta));
  };
  const double low = std::max(std::floor(corrected(c.beta_fast)), 0.0);
  const double high = std::min(std::ceil(corrected(c.beta_slow)), static_cast<double>(rotary_dim - 1));
  const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(high - low, 0.001), 0.0, 1.0);
  return w / c.factor * ramp + w * (1 - ramp);
}

double scaled(double w, int64_t i, int64_t rotary_dim, const RotaryConfig& c) {
  if (c.type == "default") return w;
  if (c.type == "linear") return w / c.factor;
  if (c.type == "llama3") return llama3(w, c);
  if (c.type == "yarn") return yarn(w, i, rotary_dim, c);
  throw Error(ErrorCode::kUnsupported, str("config.json: rope type '", c.type,
                                           "' is not built; built are: default, linear, llama3, yarn, proportional"));
}

void check_scaling(const RotaryConfig& c) {
  HR_REQUIRE(c.type == "default" || c.factor > 0, ErrorCode::kModelFile, "config.json: rope factor is ", c.factor,
             ", expected a number above 0");
  if (c.type == "llama3") {
    HR_REQUIRE(c.low_freq_factor > 0 && c.high_freq_factor > c.low_freq_factor, ErrorCode::kModelFile,
               "config.json: rope low_freq_factor is ", c.low_freq_factor, " and high_freq_factor ", c.high_freq_factor,
               ", expected 0 < low < high");
  }
  if (c.type != "llama3" && c.type != "yarn") return;
  HR_REQUIRE(c.original_max_position > 0, ErrorCode::kModelFile, "config.json: rope type ", c.type,
             " has no original_max_position_embeddings above 0");
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(const RotaryConfig& c, int64_t head_dim, DeviceRuntime& runtime) {
  HR_REQUIRE(std::isfinite(c.theta) && c.theta > 1, ErrorCode::kModelFile, "config.json: rope theta is ", c.theta,
             ", expected a number above 1 (rope_theta, or rope_parameters.rope_theta)");
  const double partial = c.partial_rotary_factor.value_or(1);
  HR_REQUIRE(partial > 0 && partial <= 1, ErrorCode::kModelFile, "config.json: partial_rotary_factor is ", partial,
             ", expected a number in (0, 1]");
  check_scaling(c);
  const bool proportional = c.type == "proportional";  // pairs span the whole head and only the first of them turn
  const auto share = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  const int64_t rotary_dim = proportional ? head_dim : share;
  HR_REQUIRE(rotary_dim >= 2 && rotary_dim <= head_dim && rotary_dim % 2 == 0, ErrorCode::kModelFile,
             "config.json: partial_rotary_factor ", partial, " rotates ", rotary_dim, " of ", head_dim,
             " elements, expected an even number of at least 2");
  Tensor frequencies(DType::kF32, {rotary_dim / 2});
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    // The power is a float32 one in the checkpoints' training; its rounding is part of the model.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const double w = static_cast<double>(1.0f / std::pow(static_cast<float>(c.theta), exponent));
    set_element(frequencies, i, !proportional ? scaled(w, i, rotary_dim, c) : i < share / 2 ? w : 0);
  }
  inv_freq_ = copied_to(runtime, std::move(frequencies));
  if (c.type == "yarn") {
    magnitude_ = static_cast<float>(c.attention_factor > 0 ? c.attention_factor : 0.1 * std::log(c.factor) + 1);
  }
}

}  // namespace headrace
