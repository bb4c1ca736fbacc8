"""States of Gated DeltaNet layers."""

from __future__ import annotations

import torch

from headrace.errors import InvalidArgumentError


class GDNPool:
    """The recurrent and the convolution states of every Gated DeltaNet layer, zeroed.

    recurrent_state: float32 [layers, slots, num_v_heads, head_v_dim, head_k_dim].
    conv_state: dtype [layers, slots, conv_dim, conv_kernel_size - 1]: raw inputs of the convolution, newest last.
    Slot 0 is a dummy; the slot of a request is its row of the request table, 1..max_reqs; snapshots ("track slots")
    follow from max_reqs + 1 on.
    """

    def __init__(
        self,
        max_reqs: int,
        num_gdn_layers: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        conv_dim: int,
        conv_kernel_size: int,
        device: str | torch.device = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        max_track_slots: int = 0,
    ) -> None:
        self.max_reqs = max_reqs
        self.num_gdn_layers = num_gdn_layers
        self.num_v_heads = num_v_heads
        self.head_k_dim = head_k_dim
        self.head_v_dim = head_v_dim
        self.conv_dim = conv_dim
        self.conv_kernel_size = conv_kernel_size
        self.max_track_slots = max_track_slots
        self.device = torch.device(device)
        self.dtype = dtype
        slots = 1 + max_reqs + max_track_slots
        state = (num_gdn_layers, slots, num_v_heads, head_v_dim, head_k_dim)
        conv = (num_gdn_layers, slots, conv_dim, conv_kernel_size - 1)
        self.recurrent_state = torch.zeros(state, dtype=torch.float32, device=self.device)
        self.conv_state = torch.zeros(conv, dtype=dtype, device=self.device)
        self._free_track_slots = list(range(max_reqs + 1, slots))

    def get_layer_state(self, gdn_layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns views of one layer's recurrent state [slots, num_v_heads, head_v_dim, head_k_dim] and convolution
        state [slots, conv_dim, conv_kernel_size - 1]."""
        if not 0 <= gdn_layer_idx < self.num_gdn_layers:
            raise InvalidArgumentError(
                f"GDNPool: gdn_layer_idx is {gdn_layer_idx}, expected 0 to {self.num_gdn_layers - 1}"
            )
        return self.recurrent_state[gdn_layer_idx], self.conv_state[gdn_layer_idx]

    def reset_states(self, req_pool_indices: torch.Tensor) -> None:
        """Zeroes the states of these slots in all layers."""
        if req_pool_indices.numel() == 0:
            return
        slots = req_pool_indices.to(device=self.device, dtype=torch.int64)
        self.recurrent_state.index_fill_(1, slots, 0)
        self.conv_state.index_fill_(1, slots, 0)

    def alloc_track_slot(self) -> int | None:
        """Returns a slot for a snapshot, or None if none is free."""
        return self._free_track_slots.pop() if self._free_track_slots else None

    def free_track_slot(self, slot: int) -> None:
        """Gives a snapshot's slot back. Refuses one that alloc_track_slot() did not return."""
        first = self.max_reqs + 1
        if not first <= slot < first + self.max_track_slots or slot in self._free_track_slots:
            raise InvalidArgumentError(f"GDNPool.free_track_slot: slot {slot} is not an allocated track slot")
        self._free_track_slots.append(slot)

    def copy_states(self, src_index: int, dst_index: int) -> None:
        """Copies both states of every layer from one slot to another."""
        self.recurrent_state[:, dst_index].copy_(self.recurrent_state[:, src_index])
        self.conv_state[:, dst_index].copy_(self.conv_state[:, src_index])

    def mem_bytes(self) -> int:
        """Returns the bytes of both states."""
        return int(self.recurrent_state.nbytes + self.conv_state.nbytes)
