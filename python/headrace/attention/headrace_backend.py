"""The full-attention backend: headrace's paged attention over a KVPool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace import ops
from headrace.attention.attention_backend import AttentionBackend
from headrace.attention.attn_forward_metadata import AttnForwardMetadata, check_length, plan
from headrace.attention.graph_batch import GraphBatch, check_decode_mode
from headrace.attention.heads import with_heads
from headrace.attention.radix_attention import AttentionType
from headrace.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from headrace.attention.forward_batch import ForwardBatch, ForwardMode
    from headrace.attention.radix_attention import RadixAttention


class HeadraceAttnBackend(AttentionBackend):
    """Paged attention over the pool of `forward_batch.token_to_kv_pool`, with the constructor of pymllm's
    FlashInferAttnBackend.

    num_heads, num_kv_heads, head_dim, kv_cache_dtype, q_dtype: of the model; layers bring their own, which count.
    max_context_len: tokens of the longest sequence: the bound of lengths that only the device knows.
    req_to_token: int32 [rows, max_context_len or more]: the request table's memory.
    max_req_pool_size: sequences of the largest batch.
    The other arguments are accepted and unused: they describe FlashInfer's buffers. Windows come from the layers.

    Every mask, prefix and new length is one call of ops.paged_attention; nothing is copied to the host.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv_cache_dtype: torch.dtype,
        q_dtype: torch.dtype,
        max_context_len: int,
        req_to_token: torch.Tensor,
        device: str | torch.device,
        max_req_pool_size: int,
        sliding_window_size: int | None = None,
        skip_prefill: bool = False,
        kv_indptr_buf: torch.Tensor | None = None,
        kv_last_page_len_buf: torch.Tensor | None = None,
        init_new_workspace: bool = False,
    ) -> None:
        if req_to_token.dim() != 2 or req_to_token.dtype != torch.int32:
            raise InvalidArgumentError(
                f"HeadraceAttnBackend: req_to_token is {req_to_token.dtype} {list(req_to_token.shape)}, expected int32 "
                "[rows, max_context_len]"
            )
        if max_context_len > req_to_token.shape[1]:
            raise InvalidArgumentError(
                f"HeadraceAttnBackend: max_context_len is {max_context_len}, expected at most the "
                f"{req_to_token.shape[1]} columns of req_to_token"
            )
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.kv_cache_dtype = kv_cache_dtype
        self.q_dtype = q_dtype
        self.max_context_len = max_context_len
        self.req_to_token = req_to_token
        self.device = torch.device(device)
        self.max_req_pool_size = max_req_pool_size
        self.sliding_window_size = sliding_window_size
        self.skip_prefill = skip_prefill
        self.forward_metadata: AttnForwardMetadata | None = None
        self._graph: GraphBatch | None = None
        self._captured: dict[int, AttnForwardMetadata] = {}

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Makes the batch's key spans on the device. Lengths are read on the host only from the host's copies in the
        batch (seq_lens_cpu, extend_seq_lens_cpu, extend_prefix_lens_cpu)."""
        if forward_batch.forward_mode.is_idle():
            self.forward_metadata = None
        else:
            self.forward_metadata = plan(forward_batch, self.device, self.max_context_len)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attends with one new token per sequence."""
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attends with any number of new tokens per sequence."""
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        batch: ForwardBatch,
        save_kv_cache: bool,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Stores k and v where the layer and save_kv_cache say so, then attends to the pool and the new keys."""
        metadata = self._planned(q)
        q = _joined(q, q_rope, layer.tp_q_head_num, layer.qk_head_dim, layer, "q")
        if k is not None and v is not None:
            k = _joined(k, k_rope, layer.tp_k_head_num, layer.qk_head_dim, layer, "k")
            v = _joined(v, None, layer.tp_v_head_num, layer.v_head_dim, layer, "v")
        key, value = self._cache_of(layer, batch)
        saved = k is not None and save_kv_cache and key is not None
        if layer.is_cross_attention and k is not None and not saved:
            raise UnsupportedError(
                f"attention layer {layer.layer_id}: cross-attention with save_kv_cache=False, expected encoder keys in "
                "the pool"
            )
        if saved:
            slots = batch.encoder_out_cache_loc if layer.is_cross_attention else batch.out_cache_loc
            if slots is None:
                raise InvalidArgumentError(
                    f"attention layer {layer.layer_id}: encoder keys are given and encoder_out_cache_loc is None"
                )
            ops.store_kv(k, v, slots.to(torch.int64), key, value, k_scale=layer.k_scale, v_scale=layer.v_scale)
        if layer.is_cross_attention or (saved and not metadata.reads_new_keys):
            k = v = None
        return self._run(q, k, v, key, value, layer, metadata).flatten(1)

    def _run(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        layer: RadixAttention,
        metadata: AttnForwardMetadata,
    ) -> torch.Tensor:
        """Returns [T, num_heads, v_head_dim]. k, v: new keys that are not read from the pool. key, value: the pool."""
        out: torch.Tensor = ops.paged_attention(
            q,
            key,
            value,
            self.req_to_token,
            metadata.spans,
            k_new=k,
            v_new=v,
            scale=layer.scaling,
            logit_cap=layer.logit_cap,
            window=None if layer.sliding_window_size < 0 else layer.sliding_window_size + 1,
            type=layer.attn_type.value,
            keys="encoder" if layer.is_cross_attention else "sequence",
            k_scale=layer.k_scale,
            v_scale=layer.v_scale,
            max_q_len=metadata.max_q_len,
            max_kv_len=metadata.max_kv_len,
        )
        return out

    def _planned(self, q: torch.Tensor) -> AttnForwardMetadata:
        metadata = self.forward_metadata
        if metadata is None:
            raise InvalidArgumentError(
                "HeadraceAttnBackend: the batch is not planned; call init_forward_metadata first"
            )
        if q.shape[0] != metadata.num_tokens:
            raise InvalidArgumentError(
                f"HeadraceAttnBackend: q has {q.shape[0]} rows, the planned batch has {metadata.num_tokens}"
            )
        return metadata

    def _cache_of(
        self, layer: RadixAttention, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Returns the layer's K and V in the pool as pages of one token, [slots, heads, 1, dim]; None for a layer that
        uses no cache."""
        if layer.attn_type.value == AttentionType.ENCODER_ONLY.value:
            return None, None
        if batch.token_to_kv_pool is None:
            raise InvalidArgumentError("HeadraceAttnBackend: forward_batch.token_to_kv_pool is None, expected a KVPool")
        key, value = batch.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        return (
            key.view(key.shape[0], layer.tp_k_head_num, 1, layer.qk_head_dim),
            value.view(value.shape[0], layer.tp_v_head_num, 1, layer.v_head_dim),
        )

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Returns 1."""
        return 1

    def init_cuda_graph_state(
        self, max_bs: int, max_num_tokens: int, kv_indices_buf: torch.Tensor | None = None
    ) -> None:
        """Allocates the key spans of `max_bs` rows, at the address that all captures read. kv_indices_buf is unused."""
        self._graph = GraphBatch(max_bs, max_num_tokens, self.device)
        self._captured = {}

    def init_forward_metadata_capture_cuda_graph(
        self,
        bs: int,
        num_tokens: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        forward_mode: ForwardMode,
    ) -> None:
        """Plans a decode batch whose key spans lie where all captures read them. Launches suit max_context_len."""
        check_decode_mode(forward_mode)
        spans = GraphBatch.of(self._graph, bs, num_tokens).write(bs, req_pool_indices, seq_lens)
        metadata = AttnForwardMetadata(spans, bs, 1, self.max_context_len, self.device.type == "cpu")
        self._captured[bs] = self.forward_metadata = metadata

    def init_forward_metadata_replay_cuda_graph(
        self,
        bs: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_sum: int,
        forward_mode: ForwardMode,
        seq_lens_cpu: torch.Tensor | None,
    ) -> None:
        """Writes the replay's rows and lengths over the captured ones, on the device. seq_lens_cpu is only checked."""
        check_decode_mode(forward_mode)
        if bs not in self._captured:
            raise InvalidArgumentError(
                f"HeadraceAttnBackend: a replay of {bs} rows, captured are {sorted(self._captured)}"
            )
        if seq_lens_cpu is not None:
            check_length(int(seq_lens_cpu[:bs].max()), self.max_context_len)
        GraphBatch.of(self._graph, bs, bs).write(bs, req_pool_indices, seq_lens)
        self.forward_metadata = self._captured[bs]


def _joined(
    x: torch.Tensor, rope: torch.Tensor | None, heads: int, dim: int, layer: RadixAttention, name: str
) -> torch.Tensor:
    """Returns x | rope, [T, heads, dim]: an added score term is a longer dot product. A rope of one head is shared."""
    if x.dim() == 2 and rope is None and x.shape[1] == heads * dim:
        return x.view(x.shape[0], heads, dim)
    name = f"attention layer {layer.layer_id}: {name}"
    x = with_heads(x, heads, name)
    if rope is not None:
        rope = with_heads(rope, rope.shape[1] // max(1, dim - x.shape[2]), f"{name}_rope")
        x = torch.cat((x, rope.expand(-1, heads, -1)), dim=-1)
    if x.shape[1:] != (heads, dim):
        raise InvalidArgumentError(f"{name} has {x.shape[1]} heads of {x.shape[2]}, expected {heads} of {dim}")
    return x
