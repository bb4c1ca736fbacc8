// Rotation of one pair of elements. The angle is a float32 product, as in the models' own code. Sine and cosine are the
// accurate functions, because angles grow with the context length.
#pragma once

namespace headrace::cuda {

struct Rotation {
  float sine = 0, cosine = 1;

  Rotation() = default;
  __device__ Rotation(int position, float inv_freq, float magnitude) {
    sincosf(static_cast<float>(position) * inv_freq, &sine, &cosine);
    sine *= magnitude, cosine *= magnitude;
  }
  // Return the rotated pair (a, b). Explicit rounding makes all kernels produce the same bits.
  __device__ float first(float a, float b) const { return fmaf(a, cosine, -__fmul_rn(b, sine)); }
  __device__ float second(float a, float b) const { return fmaf(b, cosine, __fmul_rn(a, sine)); }
};

}  // namespace headrace::cuda
