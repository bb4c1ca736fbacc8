#include "headrace/attention/op_set_backend.h"

#include <cstring>

namespace headrace {
namespace {

// x | rope along the last dimension: an added score term is a longer dot product.
Tensor with_rope(const TensorView& x, const TensorView& rope) {
  Tensor joined(x.dtype(), {x.dim(0), x.dim(1), x.dim(2) + rope.dim(2)});
  HR_REQUIRE(rope.dtype() == x.dtype() && rope.dim(0) == x.dim(0), ErrorCode::kInvalidArgument,
             "attention: rope part is ", name_of(rope.dtype()), rope.shape(), ", expected rows and dtype of ",
             name_of(x.dtype()), x.shape());
  const int64_t size = size_of(x.dtype());
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t h = 0; h < x.dim(1); ++h) {
      char* to = static_cast<char*>(joined.view().slice(t, t + 1).narrow(1, h, h + 1).data());
      for (const TensorView* part : {&x, &rope}) {
        std::memcpy(to, part->slice(t, t + 1).narrow(1, h, h + 1).data(), static_cast<size_t>(part->dim(2) * size));
        to += part->dim(2) * size;
      }
    }
  }
  return joined;
}

}  // namespace

std::string OpSetBackend::describe() const { return str(name_, ": paged_attention ", ops_.name, " (grouped)"); }

void OpSetBackend::plan(const ForwardBatch& batch) {
  batch.attn.validate(pool_.page_size());
  HR_REQUIRE(runtime_.device().type == DeviceType::kCPU || batch.attn.on_device != nullptr, ErrorCode::kInvalidArgument,
             "attention backend '", name_, "': the batch lies on the host; give it through a DeviceBatch");
}

void OpSetBackend::forward_extend(const RadixAttention& layer, const AttnInputs& in, const ForwardBatch& batch,
                                  const TensorView& out) {
  const bool encoder_only = layer.config().attn_type == AttentionType::kEncoderOnly;
  const bool cross = layer.is_cross_attention();
  const RadixAttentionOptions& options = in.options;
  HR_REQUIRE(!options.q_rope || runtime_.device().type == DeviceType::kCPU, ErrorCode::kUnsupported, "attention layer ",
             layer.layer_id(), ": q_rope is not built for backend '", name_, "'");
  const Tensor q = options.q_rope ? with_rope(in.q, options.q_rope) : Tensor();
  const Tensor k = options.k_rope ? with_rope(in.k, options.k_rope) : Tensor();
  const TensorView new_k = k ? k.view() : in.k;
  const KVLayerView kv = encoder_only ? KVLayerView{} : pool_.layer(layer.layer_id());
  const bool stores = new_k && !encoder_only && options.save_kv_cache == SaveKV::kYes;
  // A device's kernels are fastest when all keys come from one place.
  const bool from_pool = stores && batch.attn.on_device != nullptr &&
                         batch.attn.on_device->new_keys == DeviceMetadata::NewKeys::kAllStored;
  const TensorView& slots = cross ? batch.attn.encoder_write_slots : batch.attn.write_slots;
  if (stores) {
    HR_REQUIRE(slots, ErrorCode::kInvalidArgument, "attention layer ", layer.layer_id(),
               ": keys are to be stored, but the batch has no write slots");
    ops_.store_kv({.k = new_k, .v = in.v, .slots = slots, .kv = kv}, context_);
  }
  ops_.paged_attention({.q = q ? q.view() : in.q,
                        .k_new = cross || from_pool ? TensorView() : new_k,
                        .v_new = cross || from_pool ? TensorView() : in.v,
                        .kv = kv,
                        .spans = batch.attn.spans,
                        .on_device = batch.attn.on_device,
                        .page_table = batch.attn.page_table,
                        .scale = layer.config().scaling,
                        .logit_cap = layer.config().logit_cap,
                        .window = layer.window(),
                        .type = layer.config().attn_type,
                        .keys = cross ? PagedAttentionArgs::Keys::kEncoder : PagedAttentionArgs::Keys::kSequence,
                        .out = out,
                        .lse = options.lse},
                       context_);
}

}  // namespace headrace
