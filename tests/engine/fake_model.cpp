#include "engine/fake_model.h"

#include <cstring>
#include <limits>
#include <utility>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cpu/dispatch.h"

namespace headrace::testing_support {
namespace {

constexpr int32_t kHeadDim = 4, kTaps = 3;
constexpr int64_t kChannels = int64_t{3} * kHeadDim;  // q, k and v of the recurrent layer
constexpr uint64_t kBegin = 1;
// A row's summary of what it has seen: a hash, and whether a fatal token asks for logits without numbers.
struct Summary {
  uint64_t hash = kBegin;
  uint64_t fatal = 0;
};
static_assert(sizeof(Summary) == kHeadDim * sizeof(float));

Summary summary_at(const TensorView& rows, int64_t row) {
  std::array<uint64_t, 2> words{};
  std::memcpy(words.data(), static_cast<const float*>(rows.data()) + row * kHeadDim, sizeof words);
  return {words[0], words[1]};
}

// The finaliser of SplitMix64.
uint64_t mixed(uint64_t hash, uint64_t value) {
  uint64_t x = (hash ^ value) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t with_key(uint64_t hash, int32_t token, int32_t position) {
  return mixed(mixed(hash, static_cast<uint64_t>(token)), static_cast<uint64_t>(position));
}

// The newest token and the two before it; 0: none.
uint64_t with_taps(uint64_t state, int32_t newest, int32_t before, int32_t first) {
  return mixed(state, static_cast<uint64_t>(newest) + 1000 * static_cast<uint64_t>(before) +
                          1000000 * static_cast<uint64_t>(first));
}

void write_logits(float* to, uint64_t hash, bool fatal) {
  for (int32_t id = 0; id < FakeText::kVocab; ++id) {
    const auto share = static_cast<int32_t>(mixed(hash, static_cast<uint64_t>(id)) >> 50);  // 14 bits
    const float logit = static_cast<float>(share * FakeText::kVocab + id) / (1 << 17);
    to[id] = fatal ? std::numeric_limits<float>::quiet_NaN() : id == FakeText::kFatal ? -30 : logit;
  }
}

// Keys as they are stored, and the values beside them, which say the same in another way.
void write_key(float* k, float* v, int32_t token, int32_t position) {
  k[0] = static_cast<float>(token), k[1] = static_cast<float>(position), k[2] = k[3] = 0;
  v[0] = static_cast<float>(3 * token + 1), v[1] = static_cast<float>(position + 7), v[2] = v[3] = 0;
}

struct Key {
  int32_t token = 0, position = 0;
};

// What is no key, such as a value of another token, changes the token.
Key key_of(const float* k, const float* v) {
  const auto token = static_cast<int32_t>(k[0]), position = static_cast<int32_t>(k[1]);
  const bool agrees = v[0] == static_cast<float>(3 * token + 1) && v[1] == static_cast<float>(position + 7);
  return {agrees ? token : token + 1000, position};
}

// Summarises keys in order.
class KeyReader {
 public:
  explicit KeyReader(int32_t row_position) : row_(row_position) {}
  void read(const Key& key) {
    summary_.hash = with_key(summary_.hash, key.token, key.position);
    if (before_ == FakeText::kFatal && row_ == key.position + key.token) summary_.fatal = 1;
    before_ = key.token;
  }
  const Summary& summary() const { return summary_; }

 private:
  int32_t row_, before_ = -1;
  Summary summary_;
};

Summary attend(const PagedAttentionArgs& a, const KeySpan& span, int32_t row) {
  const auto table = a.page_table.as<const int32_t, 2>("page_table");
  const auto k = a.kv.k.as<const float, 4>("k"), v = a.kv.v.as<const float, 4>("v");
  const auto page_size = static_cast<int32_t>(a.kv.page_size());
  KeyReader reader(span.phys0 + row);
  const auto read_pool = [&](int32_t position) {
    const int32_t page = table(span.page_row, position / page_size), at = position % page_size;
    reader.read(key_of(k.row(page, 0, at), v.row(page, 0, at)));
  };
  for (int32_t j = 0; j < span.ctx_len; ++j) {
    if (span.sees_cached(j)) read_pool(j);
  }
  for (int32_t j = 0; j < span.new_keys(row); ++j) {
    if (!a.k_new) {
      read_pool(span.phys0 + j);
      continue;
    }
    const auto k_new = a.k_new.as<const float, 3>("k_new"), v_new = a.v_new.as<const float, 3>("v_new");
    reader.read(key_of(k_new.row(span.q_off + j, 0), v_new.row(span.q_off + j, 0)));
  }
  return reader.summary();
}

void hash_keys(const PagedAttentionArgs& a, const OpContext&) {
  const auto out = a.out.as<float, 3>("out");
  for (const KeySpan& span : a.spans) {
    for (int32_t row = 0; row < span.q_len; ++row) {
      const Summary summary = attend(a, span, row);
      std::memcpy(out.row(span.q_off + row, 0), &summary, sizeof summary);
    }
  }
}

// Calls `keep(slot)` for all slots that keep the state after so many tokens of a request.
template <class Keep>
void keep_state(std::span<const StateSlots> slots, std::span<const StateSnapshot> snapshots, size_t request,
                int32_t tokens, int32_t q_len, Keep keep) {
  for (const StateSnapshot& one : snapshots) {
    if (one.request == static_cast<int32_t>(request) && one.num_tokens == tokens) keep(one.slot);
  }
  if (tokens == q_len && slots[request].write != kNoState) keep(slots[request].write);
}

// out: each token's input and the two before it.
void keep_taps(const CausalConv1dArgs& a, const OpContext&) {
  const auto x = a.x.as<const float, 2>("x");
  const auto state = a.state.as<float, 3>("state");
  const auto out = a.out.as<float, 2>("out");
  for (size_t r = 0; r < a.spans.size(); ++r) {
    const int32_t from = a.slots[r].read;
    float first = from == kNoState ? 0 : state(from, 0, 0), before = from == kNoState ? 0 : state(from, 0, 1);
    for (int32_t t = 0; t < a.spans[r].q_len; ++t) {
      const int64_t row = a.spans[r].q_off + t;
      out(row, 0) = x(row, 0), out(row, 1) = before, out(row, 2) = first;
      first = before, before = x(row, 0);
      keep_state(a.slots, a.snapshots, r, t + 1, a.spans[r].q_len,
                 [&](int32_t slot) { state(slot, 0, 0) = first, state(slot, 0, 1) = before; });
    }
  }
}

void hash_taps(const GatedDeltaRuleArgs& a, const OpContext&) {
  const auto taps = a.qkv.as<const float, 2>("qkv");
  const auto state = a.state.as<float, 4>("state");
  const auto out = a.out.as<float, 3>("out");
  for (size_t r = 0; r < a.spans.size(); ++r) {
    uint64_t hash = kBegin;
    if (a.slots[r].read != kNoState) std::memcpy(&hash, state.row(a.slots[r].read, 0, 0), sizeof hash);
    for (int32_t t = 0; t < a.spans[r].q_len; ++t) {
      const int64_t row = a.spans[r].q_off + t;
      hash = with_taps(hash, static_cast<int32_t>(taps(row, 0)), static_cast<int32_t>(taps(row, 1)),
                       static_cast<int32_t>(taps(row, 2)));
      const Summary summary{.hash = hash};
      std::memcpy(out.row(row, 0), &summary, sizeof summary);
      keep_state(a.slots, a.snapshots, r, t + 1, a.spans[r].q_len,
                 [&](int32_t slot) { std::memcpy(state.row(slot, 0, 0), &hash, sizeof hash); });
    }
  }
}

DeviceRuntime& runtime_of(bench::FakeDevice* device) {
  return device != nullptr ? static_cast<DeviceRuntime&>(*device) : cpu_runtime();
}

}  // namespace

void FakeText::push(int32_t token) {
  const auto count = static_cast<int32_t>(tokens_.size());
  const auto back = [&](int32_t distance) { return distance > count ? 0 : tokens_[tokens_.size() - distance] + 1; };
  keys_ = with_key(count == 0 ? kBegin : keys_, token, count);
  state_ = with_taps(count == 0 ? kBegin : state_, token + 1, back(1), back(2));
  tokens_.push_back(token);
}

std::vector<float> FakeText::logits() const {
  bool fatal = false;
  const auto count = static_cast<int32_t>(tokens_.size());
  for (int32_t i = 1; i < count; ++i) {
    const int32_t token = tokens_[static_cast<size_t>(i)];
    fatal |= tokens_[static_cast<size_t>(i) - 1] == kFatal && i + token == count - 1;
  }
  std::vector<float> row(kVocab);
  write_logits(row.data(), states_ == States::kRecurrent ? mixed(keys_, state_) : keys_, fatal);
  return row;
}

const OpSet& FakeModel::kernels() {
  static const OpSet ops = [] {
    OpSet changed = cpu::select_kernel_set();
    changed.paged_attention = hash_keys;
    changed.causal_conv1d = keep_taps;
    changed.gated_delta_rule = hash_taps;
    changed.gdn_step = not_fused<const GDNStepArgs&>;
    changed.attention_step = not_fused<const AttentionStepArgs&>;
    changed.most_head_dim = changed.most_gdn_key_dim = changed.most_conv_width = 0;
    return changed;
  }();
  return ops;
}

FakeModel::FakeModel(FakeText::States states, bench::FakeDevice* device, std::optional<DiffusionInfo> diffusion)
    : device_(device),
      attention_({.num_heads = 1, .head_dim = kHeadDim, .num_kv_heads = 1}),
      conv_weight_(Tensor::zeros(DType::kF32, {kChannels, kTaps}, runtime_of(device))),
      gate_weight_(Tensor::zeros(DType::kF32, {1}, runtime_of(device))) {
  info_ = {.architecture = "fake",
           .vocab_size = FakeText::kVocab,
           .context_length = 1024,
           .num_layers = 1,
           .eos_ids = {FakeText::kEosIds.begin(), FakeText::kEosIds.end()},
           .kv_groups = {{{1, kHeadDim, kHeadDim}, {0}}},
           .full_attn_layer_ids = {0},
           .dtype = DType::kF32};
  info_.diffusion = diffusion;
  if (states == FakeText::States::kNone) return;
  info_.num_layers = 2;
  info_.num_gdn_layers = 1;
  info_.gdn = {.num_layers = 1,
               .num_k_heads = 1,
               .num_v_heads = 1,
               .head_k_dim = kHeadDim,
               .head_v_dim = kHeadDim,
               .conv_kernel_size = kTaps,
               .conv_dtype = DType::kF32};
  recurrent_.emplace(RadixLinearAttentionConfig{.layer_id = 1,
                                                .num_k_heads = 1,
                                                .num_v_heads = 1,
                                                .head_k_dim = kHeadDim,
                                                .head_v_dim = kHeadDim,
                                                .conv_weight = conv_weight_,
                                                .a_log = gate_weight_,
                                                .dt_bias = gate_weight_});
}

template <class Work>
void FakeModel::run(Work work) const {
  if (device_ != nullptr) {
    device_->run(work);
  } else {
    work();
  }
}

void FakeModel::note(const ForwardBatch& batch) const {
  FakePasses::Pass pass{static_cast<int32_t>(batch.batch_size()), static_cast<int32_t>(batch.num_tokens()), {}};
  for (const KeySpan& span : batch.attn.spans) {
    if (device_ != nullptr) break;
    const auto* ids = static_cast<const int32_t*>(batch.input_ids.data()) + span.q_off;
    pass.requests.push_back({span.phys0, {ids, ids + span.q_len}});
  }
  FakePasses& p = passes_;
  const FakePasses::Pass before = std::exchange(p.last, pass);
  const bool too_many = p.most_rows && pass.rows > *p.most_rows;
  if (p.fails == 0 && !too_many) return;
  const ErrorCode code = p.fails > 0 ? p.error : ErrorCode::kOutOfMemory;
  p.fails -= p.fails > 0 ? 1 : 0;
  pass.requests.insert(pass.requests.end(), before.requests.begin(), before.requests.end());
  p.failed.push_back(std::move(pass));
  throw Error(code, FakePasses::kInjected);
}

// float32 [rows, 1, kHeadDim]: summaries of the recurrent layer. `tokens`: float32 [rows, kChannels].
Tensor FakeModel::states_of(const ForwardBatch& batch, const TensorView& tokens) const {
  const int64_t rows = batch.num_tokens();
  Tensor out(DType::kF32, {rows, 1, kHeadDim}, runtime_of(device_));
  const Tensor gates = Tensor::zeros(DType::kF32, {rows, 1}, runtime_of(device_));
  recurrent_->forward(batch, {.mixed_qkv = tokens, .a = gates, .b = gates}, out);
  return out;
}

Tensor FakeModel::forward(const ForwardBatch& batch) const {
  note(batch);
  const int64_t rows = batch.num_tokens();
  DeviceRuntime& runtime = runtime_of(device_);
  const Tensor k(DType::kF32, {rows, 1, kHeadDim}, runtime), v(DType::kF32, {rows, 1, kHeadDim}, runtime);
  const Tensor tokens = Tensor::zeros(DType::kF32, {rows, kChannels}, runtime);
  run([rows, ids = batch.input_ids, positions = batch.positions, k = k.view(), v = v.view(), tokens = tokens.view()] {
    const auto* id = static_cast<const int32_t*>(ids.data());
    const auto* position = static_cast<const int32_t*>(positions.data());
    for (int64_t row = 0; row < rows; ++row) {
      write_key(static_cast<float*>(k.data()) + row * kHeadDim, static_cast<float*>(v.data()) + row * kHeadDim, id[row],
                position[row]);
      static_cast<float*>(tokens.data())[row * kChannels] = static_cast<float>(id[row] + 1);
    }
  });
  const Tensor seen(DType::kF32, {rows, 1, kHeadDim}, runtime);
  attention_.forward(k, k, v, batch, seen);
  const Tensor states = recurrent_ ? states_of(batch, tokens) : Tensor();
  const auto count = static_cast<int64_t>(batch.logits_rows.size());
  Tensor logits(DType::kF32, {count, FakeText::kVocab}, runtime);
  // On a device the rows are read there, as graphs run other batches later.
  run([count, on_host = device_ == nullptr ? batch.logits_rows : std::vector<int32_t>(),
       on_device = batch.device_logits_rows, seen = seen.view(), states = states ? states.view() : TensorView(),
       logits = logits.view()] {
    const int32_t* row_of = on_device ? static_cast<const int32_t*>(on_device.data()) : on_host.data();
    for (int64_t i = 0; i < count; ++i) {
      const Summary keys = summary_at(seen, row_of[i]);
      const uint64_t hash = states ? mixed(keys.hash, summary_at(states, row_of[i]).hash) : keys.hash;
      write_logits(static_cast<float*>(logits.data()) + i * FakeText::kVocab, hash, keys.fatal != 0);
    }
  });
  return logits;
}

}  // namespace headrace::testing_support
