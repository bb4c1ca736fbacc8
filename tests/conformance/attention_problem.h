// One attention problem: a ragged batch, its pool and its inputs, made from a short description and a seed.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headrace/attention/attention.h"
#include "headrace/attention/backend_registry.h"
#include "headrace/batch/forward_batch.h"
#include "headrace/pool/kv_pool.h"
#include "headrace/pool/req_to_token_pool.h"

namespace headrace::testing_support {

// As make_backend, with the names of kCudaSets standing for a device's kernels behind host tensors.
std::unique_ptr<AttentionBackend> backend_called(std::string_view name, Device device, const BackendConfig& config);

// A request of a problem: how much is cached, how much is new, who sees what.
struct RequestCase {
  int32_t prefix = 0, new_tokens = 1;
  KeySpan::Kind kind = KeySpan::Kind::kCausal;
  int32_t block_size = 4;
  int32_t hole_begin = 0, hole_end = 0;
  int32_t prompt_len = 0, padded_prompt_len = 0;
  int32_t log_shift = 0;
  KeySpan::WindowFrom window_from = KeySpan::WindowFrom::kRow;
  int32_t encoder_len = 0;
  enum class Place : uint8_t { kBehind, kInHole } place = Place::kBehind;  // of the new tokens: behind the prefix
};

struct AttentionCase {
  std::string name;
  std::vector<RequestCase> requests = {{}};
  int32_t num_heads = 4, num_kv_heads = 2, head_dim = 64;
  std::optional<int32_t> v_head_dim;
  int32_t page_size = 16;
  std::optional<int32_t> window;
  float logit_cap = 0;
  DType dtype = DType::kF32;  // of q, k, v and out
  DType pool_dtype = DType::kF32;
  float k_scale = 1, v_scale = 1;  // of an FP8 pool
  AttentionType type = AttentionType::kDecoder;
  RadixAttentionConfig::KeySource source = RadixAttentionConfig::KeySource::kSelf;
  SaveKV save = SaveKV::kYes;
  KVLayout pool_layout = KVLayout::kHeadMajor;
  // kFused: q, k and v are parts of one row of a wider tensor, and so is out; what lies between is NaN and stays so.
  enum class Rows : uint8_t { kDense, kFused } rows = Rows::kDense;
  // kInfinite: element 0 of some values is infinite: of each request's last new key, and of the first key in row 0's
  // window. Rows that see one are infinite there, the others finite.
  enum class Values : uint8_t { kFinite, kInfinite } values = Values::kFinite;
  enum class NewKeys : uint8_t { kGiven, kInPool } new_keys = NewKeys::kGiven;  // kInPool: k = v = null
};

// Owns everything that a forward pass reads. Every pool slot that no row may read, page 0 included, is NaN.
class AttentionProblem {
 public:
  AttentionProblem(const AttentionCase& c, uint64_t seed);

  struct Result {
    Tensor out, lse;  // dense
  };
  // By backend name and kernel set, through RadixAttention. The pool is put back as it was before each run.
  Result run(std::string_view backend, std::optional<std::string> kernel_set = std::nullopt, OpContext context = {});
  // One request of it in a batch of its own: its rows of run(), [q_len, heads, v_head_dim].
  Tensor run_alone(size_t request, std::string_view backend, std::optional<std::string> kernel_set, OpContext context);
  // Through Attention and its source.
  Result run(AttnImpl impl);

  const KVPool& pool() const { return *pool_; }
  ForwardBatch& batch() { return batch_; }
  const RadixAttention& layer() const { return layer_; }
  AttnInputs inputs() const;
  Tensor pool_copy() const;  // K and V side by side, as they lie in memory
  void restore_pool();

 private:
  void add_request(const AttentionCase& c, const RequestCase& r, class Random& random);
  void fill_slot(int64_t slot, class Random& random);
  void make_inputs(class Random& random);
  void spoil_values();
  Result run_batch(ForwardBatch& batch, const AttnInputs& in, BackendConfig config, std::string_view backend);
  // What `run` writes to an output of so many rows, dense. Fails the test when it writes beside it.
  Tensor written_by(int64_t tokens, const std::function<void(const TensorView& out)>& run) const;

  AttentionCase case_;
  RadixAttention layer_;
  std::unique_ptr<KVPool> pool_;
  SlotAllocator pages_;
  std::unique_ptr<ReqToTokenPool> table_;
  std::vector<int64_t> write_slots_;
  std::vector<Tensor> memory_;  // of q, k and v
  TensorView q_, k_, v_;
  Tensor pristine_;
  ForwardBatch batch_;
};

}  // namespace headrace::testing_support
