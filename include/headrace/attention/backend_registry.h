// Registry of attention backends by name.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/attention/attention_backend.h"
#include "headrace/cache/gdn_pool.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/cache/req_to_token_pool.h"
#include "headrace/ops/op_context.h"

namespace headrace {

struct OpSet;

// Construction arguments of a backend. Pools are not owned and outlive it.
struct BackendConfig {
  const KVPool* kv_pool = nullptr;    // null: Gated DeltaNet layers only
  const GDNPool* gdn_pool = nullptr;  // not null: the result is a HybridAttnBackend
  // For CudaGraphSupport's calls with request rows; null: no such calls.
  const ReqToTokenPool* req_to_token_pool = nullptr;
  std::vector<int32_t> full_attn_layer_ids = {};  // for a hybrid
  int64_t max_tokens = 8192;                      // tokens of one batch
  DeviceRuntime* runtime = nullptr;               // device of the pools; not owned; null: the CPU's
  OpContext context = {};                         // default: one thread; on a device its stream must be the runtime's
  std::optional<std::string> kernel_set = {};     // ISA variant of a CPU, by name; absent: the best. Not for devices
  std::optional<AttnImpl> attn_impl = {};         // absent: grouped, or the only one that the backend has
  const OpSet* ops = nullptr;                     // kernels in place of the backend's own; not owned; null: its own
};

// Returns the backends built for a device, best first.
std::vector<std::string_view> backend_names(Device device);

// Returns the ops that backend `name` would run, for layers other than attention. Errors as make_backend.
const OpSet& backend_ops(std::string_view name, Device device, const BackendConfig& config);

// Creates the backend `name`, or for "auto" the best one of `device`; name() and describe() say which. Error
// kUnsupported for a name that is not built (the text lists those that are) or does not run on the device;
// kInvalidArgument with neither a state pool nor a KV pool, with full-attention layers and no KV pool, or with a
// request table whose pages have another size than the KV pool's.
std::unique_ptr<AttentionBackend> make_backend(std::string_view name, Device device, const BackendConfig& config);

}  // namespace headrace
