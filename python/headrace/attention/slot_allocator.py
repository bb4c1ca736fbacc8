"""The allocator of a KVPool's slots."""

from __future__ import annotations

import torch

from headrace.errors import InvalidArgumentError


class TokenToKVPoolAllocator:
    """Hands out slots of a KVPool, smallest first. Slot 0 is never handed out.

    page_size: slots are allocated in whole pages of so many; pages begin at multiples of page_size and lie within the
        pool, so slots of the first page are not used if it is more than 1.
    need_sort: freed slots are sorted before they are handed out again.
    check: free() refuses slots that are not allocated. None: on a CPU only, because on a GPU it waits for the device.
    """

    def __init__(
        self,
        size: int,
        device: str | torch.device = "cuda",
        page_size: int = 1,
        need_sort: bool = True,
        *,
        check: bool | None = None,
    ) -> None:
        if page_size < 1 or (size + 1) // page_size < 2:
            raise InvalidArgumentError(
                f"TokenToKVPoolAllocator: page_size is {page_size}, expected 1 to {(size + 1) // 2} for {size} slots"
            )
        self.size = size
        self.device = torch.device(device)
        self.page_size = page_size
        self.need_sort = need_sort
        self._checks = self.device.type == "cpu" if check is None else check
        self.clear()

    def clear(self) -> None:
        """Frees all slots and closes a group."""
        pages = torch.arange(1, (self.size + 1) // self.page_size, dtype=torch.int32, device=self.device)
        self.free_slots = pages  # ids of pages; with pages of one token these are slots
        self.release_slots = pages[:0]
        self._is_not_in_free_group = True
        self._free_group: list[torch.Tensor] = []

    def available_size(self) -> int:
        """Returns the number of free slots."""
        return (len(self.free_slots) + len(self.release_slots)) * self.page_size

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Returns `need_size` slots, int32, or None, without effect, if fewer are free."""
        pages = -(-need_size // self.page_size)
        if pages > len(self.free_slots):
            self.merge_and_sort_free()
        if pages > len(self.free_slots):
            return None
        taken, self.free_slots = self.free_slots[:pages], self.free_slots[pages:]
        if self.page_size == 1:
            return taken
        offsets = torch.arange(self.page_size, dtype=torch.int32, device=self.device)
        return (taken[:, None] * self.page_size + offsets).reshape(-1)[:need_size]

    def free(self, indices: torch.Tensor) -> None:
        """Gives slots back; of a page with page_size > 1 any slot gives back the whole page. Refuses slots that are
        not allocated (see `check`). Within a group the slots are given back by free_group_end()."""
        if indices.numel() == 0:
            return
        if not self._is_not_in_free_group:
            self._free_group.append(indices)
            return
        pages = indices.reshape(-1).to(torch.int32)
        if self.page_size > 1:
            pages = torch.unique(torch.div(pages, self.page_size, rounding_mode="floor"))
        if self._checks:
            self._refuse_unallocated(pages)
        if self.need_sort:
            self.release_slots = torch.cat((self.release_slots, pages))
        else:
            self.free_slots = torch.cat((self.free_slots, pages))

    def free_group_begin(self) -> None:
        """Defers free() to free_group_end()."""
        self._is_not_in_free_group = False
        self._free_group = []

    def free_group_end(self) -> None:
        """Gives back the slots that were freed since free_group_begin()."""
        self._is_not_in_free_group = True
        if self._free_group:
            self.free(torch.cat([index.reshape(-1) for index in self._free_group]))
        self._free_group = []

    def merge_and_sort_free(self) -> None:
        """Makes freed slots ready to be handed out again. alloc() calls it if it needs them."""
        self.free_slots = torch.cat((self.free_slots, self.release_slots))
        self.release_slots = self.release_slots[:0]
        if self.need_sort:
            self.free_slots = torch.sort(self.free_slots).values

    def _refuse_unallocated(self, pages: torch.Tensor) -> None:
        last = (self.size + 1) // self.page_size - 1
        free = torch.cat((self.free_slots, self.release_slots))
        wrong = (pages < 1) | (pages > last) | torch.isin(pages, free)
        name = "slot" if self.page_size == 1 else "page"
        if bool(wrong.any()) or len(torch.unique(pages)) != len(pages):
            found = pages[wrong].tolist() or "twice in one call"
            raise InvalidArgumentError(
                f"TokenToKVPoolAllocator.free: {name}s {found} are not allocated, expected {name}s of alloc(), "
                f"1 to {last}"
            )
