// Histogram bins for sampling: sums candidates' weights without an exponential per candidate.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace headrace::cpu {

// Bins of the distance to the largest logit, in temperatures, ascending. A bin is an exponent and seven mantissa bits,
// from 2^-16 to 2^7. Smaller distances fall into the first bin; larger ones and NaN into the last.
class DistanceBins {
 public:
  static constexpr uint32_t kFirst = std::bit_cast<uint32_t>(0x1p-16f) >> 16,
                            kEnd = std::bit_cast<uint32_t>(0x1p7f) >> 16;
  static constexpr size_t kCount = kEnd - kFirst + 2;

  DistanceBins() {
    for (size_t bin = 0; bin < kCount; ++bin) {
      const double middle = bin == 0 ? 0 : (begin(bin) + end(bin)) / 2;
      middles_[bin] = {middle, std::exp(-middle)};
    }
  }
  static size_t of(double distance) {
    if (distance < 0x1p-16) return 0;
    if (!(distance < 0x1p7)) return kCount - 1;
    return (std::bit_cast<uint32_t>(static_cast<float>(distance)) >> 16) - kFirst + 1;
  }
  static double end(size_t bin) {
    if (bin + 1 == kCount) return std::numeric_limits<double>::infinity();
    return std::bit_cast<float>((kFirst + static_cast<uint32_t>(bin)) << 16);
  }
  static double begin(size_t bin) { return bin == 0 ? 0 : end(bin - 1); }
  // Returns a lower bound of the weights in the bin.
  static double least_weight(size_t bin) { return std::exp(-1.001 * end(bin)); }
  // Returns exp(-distance), accurate to 3e-16 of the largest weight, by a Taylor series about the bin's middle.
  double weight(size_t bin, double distance) const {
    if (bin + 1 == kCount) return 0;
    const double x = middles_[bin].distance - distance;
    double sum = 1;
    for (const double inverse : {1.0 / 7, 1.0 / 6, 1.0 / 5, 1.0 / 4, 1.0 / 3, 1.0 / 2, 1.0})
      sum = 1 + x * inverse * sum;
    return middles_[bin].weight * sum;
  }

 private:
  struct Middle {
    double distance, weight;
  };
  std::array<Middle, kCount> middles_;
};

}  // namespace headrace::cpu
