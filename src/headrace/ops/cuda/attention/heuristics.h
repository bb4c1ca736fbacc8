// Chooses the attention kernel of a call. Pure functions in plain C++: CPU-only builds compile and test them.
#pragma once
#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/ops/cuda/attention/attention_params.h"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode_plan.h"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.h"
#include "headrace/ops/cuda/attention/sm90/fmha_plan.h"
#include "headrace/ops/cuda/runtime/device_properties.h"

namespace headrace::cuda {

// Kernel families, in the order in which choose_attention() asks them.
enum class AttentionFamily : uint8_t {
  kClusterDecode,  // sm90/decode_cluster
  kShortKV,        // sm90/decode_short_kv
  kFp8Decode,      // sm90/decode_fp8
  kFmhaSm90,       // sm90/fmha
  kFmhaSm80,       // sm80/fmha
  kSimt,           // simt/attention: supports every call
};
inline constexpr size_t kNumAttentionFamilies = 6;
std::string_view name_of(AttentionFamily family);  // "cluster_decode", "short_kv", "fp8_decode", ...

// Returns the names of families that AttentionFamilies reads, with commas between them.
std::string attention_family_names();

// A set of families.
class AttentionFamilies {
 public:
  constexpr AttentionFamilies() = default;
  // Reads names separated by commas. Skips others, which may be families of other ops, and "simt", which takes what no
  // other family takes.
  explicit AttentionFamilies(std::string_view names);
  bool contains(AttentionFamily family) const { return set_[static_cast<size_t>(family)]; }
  bool empty() const { return set_.none(); }

 private:
  std::bitset<kNumAttentionFamilies> set_;
};

// A paged-attention call, as far as the choice of a kernel depends on it.
struct AttentionProblem {
  DType q_dtype = DType::kBF16, kv_dtype = DType::kBF16;
  int kv_heads = 0, head_dim = 0, v_head_dim = 0, page_size = 64;
  // The masks and scores beyond a KeySpan's: a sliding window, a logit soft cap, encoder keys, a scale that is not
  // positive.
  bool window = false, soft_cap = false, encoder = false, positive_scale = true;
  // Addresses and strides. kTma: multiples of 16 bytes. kVec16: 16-byte copies of all but the outputs are possible.
  enum class Layout : uint8_t { kAny, kVec16, kTma } layout = Layout::kTma;
  bool pool = true;           // cached keys and values have a pool
  bool in_reach = true;       // 32 bits count a side's rows, and the units of 16 bytes between them
  int new_tokens = 0;         // the most new tokens of a request if their keys are read beside the pool, else 0
  AttentionShape shape = {};  // counts rows, packed as (token, query head of the GQA group)

  bool is_fp8() const { return kv_dtype == DType::kE4M3; }
  int largest_head() const { return head_dim > v_head_dim ? head_dim : v_head_dim; }
  // Returns the head size of the kernel that is instantiated for it.
  int kernel_dim() const { return largest_head() <= 64 ? 64 : largest_head() <= 128 ? 128 : 256; }
};

// The kernel of a call and how it divides the work.
struct AttentionConfig {
  AttentionFamily family = AttentionFamily::kSimt;
  ClusterDecodePlan cluster = {};                           // kClusterDecode
  ShortKVSchedule schedule = ShortKVSchedule::kCtaPerHead;  // kShortKV
  bool contiguous = false;                                  // kShortKV: requests may suit the contiguous-KV fast path
  Sm90Task task = {};                                       // kFp8Decode, kFmhaSm90
  Sm90Plan fmha = {};                                       // the plan of `task`, if memory allows
};

// Returns the first family that supports the problem and is not in `leave_out` (benches only).
AttentionConfig choose_attention(const AttentionProblem& problem, const DeviceProperties& device,
                                 const AttentionFamilies& leave_out = {});

// Returns one line: "cluster_decode: 2 clusters of 4 CTAs, fixed KV splits", "fmha_sm90: tiles of 64 rows x 128 keys,
// even KV splits".
std::string to_string(const AttentionConfig& config);

// Returns KV lengths below problem.shape.seen_keys, ascending, up to which another configuration is worth a graph of
// its own: larger clusters, cluster decode at all, or short-KV decode. A graph is captured for the longest context
// of any replay, and clusters are as small as that length wants them.
std::vector<int32_t> kv_len_buckets(const AttentionProblem& problem, const DeviceProperties& device,
                                    const AttentionFamilies& leave_out = {});

}  // namespace headrace::cuda
