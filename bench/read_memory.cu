// A block reads one run of addresses, a warp 512 bytes at a time; blocks follow one another, so that multiprocessors
// that are done early take more of them.
#include "bench/read_memory.h"

#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::bench {
namespace {

constexpr int kThreads = 256;
// A sum that random words hardly ever have. The compiler cannot know this, so it keeps every load.
constexpr uint32_t kNoSum = 0x9e3779b9;

template <int kWords>
__global__ void __launch_bounds__(kThreads) read_words(const uint4* from, uint32_t* to) {
  const uint4* at = from + int64_t{blockIdx.x} * kThreads * kWords + threadIdx.x;
  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldcs(at + i * kThreads);
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) sum += words[i].x + words[i].y + words[i].z + words[i].w;
  if (sum == kNoSum) *to = sum;
}

template <int kWords>
void launch(const TensorView& memory, const TensorView& sum, cudaStream_t stream) {
  constexpr int64_t kBlockBytes = int64_t{kThreads} * kWords * static_cast<int64_t>(sizeof(uint4));
  static_assert((1 << 20) % kBlockBytes == 0);
  const int64_t blocks = memory.bytes() / kBlockBytes;
  if (blocks == 0) return;
  read_words<kWords><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(memory.data()),
                                                                             static_cast<uint32_t*>(sum.data()));
  const cudaError_t status = cudaGetLastError();
  HR_REQUIRE(status == cudaSuccess, ErrorCode::kCuda, "read_memory: ", cudaGetErrorString(status));
}

}  // namespace

void read_memory(const TensorView& memory, int words_per_thread, const TensorView& sum, const OpContext& context) {
  // The stream is the driver's, and so this program's own copy of the runtime may use it; nothing waits in it here.
  const cudaStream_t stream = static_cast<const cuda::Stream*>(context.stream)->handle;
  switch (words_per_thread) {
    case 4: return launch<4>(memory, sum, stream);
    case 8: return launch<8>(memory, sum, stream);
    case 16: return launch<16>(memory, sum, stream);
    default:
      throw Error(ErrorCode::kInvalidArgument, str("read_memory: ", words_per_thread, " words, expected 4, 8 or 16"));
  }
}

}  // namespace headrace::bench
