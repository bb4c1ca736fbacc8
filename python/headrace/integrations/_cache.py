"""A transformers cache over a paged pool of keys and values, and pooled states of Gated DeltaNet."""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from headrace.errors import InvalidArgumentError, UnsupportedError
from headrace.integrations._steps import PAGE_SIZE, PageTable, Rows, Step

_GATED_DELTA_NETS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Model types whose "linear_attention" is headrace's."""


class PagedLayer(CacheLayerMixin):
    """Keys and values of a layer in pages, [pages, kv_heads, PAGE_SIZE, head_dim]."""

    is_sliding = False
    is_compileable = False

    def __init__(self, table: PageTable, index: int) -> None:
        super().__init__()
        self.table, self.index = table, index
        self.seen = 0
        """Columns of the padded batch."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Makes the pool, of the dtype and on the device of key_states, [batch, kv_heads, tokens, head_dim]."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_zeros((0, key_states.shape[1], PAGE_SIZE, key_states.shape[3]))
        self.values = value_states.new_zeros((0, value_states.shape[1], PAGE_SIZE, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the new keys and values; headrace's attention stores them, and finds this layer by `layer_of`.

        Raises UnsupportedError if the layer before this one ran its attention on other keys."""
        if self.table.updated is not None:
            raise _changed(self.table.updated)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.seen += key_states.shape[2]
        keys, values = key_states.view_as(key_states), value_states.view_as(value_states)
        keys.headrace_layer = values.headrace_layer = self
        self.table.updated = self.index
        return keys, values

    def pool_of(self, rows: Rows) -> Step:
        """Makes room for the new tokens in the pool; returns where they belong."""
        step = self.table.begin_step(rows, self.seen)
        self.keys, self.values = self._with_room(self.keys), self._with_room(self.values)
        return step

    def _with_room(self, pool: torch.Tensor) -> torch.Tensor:
        pages = self.table.num_pages
        if pool.shape[0] >= pages:
            return pool
        grown = pool.new_zeros((max(pages, pool.shape[0] * 3 // 2), *pool.shape[1:]))
        grown[: pool.shape[0]] = pool
        return grown

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns (columns of the mask, the first of them)."""
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        """Returns the columns that were seen, padding included."""
        return self.seen

    def get_max_length(self) -> int:
        """Returns -1: the pool grows."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def reset(self) -> None:
        """Forgets all sequences."""
        self.seen = 0

    def copy_pages(self, source: list[int]) -> None:
        """Makes page i a copy of page source[i]."""
        if self.is_initialized:
            index = torch.tensor(source, device=self.device)
            self.keys, self.values = self.keys[index], self.values[index]


def layer_of(key: torch.Tensor, value: torch.Tensor) -> PagedLayer | None:
    """Returns the layer whose `update` returned these very tensors; None: they came from no HeadraceCache.

    Raises UnsupportedError if only one of the two is of the layer."""
    layer: PagedLayer | None = getattr(key, "headrace_layer", None)
    of_value: PagedLayer | None = getattr(value, "headrace_layer", None)
    if layer is not of_value:
        raise _changed(next(one.index for one in (layer, of_value) if one is not None))
    if layer is not None:
        layer.table.updated = None
    return layer


def _changed(layer: int) -> UnsupportedError:
    return UnsupportedError(
        f"headrace: layer {layer} changes its keys or values behind the cache, expected attention over those that "
        'HeadraceCache.update returned; use attn_implementation="sdpa", or use_cache=False'
    )


class StateLayer(LinearAttentionCacheLayerMixin):
    """States of a Gated DeltaNet layer, a slot for each sequence of the batch."""

    is_sliding = False
    is_compileable = False

    def __init__(self) -> None:
        self.is_initialized = False
        self.seen = 0
        self.conv = self.recurrent = torch.empty(0)

    def lazy_initialization(self, conv: torch.Tensor, recurrent: torch.Tensor) -> None:
        """Takes the pools: [batch, channels, taps - 1], and float32 [batch, value heads, value dim, key dim]."""
        self.conv, self.recurrent, self.is_initialized = conv, recurrent, True

    @property
    def has_previous_state(self) -> dict[int, bool]:
        return {0: self.seen > 0}

    def update_conv_state(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Refuses: only headrace's own layer writes these states."""
        raise _foreign_layer()

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Refuses: only headrace's own layer writes these states."""
        raise _foreign_layer()

    def reset(self) -> None:
        """Forgets all sequences."""
        self.seen = 0
        if self.is_initialized:
            self.conv.zero_()
            self.recurrent.zero_()

    def select(self, sequences: list[int]) -> None:
        """Makes sequence i a copy of sequences[i]."""
        if self.is_initialized:
            index = torch.tensor(sequences, device=self.conv.device)
            self.conv, self.recurrent = self.conv[index], self.recurrent[index]


def _foreign_layer() -> UnsupportedError:
    return UnsupportedError(
        "headrace: a Gated DeltaNet layer that is not headrace's wrote to its cache; call "
        "headrace.integrations.enable() before the model is made"
    )


class HeadraceCache(Cache):
    """The cache of a model with attn_implementation="headrace"; `config` is the model's.

    It holds one batch of sequences, padded or not, whose pools grow with them. Passes of several steps, chunked
    prompts and beam search are supported; cropping (assisted decoding) is not."""

    def __init__(self, config: Any) -> None:
        text = config.get_text_config(decoder=True)
        self.table = PageTable()
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        super().__init__(layers=[self._layer(text.model_type, index, kind) for index, kind in enumerate(kinds)])

    def _layer(self, model_type: str, index: int, kind: str) -> Any:
        if kind in ("full_attention", "sliding_attention"):
            return PagedLayer(self.table, index)
        if kind == "linear_attention" and model_type in _GATED_DELTA_NETS:
            return StateLayer()
        raise UnsupportedError(
            f'headrace: layer {index} of {model_type} is "{kind}", which HeadraceCache does not hold, expected '
            '"full_attention", "sliding_attention" or Qwen3-Next\'s or Qwen3.5\'s "linear_attention"; use '
            'attn_implementation="sdpa", or use_cache=False'
        )

    @property
    def is_compileable(self) -> bool:
        """False: shapes grow."""
        return False

    def reset(self) -> None:
        """Forgets all sequences."""
        self.table.__init__()  # type: ignore[misc]
        for layer in self.layers:
            layer.reset()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Makes sequence i of the batch a copy of sequence indices[i]."""
        sequences = indices.tolist()
        source = self.table.reorder(sequences)
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                layer.select(sequences)
            else:
                layer.copy_pages(source)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Makes sequence i of the batch a copy of sequence beam_idx[i]."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each sequence, as for several beams."""
        self.batch_select_indices(torch.arange(len(self.table.lens)).repeat_interleave(repeats))

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Refuses: assisted decoding is not built."""
        raise UnsupportedError("headrace: HeadraceCache cannot be cropped, as assisted decoding needs it")


def require_headrace_cache(cache: Any) -> None:
    """Raises InvalidArgumentError for a cache of another kind."""
    if cache is not None and not isinstance(cache, HeadraceCache):
        raise InvalidArgumentError(
            f"headrace: the cache is a {type(cache).__name__}, expected none, or "
            "headrace.integrations.HeadraceCache(model.config)"
        )
