"""K and V of a model's layers."""

from __future__ import annotations

from collections.abc import Collection

import torch

from headrace import ops
from headrace.errors import InvalidArgumentError

_ROW_ALIGNMENT = 8  # rows of a buffer are a multiple


class KVPool:
    """K and V of every layer, zeroed. Usable slots are 1..size; slot 0 takes the writes of padding tokens.

    v_head_num, v_head_dim: None: those of k. pin_memory is accepted and unused.
    layer_ids: global ids of the layers that have buffers, None: all. In a hybrid model only the full-attention layers
        need them (not in pymllm).
    """

    def __init__(
        self,
        size: int,
        layer_num: int,
        k_head_num: int,
        k_head_dim: int,
        device: str | torch.device = "cuda",
        dtype: torch.dtype = torch.float16,
        v_head_num: int | None = None,
        v_head_dim: int | None = None,
        pin_memory: bool = True,
        *,
        layer_ids: Collection[int] | None = None,
    ) -> None:
        if size < 1:
            raise InvalidArgumentError(f"KVPool: size is {size}, expected 1 or more")
        self.size = size
        self.layer_num = layer_num
        self.k_head_num = k_head_num
        self.k_head_dim = k_head_dim
        self.v_head_num = k_head_num if v_head_num is None else v_head_num
        self.v_head_dim = k_head_dim if v_head_dim is None else v_head_dim
        self.device = torch.device(device)
        self.dtype = dtype
        rows = -(-(size + 1) // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
        held = range(layer_num) if layer_ids is None else sorted(layer_ids)
        if len(held) > 0 and not 0 <= held[0] <= held[-1] < layer_num:
            raise InvalidArgumentError(f"KVPool: layer_ids are {held}, expected 0 to {layer_num - 1}")
        self.k_buffer = self._buffers(held, rows, k_head_num, k_head_dim)
        self.v_buffer = self._buffers(held, rows, self.v_head_num, self.v_head_dim)

    def _buffers(self, held: Collection[int], *shape: int) -> list[torch.Tensor]:
        """Returns one buffer per layer; those of layers that are not held have no rows."""
        shapes = [shape if layer in held else (0, *shape[1:]) for layer in range(self.layer_num)]
        return [torch.zeros(of_layer, dtype=self.dtype, device=self.device) for of_layer in shapes]

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """Returns the layer's K, [slots, k_head_num, k_head_dim]: the pool's memory, no copy."""
        return self._of(self.k_buffer, layer_id)

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """Returns the layer's V, [slots, v_head_num, v_head_dim]: the pool's memory, no copy."""
        return self._of(self.v_buffer, layer_id)

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns get_key_buffer and get_value_buffer."""
        return self.get_key_buffer(layer_id), self.get_value_buffer(layer_id)

    def set_kv_buffer(self, layer_id: int, indices: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Writes row i of k and v to slot indices[i]. Leading shapes are flattened; a negative slot stores nothing. Of
        equal slots the last one wins in no defined order."""
        key, value = self.get_kv_buffer(layer_id)
        ops.store_kv(
            k.reshape(-1, self.k_head_num, self.k_head_dim),
            v.reshape(-1, self.v_head_num, self.v_head_dim),
            indices.reshape(-1).to(torch.int64),
            key.unsqueeze(2),  # a slot is a page of one token
            value.unsqueeze(2),
        )

    def mem_bytes(self) -> int:
        """Returns the bytes of all buffers."""
        return sum(x.nbytes for x in (*self.k_buffer, *self.v_buffer))

    _mem_bytes = mem_bytes  # the name that pymllm's runner calls

    def _of(self, buffers: list[torch.Tensor], layer_id: int) -> torch.Tensor:
        if not 0 <= layer_id < self.layer_num or len(buffers[layer_id]) == 0:
            held = [layer for layer, buffer in enumerate(buffers) if len(buffer) > 0]
            raise InvalidArgumentError(f"KVPool: layer {layer_id} has no K and V here; those with are {held}")
        return buffers[layer_id]
