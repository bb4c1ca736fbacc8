// The first tokens of rows in descending order of their logits, in one pass. Several CTAs read parts of a row. Each
// keeps the first keys that it has found and skips all logits below them. Then one CTA per row merges the parts. Keys
// are unique, so the result depends neither on the parts nor on the order in which threads add keys.
#include <algorithm>

#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/ops.h"
#include "headrace/ops/cuda/sampling/candidates.cuh"
#include "headrace/ops/top_tokens.h"

namespace headrace::cuda {
namespace sampling {
namespace {

constexpr int kThreads = 256, kPerThread = 16, kSlice = kThreads * kPerThread;  // logits that a CTA reads at a time
constexpr int kBlocksPerSM = 4;

// A logit's place in the upper half, its id in the lower half: the order of the result. NaN counts as minus infinity.
using Key = uint64_t;
constexpr Key kNoKey = ~Key{0};
__device__ inline Key key_of(float x, int id) {
  return Key{place_of(x == x ? x : -INFINITY)} << 32 | static_cast<uint32_t>(id);
}

// The first `count` of the keys that a CTA was offered, and others that no cut() has dropped yet.
class FirstKeys {
  static constexpr int kCapacity = TopTokensArgs::kMostTokens + kThreads;  // after a cut one key per thread fits

 public:
  struct Memory {
    Key keys[512];  // kCapacity, to a power of two
    int end;
  };
  static_assert(kCapacity <= 512);

  __device__ FirstKeys(Memory& memory, int count) : memory_(memory), count_(count) {
    if (threadIdx.x == 0) memory.end = 0;  // read after the barrier of offer()
  }
  // Returns false if no key of a logit x is among the first ones.
  __device__ bool may_hold(float x) const { return x >= least_; }
  // Offers keys of all threads of the CTA: `mine`, then next(key) after each key that was added. kNoKey: no further
  // key.
  template <class Next>
  __device__ void offer(Key mine, const Next& next) {
    for (;;) {
      const int more = __syncthreads_count(mine < bound_);
      if (more == 0) return;
      if (listed_ + more > kCapacity) {
        cut();
        continue;
      }
      if (mine < bound_) {
        memory_.keys[atomicAdd(&memory_.end, 1)] = mine;
        mine = next(mine);
      }
      listed_ += more;
    }
  }
  // Sorts the keys and drops all but the first `count`.
  __device__ void cut() {
    const int size = SortedList::size(listed_);
    for (int i = listed_ + static_cast<int>(threadIdx.x); i < size; i += kThreads) memory_.keys[i] = kNoKey;
    sort(memory_.keys, size, kThreads);
    listed_ = min(listed_, count_);
    if (threadIdx.x == 0) memory_.end = listed_;
    if (listed_ < count_) return;
    bound_ = memory_.keys[count_ - 1];
    least_ = logit_at(static_cast<uint32_t>(bound_ >> 32));
  }
  // Returns a key, kNoKey if there are fewer. Requires cut().
  __device__ Key at(int i) const { return i < listed_ ? memory_.keys[i] : kNoKey; }

 private:
  Memory& memory_;
  int count_, listed_ = 0;
  Key bound_ = kNoKey;       // no key from here on is among the first ones
  float least_ = -INFINITY;  // its logit
};

struct Params {
  const float* logits;
  int64_t stride;
  int vocab, excluded, count;
  int parts, part;  // parts of a row, and ids per part
  const int32_t* rows;
  Key* lists;  // [rows, count, parts]
  int32_t* ids;
  float* top;

  __device__ const float* row(int index) const { return logits + rows[index] * stride; }
};

// A thread's share of the ids [begin, end), at most kSlice.
class Share {
 public:
  __device__ Share(const float* logits, int begin, int end, int excluded)
      : first_(begin + static_cast<int>(threadIdx.x)), end_(end), excluded_(excluded) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) x_[i] = holds(id(i)) ? __ldcg(logits + id(i)) : -INFINITY;
  }
  __device__ float largest() const {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) largest = fmaxf(largest, x_[i]);
    return largest;
  }
  // Returns the first key that is at least `from`, kNoKey if there is none.
  __device__ Key first_from(Key from) const {
    Key first = kNoKey;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const Key key = key_of(x_[i], id(i));
      if (key >= from && key < first && holds(id(i))) first = key;
    }
    return first;
  }

 private:
  __device__ int id(int i) const { return first_ + i * kThreads; }
  __device__ bool holds(int id) const { return id < end_ && id != excluded_; }

  int first_, end_, excluded_;
  float x_[kPerThread];
};

__device__ void write(const Params& p, int row, const float* logits, const FirstKeys& keys) {
  for (int i = threadIdx.x; i < p.count; i += kThreads) {
    const Key key = keys.at(i);
    const int64_t to = int64_t{row} * p.count + i;
    const int id = key == kNoKey ? -1 : static_cast<int>(static_cast<uint32_t>(key));
    p.ids[to] = id, p.top[to] = id < 0 ? -INFINITY : __ldcg(logits + id);
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSM) read_parts(const __grid_constant__ Params p) {
  __shared__ FirstKeys::Memory memory;
  pdl_launch_dependents();
  pdl_wait();
  const int row = static_cast<int>(blockIdx.x) / p.parts, part = static_cast<int>(blockIdx.x) % p.parts;
  const float* logits = p.row(row);
  const int end = min((part + 1) * p.part, p.vocab);
  FirstKeys keys(memory, p.count);
  for (int begin = part * p.part; begin < end; begin += kSlice) {
    const Share share(logits, begin, end, p.excluded);
    keys.offer(keys.may_hold(share.largest()) ? share.first_from(0) : kNoKey,
               [&](Key key) { return share.first_from(key + 1); });
  }
  keys.cut();
  if (p.parts == 1) return write(p, row, logits, keys);
  Key* list = p.lists + int64_t{row} * p.count * p.parts + part;
  for (int i = threadIdx.x; i < p.count; i += kThreads) list[i * p.parts] = keys.at(i);
}

__global__ void __launch_bounds__(kThreads) merge_parts(const __grid_constant__ Params p) {
  __shared__ FirstKeys::Memory memory;
  pdl_launch_dependents();
  pdl_wait();
  const int row = static_cast<int>(blockIdx.x), size = p.count * p.parts;
  const Key* list = p.lists + int64_t{row} * size;
  FirstKeys keys(memory, p.count);
  for (int begin = 0; begin < size; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    keys.offer(i < size ? __ldcg(as_unsigned(list + i)) : kNoKey, [](Key) { return kNoKey; });
  }
  keys.cut();
  write(p, row, p.row(row), keys);
}

// Returns the slices per part, for about two waves of CTAs. Their lists fit the scratch memory many times.
int slices_of_part(int64_t slices, int64_t rows, int num_sms) {
  const int64_t parts = std::clamp<int64_t>(2 * kBlocksPerSM * num_sms / rows, 1, slices);
  return static_cast<int>((slices + parts - 1) / parts);
}

}  // namespace
}  // namespace sampling

void top_tokens(const TopTokensArgs& a, const OpContext& context) {
  using namespace sampling;
  check(a);
  const int64_t rows = a.rows.numel(), slices = (a.vocab + kSlice - 1) / kSlice;
  if (rows == 0) return;
  const Stream& stream = stream_of(context);
  const int slices_each = slices_of_part(slices, rows, stream.num_sms);
  const Params p{.logits = static_cast<const float*>(a.logits.data()),
                 .stride = a.logits.stride(0),
                 .vocab = a.vocab,
                 .excluded = a.excluded_id.value_or(-1),
                 .count = static_cast<int>(a.ids.dim(1)),
                 .parts = static_cast<int>((slices + slices_each - 1) / slices_each),
                 .part = slices_each * kSlice,
                 .rows = static_cast<const int32_t*>(a.rows.data()),
                 .lists = static_cast<Key*>(stream.scratch),
                 .ids = static_cast<int32_t*>(a.ids.data()),
                 .top = static_cast<float*>(a.top.data())};
  const auto launch = [&](void (*kernel)(Params), int64_t blocks) {
    launch_pdl(stream, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, p, "top_tokens",
               {.share = SharedShare::kAll});  // as token_confidence
  };
  launch(read_parts, rows * p.parts);
  if (p.parts > 1) launch(merge_parts, rows);
}

}  // namespace headrace::cuda
