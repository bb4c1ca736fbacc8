#include "support/device_mirror.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "headrace/batch/attention_plan_cache.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "support/gpu.h"

namespace headrace::testing_support {
namespace {

DeviceRuntime& device() { return gpu(); }

enum class Set : uint8_t { kCuda, kBaseline, kRecorded, kRecordedShort };
constexpr std::string_view name_of(Set set) {
  switch (set) {
    case Set::kCuda: return kCudaSets[0];
    case Set::kBaseline: return kCudaSets[1];
    case Set::kRecorded: return kRecordedSet;
    case Set::kRecordedShort: return kRecordedShortSet;
  }
  return {};
}
constexpr bool is_recorded(Set set) { return set == Set::kRecorded || set == Set::kRecordedShort; }
template <Set kSet>
const OpSet& cuda_ops() {
  return cuda_module().ops(name_of(is_recorded(kSet) ? Set::kCuda : kSet));
}

// Bytes from a view's first element to the end of its last.
size_t extent_of(const TensorView& view) {
  if (view.numel() == 0) return 0;
  int64_t last = 0;
  for (int i = 0; i < view.rank(); ++i) last += (view.dim(i) - 1) * view.stride(i);
  return static_cast<size_t>((last + 1) * size_of(view.dtype()));
}

// Device copies of one call's arguments.
class Mirror {
 public:
  explicit Mirror(const OpContext& context) : context_(context) { context_.stream = device().stream(); }

  const OpContext& context() const { return context_; }
  TensorView in(const TensorView& host) { return place(host, false); }
  TensorView out(const TensorView& host) { return place(host, true); }
  KVLayerView pool(const KVLayerView& kv, bool written) {
    KVLayerView copy = kv;
    copy.k = place(kv.k, written);
    copy.v = place(kv.v, written);
    return copy;
  }
  const DeviceMetadata* metadata(std::span<const KeySpan> spans, std::span<const StateSlots> slots = {},
                                 std::span<const StateSnapshot> snapshots = {}) {
    metadata_ = {.spans = array(spans), .state_slots = array(slots), .snapshots = array(snapshots)};
    return &metadata_;
  }
  // The spans that the host shows to the kernels: under the recorded sets those of a graph's recording, which know
  // neither whose the tokens are nor how many each request has. After metadata().
  template <Set kSet>
  std::span<const KeySpan> shown(std::span<const KeySpan> spans, int64_t tokens) {
    if (!is_recorded(kSet) || spans.empty() || tokens == 0) return spans;
    recorded_.assign(spans.size(), {.q_off = 0, .q_len = 0});
    recorded_.back() = {.q_off = 0, .q_len = static_cast<int32_t>(tokens), .kind = KeySpan::Kind::kNone};
    metadata_.most_rows = static_cast<int32_t>(tokens);
    if (kSet != Set::kRecordedShort) return recorded_;
    metadata_.most_keys = 1;
    metadata_.most_rows = 0;
    for (const KeySpan& span : spans) metadata_.most_rows = std::max(metadata_.most_rows, span.q_len);
    return recorded_;
  }
  // From now on kernels find what they worked out about the batch in an earlier call. After metadata().
  void keep_plans() { metadata_.plans = &plans_.emplace(device()); }
  // From now on there is no room for what they work out.
  void fill_plans() {
    plans_->forget();
    for (int32_t other = -1; plans_->find({other}, AttentionPlanCache::kMostBytes).memory != nullptr;) --other;
  }
  // Runs `again` over outputs that hold what the host's still do. Error kInternal unless it leaves the bits that are
  // there.
  void expect_same_bits(std::string_view what, const std::function<void()>& again) {
    std::vector<std::vector<char>> want;
    for (const Copy& copy : copies_) {
      if (!copy.written) continue;
      want.push_back(on_host(copy));
      device().copy_to_device(copy.memory.data(), copy.host, copy.bytes);
    }
    again();
    auto next = want.begin();
    for (const Copy& copy : copies_) {
      HR_REQUIRE(!copy.written || on_host(copy) == *next++, ErrorCode::kInternal, "device mirror: ", what,
                 " gives other bits");
    }
  }
  // Waits for the device and copies back what may have been written.
  void finish() {
    for (const Copy& copy : copies_) {
      if (copy.written) device().copy_to_host(copy.host, copy.memory.data(), copy.bytes);
    }
    device().synchronize();
  }

 private:
  struct Copy {
    void* host;
    size_t bytes;
    bool written;
    Tensor memory;
  };

  static std::vector<char> on_host(const Copy& copy) {
    std::vector<char> bytes(copy.bytes);
    device().copy_to_host(bytes.data(), copy.memory.data(), copy.bytes);
    return bytes;
  }
  TensorView place(const TensorView& view, bool written) {
    if (!view) return {};
    const size_t bytes = extent_of(view);
    for (Copy& copy : copies_) {  // an op in place sees one memory
      if (copy.host != view.data() || copy.bytes != bytes) continue;
      copy.written |= written;
      return on_device(view, copy.memory.data());
    }
    Tensor memory(DType::kU8, {static_cast<int64_t>(bytes)}, device());
    device().copy_to_device(memory.data(), view.data(), bytes);
    copies_.push_back({view.data(), bytes, written, std::move(memory)});
    return on_device(view, copies_.back().memory.data());
  }
  static TensorView on_device(const TensorView& view, void* data) {
    return {data, view.dtype(), view.shape(), view.strides(), device().device()};
  }
  template <class T>
  const T* array(std::span<const T> values) {
    const TensorView bytes(const_cast<T*>(values.data()), DType::kU8, {static_cast<int64_t>(values.size_bytes())});
    return values.empty() ? nullptr : static_cast<const T*>(in(bytes).data());
  }

  OpContext context_;
  std::vector<Copy> copies_;
  DeviceMetadata metadata_;
  std::optional<AttentionPlanCache> plans_;
  std::vector<KeySpan> recorded_;
};

template <Set kSet>
void store_kv(const StoreKVArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  StoreKVArgs a = host;
  a.k = m.in(host.k), a.v = m.in(host.v), a.slots = m.in(host.slots), a.kv = m.pool(host.kv, true);
  cuda_ops<kSet>().store_kv(a, m.context());
  m.finish();
}

template <Set kSet>
void paged_attention(const PagedAttentionArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  PagedAttentionArgs a = host;
  a.q = m.in(host.q), a.k_new = m.in(host.k_new), a.v_new = m.in(host.v_new), a.kv = m.pool(host.kv, false);
  a.page_table = m.in(host.page_table), a.out = m.out(host.out), a.lse = m.out(host.lse);
  a.on_device = m.metadata(host.spans), a.spans = m.shown<kSet>(host.spans, host.q.dim(0));
  const auto attend = [&] { cuda_ops<kSet>().paged_attention(a, m.context()); };
  attend();
  if (kSet != Set::kBaseline) {  // whose kernels plan nothing
    m.keep_plans();
    m.expect_same_bits("paged_attention with a plan of the batch", attend);
    m.expect_same_bits("paged_attention with the plan of an earlier layer", attend);
    m.fill_plans();
    m.expect_same_bits("paged_attention without room for a plan of the batch", attend);
  }
  m.finish();
}

template <Set kSet>
void causal_conv1d(const CausalConv1dArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  CausalConv1dArgs a = host;
  a.x = m.in(host.x), a.weight = m.in(host.weight), a.state = m.out(host.state), a.out = m.out(host.out);
  a.on_device = m.metadata(host.spans, host.slots, host.snapshots);
  if (host.snapshots.empty()) a.spans = m.shown<kSet>(host.spans, host.x.dim(0));  // graphs have none
  cuda_ops<kSet>().causal_conv1d(a, m.context());
  m.finish();
}

template <Set kSet>
void gated_delta_rule(const GatedDeltaRuleArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  GatedDeltaRuleArgs a = host;
  a.qkv = m.in(host.qkv), a.a = m.in(host.a), a.b = m.in(host.b), a.a_log = m.in(host.a_log),
  a.dt_bias = m.in(host.dt_bias);
  a.state = m.out(host.state), a.out = m.out(host.out);
  a.on_device = m.metadata(host.spans, host.slots, host.snapshots);
  if (host.snapshots.empty()) a.spans = m.shown<kSet>(host.spans, host.qkv.dim(0));  // graphs have none
  cuda_ops<kSet>().gated_delta_rule(a, m.context());
  m.finish();
}

template <Set kSet>
bool gdn_step(const GDNStepArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  GDNStepArgs a = host;
  a.x = m.in(host.x), a.conv_weight = m.in(host.conv_weight), a.conv_state = m.out(host.conv_state);
  a.a = m.in(host.a), a.b = m.in(host.b), a.a_log = m.in(host.a_log), a.dt_bias = m.in(host.dt_bias);
  a.state = m.out(host.state), a.out = m.out(host.out);
  a.norm.gate = m.in(host.norm.gate), a.norm.weight = m.in(host.norm.weight);
  a.on_device = m.metadata(host.spans, host.slots);
  const bool done = cuda_ops<kSet>().gdn_step(a, m.context());
  m.finish();
  return done;
}

template <Set kSet>
bool attention_step(const AttentionStepArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  AttentionStepArgs a = host;
  PagedAttentionArgs& p = a.attention;
  NormRotaryArgs& n = a.norm_rotary;
  n.q = m.out(host.norm_rotary.q), n.k = m.out(host.norm_rotary.k);
  n.q_weight = m.in(n.q_weight), n.k_weight = m.in(n.k_weight);
  n.positions = m.in(n.positions), n.inv_freq = m.in(n.inv_freq);
  a.store.k = m.in(host.store.k), a.store.v = m.in(host.store.v), a.store.slots = m.in(host.store.slots);
  a.store.kv = m.pool(host.store.kv, true), a.gate = m.in(host.gate);
  p.q = m.in(p.q), p.k_new = m.in(p.k_new), p.v_new = m.in(p.v_new), p.kv = m.pool(p.kv, false);
  p.page_table = m.in(p.page_table), p.out = m.out(p.out), p.lse = m.out(p.lse);
  p.on_device = m.metadata(host.attention.spans), p.spans = m.shown<kSet>(host.attention.spans, p.q.dim(0));
  const bool done = cuda_ops<kSet>().attention_step(a, m.context());
  m.finish();
  return done;
}

template <Set kSet>
void linear(const LinearArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  const LinearArgs a{.x = m.in(host.x), .weight = m.in(host.weight), .bias = m.in(host.bias), .y = m.out(host.y)};
  cuda_ops<kSet>().linear(a, m.context());
  m.finish();
}

template <Set kSet>
void penalize_tokens(const PenalizeTokensArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  PenalizeTokensArgs a = host;
  a.logits = m.out(host.logits), a.seen = m.out(host.seen);
  a.new_ids = m.in(host.new_ids), a.new_texts = m.in(host.new_texts);
  a.texts = m.in(host.texts), a.penalties = m.in(host.penalties);
  cuda_ops<kSet>().penalize_tokens(a, m.context());
  m.finish();
}

template <Set kSet>
void bias_tokens(const BiasTokensArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  const BiasTokensArgs a{
      .logits = m.out(host.logits), .rows = m.in(host.rows), .ids = m.in(host.ids), .biases = m.in(host.biases)};
  cuda_ops<kSet>().bias_tokens(a, m.context());
  m.finish();
}

template <Set kSet>
void mask_tokens(const MaskTokensArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  MaskTokensArgs a = host;
  a.logits = m.out(host.logits), a.rows = m.in(host.rows), a.bits = m.in(host.bits);
  cuda_ops<kSet>().mask_tokens(a, m.context());
  m.finish();
}

template <Set kSet>
void top_tokens(const TopTokensArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  TopTokensArgs a = host;
  a.logits = m.in(host.logits), a.rows = m.in(host.rows), a.ids = m.out(host.ids), a.top = m.out(host.top);
  cuda_ops<kSet>().top_tokens(a, m.context());
  m.finish();
}

template <Set kSet>
void take_tokens(const TakeTokensArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  const TakeTokensArgs a{.ids = m.out(host.ids), .tokens = m.in(host.tokens), .from = m.in(host.from)};
  cuda_ops<kSet>().take_tokens(a, m.context());
  m.finish();
}

template <Set kSet>
void rms_norm(const RMSNormArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  RMSNormArgs a = host;
  a.x = m.in(host.x), a.weight = m.in(host.weight), a.gate = m.in(host.gate), a.out = m.out(host.out);
  cuda_ops<kSet>().rms_norm(a, m.context());
  m.finish();
}

template <Set kSet>
bool norm_rotary(const NormRotaryArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  NormRotaryArgs a = host;
  a.q = m.out(host.q), a.k = m.out(host.k), a.q_weight = m.in(host.q_weight), a.k_weight = m.in(host.k_weight);
  a.positions = m.in(host.positions), a.inv_freq = m.in(host.inv_freq);
  const bool done = cuda_ops<kSet>().norm_rotary(a, m.context());
  m.finish();
  return done;
}

template <Set kSet>
void rotary_embedding(const RotaryEmbeddingArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  RotaryEmbeddingArgs a = host;
  a.x = m.out(host.x), a.positions = m.in(host.positions), a.inv_freq = m.in(host.inv_freq);
  cuda_ops<kSet>().rotary_embedding(a, m.context());
  m.finish();
}

template <Set kSet>
void pointwise(const PointwiseArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  PointwiseArgs a = host;
  a.x = m.in(host.x), a.y = m.in(host.y), a.out = m.out(host.out);
  cuda_ops<kSet>().pointwise(a, m.context());
  m.finish();
}

template <Set kSet>
void embedding(const EmbeddingArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  const EmbeddingArgs a{.ids = m.in(host.ids), .table = m.in(host.table), .out = m.out(host.out)};
  cuda_ops<kSet>().embedding(a, m.context());
  m.finish();
}

template <Set kSet>
void token_confidence(const TokenConfidenceArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  TokenConfidenceArgs a = host;
  a.logits = m.in(host.logits), a.best = m.out(host.best), a.stats = m.out(host.stats);
  cuda_ops<kSet>().token_confidence(a, m.context());
  m.finish();
}

template <Set kSet>
void sample_tokens(const SampleTokensArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  SampleTokensArgs a = host;
  a.logits = m.in(host.logits), a.best = m.in(host.best), a.stats = m.in(host.stats), a.draws = m.in(host.draws);
  a.ids = m.out(host.ids), a.chosen = m.out(host.chosen);
  cuda_ops<kSet>().sample_tokens(a, m.context());
  m.finish();
}

template <Set kSet>
bool fused_linear(const FusedLinearArgs& host, const OpContext& context) {
  check(host);
  Mirror m(context);
  FusedLinearArgs a = host;
  a.x = m.in(host.x), a.norm_weight = m.in(host.norm_weight), a.residual = m.in(host.residual);
  for (FusedLinearArgs::Product& p : a.products) p = {m.in(p.weight), m.in(p.bias), m.out(p.y)};
  const bool done = cuda_ops<kSet>().fused_linear(a, m.context());
  m.finish();
  return done;
}

template <Set kSet>
constexpr OpSet kMirrored = {
    .name = name_of(kSet),
    .store_kv = store_kv<kSet>,
    .paged_attention = paged_attention<kSet>,
    .causal_conv1d = causal_conv1d<kSet>,
    .gated_delta_rule = gated_delta_rule<kSet>,
    .linear = linear<kSet>,
    .rms_norm = rms_norm<kSet>,
    .rotary_embedding = rotary_embedding<kSet>,
    .pointwise = pointwise<kSet>,
    .embedding = embedding<kSet>,
    .token_confidence = token_confidence<kSet>,
    .sample_tokens = sample_tokens<kSet>,
    .penalize_tokens = penalize_tokens<kSet>,
    .bias_tokens = bias_tokens<kSet>,
    .mask_tokens = mask_tokens<kSet>,
    .top_tokens = top_tokens<kSet>,
    .take_tokens = take_tokens<kSet>,
    .gdn_step = kSet != Set::kBaseline ? gdn_step<kSet> : not_fused<const GDNStepArgs&>,
    .attention_step = kSet != Set::kBaseline ? attention_step<kSet> : not_fused<const AttentionStepArgs&>,
    .fused_linear = fused_linear<kSet>,
    .norm_rotary = norm_rotary<kSet>};

bool has_device() {
  try {
    return !cuda_module().devices().empty();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kNoDevice) throw;
    return false;
  }
}

}  // namespace

const OpSet* mirrored_cuda_ops(std::string_view set) {
  static const bool there = has_device();
  if (!there) return nullptr;
  if (set == name_of(Set::kRecorded)) return &kMirrored<Set::kRecorded>;
  if (set == name_of(Set::kRecordedShort)) return &kMirrored<Set::kRecordedShort>;
  return set == name_of(Set::kCuda) ? &kMirrored<Set::kCuda> : &kMirrored<Set::kBaseline>;
}

}  // namespace headrace::testing_support
