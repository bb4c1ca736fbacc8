// The attention backends by name.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/attention/attention.h"
#include "headrace/attention/attention_backend.h"
#include "headrace/cache/gdn_pool.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/ops/op_set.h"

namespace headrace {

// What a backend is built from. Pools are not owned and outlive the backend.
struct BackendConfig {
  const KVPool* kv_pool = nullptr;                // null: Gated DeltaNet alone
  const GDNPool* gdn_pool = nullptr;              // given: the result is a HybridAttnBackend
  std::vector<int32_t> full_attn_layer_ids = {};  // of a hybrid
  int64_t max_tokens = 8192;                      // of one batch
  DeviceRuntime* runtime = nullptr;               // where the pools lie; not owned; null: the CPU's
  OpContext context = {};  // threads: 1 unless it says more; on a device its stream is the runtime's
  std::optional<std::string> kernel_set = {};  // a CPU's, by name; absent: the best that runs here. A device has none
  std::optional<AttnImpl> attn_impl = {};      // absent: grouped, or the one that the backend has
};

// The backends of a device that are built, best first.
std::vector<std::string_view> backend_names(Device device);

// The ops that backend `name` would run, for layers beside attention. Errors as make_backend.
const OpSet& backend_ops(std::string_view name, Device device, const BackendConfig& config);

// The backend called `name`, or for "auto" the best one of `device`; name() and describe() say which it is.
// Error kUnsupported for a name that is not built (the text lists those that are) or does not run on the device;
// kInvalidArgument with neither a pool of states nor a KV pool, or with full-attention layers and no KV pool.
std::unique_ptr<AttentionBackend> make_backend(std::string_view name, Device device, const BackendConfig& config);

}  // namespace headrace
