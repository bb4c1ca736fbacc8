#include "headrace/layers/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "headrace/core/device_runtime.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

// Source: Llama 3.1's frequency scaling: long waves slowed by `factor`, short ones unchanged, interpolated between.
double llama3(double w, const RotaryConfig& c) {
  const double wavelength = 2 * std::numbers::pi / w, original = c.original_max_position.value();
  const double low = c.low_freq_factor.value(), high = c.high_freq_factor.value(), slow = w / c.factor.value();
  if (wavelength > original / low) return slow;
  if (wavelength < original / high) return w;
  const double blend = (original / wavelength - low) / (high - low);
  return (1 - blend) * slow + blend * w;
}

// Source: Peng et al. 2023, YaRN, eq. 17 to 23.
double yarn(double w, int64_t i, int64_t rotary_dim, const RotaryConfig& c) {
  const auto corrected = [&](double turns) {
    return static_cast<double>(rotary_dim) *
           std::log(c.original_max_position.value() / (turns * 2 * std::numbers::pi)) / (2 * std::log(c.theta));
  };
  const bool whole = c.ramp == RotaryConfig::Ramp::kWhole;
  const double first = corrected(c.beta_fast), last = corrected(c.beta_slow);
  const double low = std::max(whole ? std::floor(first) : first, 0.0);
  const double high = std::min(whole ? std::ceil(last) : last, static_cast<double>(rotary_dim - 1));
  const double length = high == low ? 0.001 : high - low;  // negative if the trained context is a few tokens
  const double ramp = std::clamp((static_cast<double>(i) - low) / length, 0.0, 1.0);
  return w / c.factor.value() * ramp + w * (1 - ramp);
}

// Source: transformers' yarn, for the ratio of two scales.
double yarn_magnitude(const RotaryConfig& c) {
  const auto magnitude = [&c](double scale) { return 0.1 * scale * std::log(std::max(c.factor.value(), 1.0)) + 1; };
  if (c.attention_factor) return *c.attention_factor;
  const double over = c.mscale.value_or(0), under = c.mscale_all_dim.value_or(0);
  return over != 0 && under != 0 ? magnitude(over) / magnitude(under) : magnitude(1);
}

// Frequency of pair i; in proportional heads only the first `turning` pairs rotate.
double scaled(double w, int64_t i, int64_t turning, const RotaryConfig& c) {
  if (c.type == "default") return w;
  if (c.type == "linear") return w / c.factor.value();
  if (c.type == "llama3") return llama3(w, c);
  if (c.type == "yarn") return yarn(w, i, 2 * turning, c);
  if (c.type == "divided") return w / c.divisors[static_cast<size_t>(i)];
  if (c.type == "proportional") return i < turning ? w / c.factor.value_or(1) : 0;
  throw Error(ErrorCode::kUnsupported,
              str("config.json: rope type '", printable(c.type),
                  "' is not built; built are: default, linear, llama3, yarn, proportional, divided"));
}

// Returns the number. Error kModelFile if it is missing.
double required(const RotaryConfig& c, std::optional<double> stated, const char* key) {
  HR_REQUIRE(stated && *stated > 0 && std::isfinite(*stated), ErrorCode::kModelFile, "config.json: rope type ", c.type,
             " has no ", key, " above 0");
  return *stated;
}

void check_scaling(const RotaryConfig& c) {
  const bool llama3 = c.type == "llama3", yarn = c.type == "yarn";
  if (llama3 || yarn || c.type == "linear" || c.factor) required(c, c.factor, "factor");
  if (llama3 || yarn) required(c, c.original_max_position, "original_max_position_embeddings");
  if (llama3) {
    const double low = required(c, c.low_freq_factor, "low_freq_factor");
    const double high = required(c, c.high_freq_factor, "high_freq_factor");
    HR_REQUIRE(high > low, ErrorCode::kModelFile, "config.json: rope low_freq_factor is ", low,
               " and high_freq_factor ", high, ", expected low < high");
  }
  if (!yarn) return;
  HR_REQUIRE(c.beta_slow > 0 && c.beta_fast > c.beta_slow, ErrorCode::kModelFile, "config.json: rope beta_slow is ",
             c.beta_slow, " and beta_fast ", c.beta_fast, ", expected 0 < slow < fast");
  required(c, yarn_magnitude(c), "attention_factor, nor ratio of mscale and mscale_all_dim,");
}

void check_sections(const RotarySections& s, int64_t pairs) {
  HR_REQUIRE(s.fill(pairs), ErrorCode::kModelFile, "config.json: mrope_section is ", s.t, ", ", s.h, " and ", s.w,
             ", expected counts that add up to ", pairs, " pairs of rotated elements");
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(const RotaryConfig& c, int64_t head_dim, DeviceRuntime& runtime) {
  HR_REQUIRE(std::isfinite(c.theta) && c.theta > 1, ErrorCode::kModelFile, "config.json: rope theta is ", c.theta,
             ", expected a number above 1 (rope_theta, or rope_parameters.rope_theta)");
  const double partial = c.partial_rotary_factor.value_or(1);
  HR_REQUIRE(partial > 0 && partial <= 1, ErrorCode::kModelFile, "config.json: partial_rotary_factor is ", partial,
             ", expected a number in (0, 1]");
  check_scaling(c);
  const bool proportional = c.type == "proportional";  // pairs span the whole head, but only the first ones rotate
  const auto share = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  const int64_t rotary_dim = proportional ? head_dim : share;
  HR_REQUIRE(rotary_dim >= 2 && rotary_dim <= head_dim && rotary_dim % 2 == 0, ErrorCode::kModelFile,
             "config.json: partial_rotary_factor ", partial, " rotates ", rotary_dim, " of ", head_dim,
             " elements, expected an even number of at least 2");
  HR_REQUIRE(c.type != "divided" || std::cmp_equal(c.divisors.size(), rotary_dim / 2), ErrorCode::kModelFile,
             "config.json: rope type divided has ", c.divisors.size(), " divisors, expected ", rotary_dim / 2);
  if (c.sections) check_sections(*c.sections, rotary_dim / 2);
  Tensor frequencies(DType::kF32, {rotary_dim / 2});
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    // Training computes the power in float32, so its rounding is part of the model.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const double w = static_cast<double>(1.0f / std::pow(static_cast<float>(c.theta), exponent));
    set_element(frequencies, i, scaled(w, i, share / 2, c));
  }
  inv_freq_ = copied_to(runtime, std::move(frequencies));
  if (c.type == "yarn") magnitude_ = static_cast<float>(yarn_magnitude(c));
}

}  // namespace headrace
