// One attention problem: a ragged batch, its pool and its inputs, made from a short description and a seed.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headrace/attention/attention.h"
#include "headrace/attention/backend_registry.h"
#include "headrace/batch/forward_batch.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/cache/req_to_token_pool.h"
#include "support/random.h"

namespace headrace::testing_support {

// As make_backend, with the names of a device's sets (device_mirror.h) standing for its kernels behind host tensors.
std::unique_ptr<AttentionBackend> backend_called(std::string_view name, Device device, const BackendConfig& config);
// Names for it: the backends of a CPU, and a device's sets, which only some machines can run.
std::vector<std::string_view> all_backends();
bool is_here(std::string_view backend);

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
  int32_t gap = 0;                    // positions between the context and the new tokens
  std::optional<size_t> shares_with;  // an earlier request without a hole, the whole pages of whose context it has, too
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
  // kFusedAligned: at multiples of 8 elements, as fast kernels want it.
  enum class Rows : uint8_t { kDense, kFused, kFusedAligned } rows = Rows::kDense;
  // kInfinite: element 0 of some values is infinite: of each request's last new key, and of the first key in row 0's
  // window. Rows that see one are infinite there, the others finite.
  enum class Values : uint8_t { kFinite, kInfinite } values = Values::kFinite;
  enum class NewKeys : uint8_t { kGiven, kInPool } new_keys = NewKeys::kGiven;  // kInPool: k = v = null
  // What stands in slots that no row may read. kLarge: numbers near the end of the pool's range.
  enum class Unread : uint8_t { kNaN, kInfinite, kLarge } unread = Unread::kNaN;
  int32_t padding_rows = 0;  // behind the requests' rows, as a captured graph has them
  uint64_t page_order = 0;   // another one puts the same tokens into other pages
};

// Owns everything that a forward pass reads. Every pool slot that no row may read, page 0 included, is as the case
// says.
class AttentionProblem {
 public:
  AttentionProblem(const AttentionCase& c, uint64_t seed);

  struct Result {
    Tensor out, lse;  // dense
  };
  // By backend name and kernel set, through RadixAttention. The pool is put back as it was before each run.
  Result run(std::string_view backend, std::optional<std::string> kernel_set = std::nullopt, OpContext context = {});
  struct Part {
    size_t first = 0, last = 1;
  };
  // Requests [first, last) of it in a batch of their own: their rows of run().
  Result run_part(Part part, std::string_view backend, std::optional<std::string> kernel_set, OpContext context);
  // One request of it in several batches, the second of which begins with its row cuts[0]: its rows of run().
  Result run_cut(size_t request, const std::vector<int32_t>& cuts, std::string_view backend,
                 const std::optional<std::string>& kernel_set, OpContext context);
  // Whether row `row` of a request sees the same keys where it begins a batch of its own.
  bool can_cut(size_t request, int32_t row) const;
  Result run(std::string_view backend, AttnImpl impl);
  // What the oracle says of one row of one head; the rest of the result is NaN.
  struct OneRow {
    size_t request = 0;
    int32_t row = 0;
    int64_t head = 0;
  };
  Result run_oracle(const std::vector<OneRow>& rows);

  const KVPool& pool() const { return *pool_; }
  ForwardBatch& batch() { return batch_; }
  const RadixAttention& layer() const { return layer_; }
  AttnInputs inputs() const;
  Tensor pool_copy() const;  // K, V and token scales side by side, as they lie in memory
  void restore_pool();

 private:
  void add_request(const AttentionCase& c, const RequestCase& r, Random& random);
  void add_padding();
  std::vector<TensorView> pool_sides() const;  // K, V, and of int8 their token scales
  void fill_unread();
  void make_numbers(Random& random);
  int32_t shared_pages(const RequestCase& r) const;
  std::vector<int32_t> pages_of(const RequestCase& r);  // those that it shares, then new ones in any order
  void fill_slot(int64_t slot, Random& random);
  void make_inputs(Random& random);
  void spoil_values();
  // Rows [begin, end) of the problem's, as the requests of `spans`, over the pool as it is.
  Result run_rows(std::vector<KeySpan> spans, int64_t begin, std::string_view backend, BackendConfig config);
  Result run_by(AttentionBackend& attention, ForwardBatch& batch, const AttnInputs& in, Tensor lse);
  Tensor unknown_lse(int64_t tokens) const;  // NaN
  Result run_batch(ForwardBatch& batch, const AttnInputs& in, BackendConfig config, std::string_view backend);
  // What `run` writes to an output of so many rows, dense. Fails the test when it writes beside it.
  Tensor written_by(int64_t tokens, const std::function<void(const TensorView& out)>& run) const;

  AttentionCase case_;
  Random page_order_;
  RadixAttention layer_;
  std::unique_ptr<KVPool> pool_;
  SlotAllocator pages_;
  std::unique_ptr<ReqToTokenPool> table_;
  std::vector<int64_t> write_slots_;
  std::vector<Tensor> memory_;    // of q, k and v
  Tensor k_numbers_, v_numbers_;  // what stored rows are pieces of
  TensorView q_, k_, v_;
  Tensor pristine_;
  ForwardBatch batch_;
};

}  // namespace headrace::testing_support
