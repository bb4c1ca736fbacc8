// Fused norm and rotary embedding of query and key heads. A head is handled by 16 or 32 lanes with eight elements each.
// Sums are ordered as in rms_norm's kernel for rows of this length, so the bits agree. In a step the kernel also stores
// the new keys and values; value heads come after the query and key heads.
#include <bit>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/norm/norm_rotary.h"
#include "headrace/ops/cuda/norm/rotation.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;
// Few enough that all CTAs start before the previous kernel ends; 700 tokens are faster with a separate store_kv.
constexpr int kFewTokens = 64;

// K or V of a pool with the heads' dtype: [pages, heads, page_size, dim].
struct PoolSide {
  void* data = nullptr;
  int64_t page_stride = 0, head_stride = 0, slot_stride = 0;

  PoolSide() = default;
  explicit PoolSide(const TensorView& x)
      : data(x.data()), page_stride(x.stride(0)), head_stride(x.stride(1)), slot_stride(x.stride(2)) {}
  template <class T>
  __device__ T* row(int64_t slot, int page_shift, int head) const {
    const int64_t page = slot >> page_shift, within = slot & ((1 << page_shift) - 1);
    return static_cast<T*>(data) + page * page_stride + head * head_stride + within * slot_stride;
  }
};

// Destination of a step's new keys and values.
struct Stored {
  Rows v;
  PoolSide to_k, to_v;
  const int64_t* slots = nullptr;  // null: nothing is stored
  int page_shift = 0;
};

struct Params {
  Rows q, k;
  const void *q_weight, *k_weight;  // null: no norm
  DType weight_type;
  bool weight_in_pieces;  // weights have q's dtype and are aligned: Vec8 loads
  const int32_t* positions;
  const float* inv_freq;
  int tokens, q_heads, k_heads, dim, half;
  float eps, weight_offset, magnitude;
  bool shared_angles;  // heads of 128 rotated completely: both heads of a warp belong to one token
  Stored stored;

  __host__ __device__ int heads() const { return q_heads + (stored.slots != nullptr ? 2 : 1) * k_heads; }
};

template <class T, int kLanes>
struct Head {
  const Params& p;
  int lane;

  __device__ int first() const { return lane * kVec8; }
  __device__ bool any() const { return first() < p.dim; }

  // Loads the weight, of any dtype, when it is used.
  __device__ Vec8<T> weight_of(const void* weights) const {
    Vec8<T> weight{};
    if (any()) {
#pragma unroll
      for (int j = 0; j < kVec8; ++j) weight.v[j] = load(weights, p.weight_type, first() + j);
    }
    return weight;
  }
  __device__ void norm(Vec8<T>& x, const Vec8<T>& weight) const {
    float sum = 0;
#pragma unroll
    for (const float v : x.v) sum = fmaf(v, v, sum);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    const float scale = rsqrtf(sum / static_cast<float>(p.dim) + p.eps);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) x.v[j] = rounded(x.v[j] * (scale * (weight.v[j] + p.weight_offset)));
  }
  // A lane's rotation angles. is_first(): the lane holds first elements of pairs; turns(): it holds rotated elements.
  __device__ bool is_first() const { return lane < p.half / kVec8; }
  __device__ bool turns() const { return lane < 2 * (p.half / kVec8); }
  __device__ void load_frequencies(float (&frequency)[kVec8]) const {
    const int place = threadIdx.x % 32;
    if (p.shared_angles) {  // those that this lane computes for four lanes
      frequency[0] = p.inv_freq[place % 8 * kVec8 + place / 8 * 2];
      frequency[1] = p.inv_freq[place % 8 * kVec8 + place / 8 * 2 + 1];
    } else if (turns()) {
#pragma unroll
      for (int j = 0; j < kVec8; ++j) frequency[j] = p.inv_freq[first() - (is_first() ? 0 : p.half) + j];
    }
  }
  __device__ void find_rotations(int position, const float (&frequency)[kVec8], Rotation (&rotations)[kVec8]) const {
    if (p.shared_angles) {
      share_rotations(position, frequency, rotations);
    } else if (turns()) {
#pragma unroll
      for (int j = 0; j < kVec8; ++j) rotations[j] = Rotation(position, frequency[j], p.magnitude);
    }
  }
  __device__ void rotate(Vec8<T>& x, const Rotation (&rotations)[kVec8]) const {
    const int pieces = p.half / kVec8, place = threadIdx.x % 32;
    const int partner = !turns() ? place : is_first() ? place + pieces : place - pieces;
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      const float other = __shfl_sync(0xffffffffu, x.v[j], partner);
      if (turns()) x.v[j] = is_first() ? rotations[j].first(x.v[j], other) : rotations[j].second(other, x.v[j]);
    }
  }
  // Four lanes of the warp need the same eight angles, so each computes two: sines and cosines are most of the work.
  __device__ void share_rotations(int position, const float (&frequency)[kVec8], Rotation (&rotations)[kVec8]) const {
    const int place = threadIdx.x % 32;
    const Rotation mine[2] = {Rotation(position, frequency[0], p.magnitude),
                              Rotation(position, frequency[1], p.magnitude)};
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      const int holder = j / 2 * 8 + place % 8;
      rotations[j].sine = __shfl_sync(0xffffffffu, mine[j % 2].sine, holder);
      rotations[j].cosine = __shfl_sync(0xffffffffu, mine[j % 2].cosine, holder);
    }
  }
  __device__ static float rounded(float x) { return static_cast<float>(static_cast<T>(x)); }
};

// kStep: variant for a step, whose positions and slots are written before the previous kernel ends (DeviceMetadata). It
// also stores the new keys and values. Large batches use kStep = false: the extra code would take them a tenth longer.
template <class T, int kLanes, bool kStep>
__global__ void __launch_bounds__(kThreads) norm_rotate(const __grid_constant__ Params p) {
  const Head<T, kLanes> head{p, static_cast<int>(threadIdx.x) % kLanes};
  const uint32_t row = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes,
                 heads = static_cast<uint32_t>(p.heads());
  const int token = static_cast<int>(row / heads), number = static_cast<int>(row - row / heads * heads);
  const bool of_q = number < p.q_heads, of_v = kStep && number >= p.q_heads + p.k_heads,
             inside = token < p.tokens && head.any();  // the other lanes take part in the warp's sums
  const int of_side = of_q ? number : of_v ? number - p.q_heads - p.k_heads : number - p.q_heads;
  const void* weights = of_q ? p.q_weight : p.k_weight;
  // Kept unconverted, so that nothing waits for the load until the multiplication.
  RawVec8<T> raw_weight;
  if (p.weight_in_pieces)
    raw_weight = RawVec8<T>::load_constant(static_cast<const T*>(weights) + min(head.first(), p.dim - kVec8));
  float frequency[kVec8] = {};
  head.load_frequencies(frequency);
  T* at = nullptr;
  RawVec8<T> raw{};
  const auto load = [&] {
    pdl_wait();
    if (!inside) return;
    at = row_of<T>(of_q ? p.q : of_v ? p.stored.v : p.k, token, of_side) + head.first();
    raw = RawVec8<T>::load(at);
  };
  const bool turns = !kStep || !__all_sync(0xffffffffu, of_v);
  pdl_launch_dependents();
  if (!kStep) load();  // angles are computed while the rows are loading, or before
  const bool stores = kStep && inside && !of_q;
  const int64_t slot = stores ? p.stored.slots[token] : kDoNotStore;
  Rotation rotations[kVec8];
  if (turns) head.find_rotations(inside ? p.positions[token] : 0, frequency, rotations);
  if (kStep) load();
  Vec8<T> x = raw.piece();
  if (turns && p.weight_in_pieces) {
    head.norm(x, raw_weight.piece());
  } else if (turns && weights != nullptr) {
    head.norm(x, head.weight_of(weights));
  }
  if (turns) head.rotate(x, rotations);
  if (of_v) x = raw.piece();
  if (inside && !of_v) x.store(at);
  if (slot == kDoNotStore) return;
  x.store_global((of_v ? p.stored.to_v : p.stored.to_k).template row<T>(slot, p.stored.page_shift, of_side) +
                 head.first());
}

Params params_of(const NormRotaryArgs& a) {
  return {
      .q = Rows(a.q),
      .k = Rows(a.k),
      .q_weight = a.q_weight.data(),
      .k_weight = a.k_weight.data(),
      .weight_type = a.q_weight ? a.q_weight.dtype() : DType::kF32,
      .weight_in_pieces = a.q_weight && a.q_weight.dtype() == a.q.dtype() && is_vec8(a.q_weight) && is_vec8(a.k_weight),
      .positions = static_cast<const int32_t*>(a.positions.data()),
      .inv_freq = static_cast<const float*>(a.inv_freq.data()),
      .tokens = static_cast<int>(a.q.dim(0)),
      .q_heads = static_cast<int>(a.q.dim(1)),
      .k_heads = static_cast<int>(a.k.dim(1)),
      .dim = static_cast<int>(a.q.dim(2)),
      .half = static_cast<int>(a.inv_freq.dim(0)),
      .eps = a.eps,
      .weight_offset = a.weight_form == WeightForm::kPlusOne ? 1.0f : 0.0f,
      .magnitude = a.magnitude,
      .shared_angles = a.q.dim(2) == 16 * kVec8 && a.inv_freq.dim(0) == 8 * kVec8 && (a.q.dim(1) + a.k.dim(1)) % 2 == 0,
      .stored = {}};
}

// Returns true if heads can be loaded as Vec8 of one dtype and tokens have one position. Otherwise the separate ops
// run.
bool fits(const NormRotaryArgs& a) {
  const bool one_dtype = !a.q_weight || a.q_weight.dtype() == a.k_weight.dtype();
  const bool one_axis = a.positions.rank() == 1;
  return one_axis && a.q.dim(2) <= 32 * kVec8 && a.inv_freq.dim(0) % kVec8 == 0 && is_vec8(a.q) && is_vec8(a.k) &&
         one_dtype;
}

bool like(const TensorView& x, DType type) { return x.dtype() == type && is_vec8(x); }

// Returns true if, in addition, keys and values are stored without conversion.
bool fits(const NormRotaryArgs& a, const StoreKVArgs& to) {
  const DType type = a.q.dtype();
  return fits(a) && to.v.dim(2) == a.k.dim(2) && like(to.v, type) && like(to.kv.k, type) && like(to.kv.v, type);
}

template <bool kStep>
void launch(const Params& p, DType type, const OpContext& context) {
  const int64_t rows = int64_t{p.tokens} * p.heads();
  const auto blocks = [rows](int64_t each) { return dim3(static_cast<unsigned>((rows + each - 1) / each)); };
  for_type(type, [&]<class T>(T) {
    if (p.dim <= 16 * kVec8) {
      launch_pdl(stream_of(context), norm_rotate<T, 16, kStep>, blocks(kThreads / 16), dim3(kThreads), 0, p,
                 "norm_rotary");
    } else {
      launch_pdl(stream_of(context), norm_rotate<T, 32, kStep>, blocks(kThreads / 32), dim3(kThreads), 0, p,
                 "norm_rotary");
    }
  });
}

}  // namespace

bool norm_rotary(const NormRotaryArgs& a, const OpContext& context) {
  check(a);
  if (a.q.dim(0) == 0) return true;
  if (fits(a)) {
    launch<false>(params_of(a), a.q.dtype(), context);
    return true;
  }
  struct {
    void (*rms_norm)(const RMSNormArgs&, const OpContext&);
    void (*rotary_embedding)(const RotaryEmbeddingArgs&, const OpContext&);
  } const ops{rms_norm, rotary_embedding};
  norm_rotary_apart(ops, a, context);
  return true;
}

bool norm_rotary_store(const NormRotaryArgs& a, const StoreKVArgs& to, const OpContext& context) {
  if (a.q.dim(0) == 0 || a.q.dim(0) > kFewTokens || !fits(a, to)) return false;
  Params p = params_of(a);
  p.stored = {.v = Rows(to.v),
              .to_k = PoolSide(to.kv.k),
              .to_v = PoolSide(to.kv.v),
              .slots = static_cast<const int64_t*>(to.slots.data()),
              .page_shift = std::countr_zero(static_cast<unsigned>(to.kv.page_size()))};
  // Both heads of a warp belong to one token here too.
  p.shared_angles = p.shared_angles && p.heads() % 2 == 0;
  launch<true>(p, a.q.dtype(), context);
  return true;
}

}  // namespace headrace::cuda
