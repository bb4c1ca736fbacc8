"""Attention and Gated DeltaNet ops on torch tensors, numpy arrays and anything else with `__dlpack__`.

    import torch, headrace.ops as ops
    spans = ops.key_spans(q_lens=[1], ctx_lens=[7])                 # one request, its 8th token
    out = ops.paged_attention(q, k_cache, v_cache, page_table, spans, k_new=k, v_new=v)

No op copies its tensors. Pools and states are updated in place, and outputs go to `out=` or to a new tensor of the
first argument's library. Tensors of one call are on one device: the CPU, or a CUDA device of torch (one that has
`__dlpack_c_exchange_api__`, such as 2.15), where the op is queued on torch's current stream. The first op on a CUDA
stream allocates 320 MiB for kernels to work in, which stay. On the CPU the GIL is released while an op runs.

With torch, `torch.compile(fullgraph=True)` sees every function as a custom operator of the namespace `headrace`.
Ops have no gradients: under `torch.no_grad()` or `torch.inference_mode()` they take any tensor, else they refuse those
that require a gradient.

A mistake raises `headrace.InvalidArgumentError`, what is not built `headrace.UnsupportedError`. Both say which
argument, what was expected and what was found.

`import headrace.ops` imports neither torch nor numpy.
"""

from headrace.ops._attention import paged_attention, store_kv
from headrace.ops._gdn import causal_conv1d, causal_conv1d_update, gated_delta_rule, gated_delta_rule_update
from headrace.ops._rows import rms_norm, rotary_embedding
from headrace.ops._spans import SPAN_FIELDS, key_spans
from headrace.ops._threads import num_threads, set_num_threads

__all__ = [
    "SPAN_FIELDS",
    "causal_conv1d",
    "causal_conv1d_update",
    "gated_delta_rule",
    "gated_delta_rule_update",
    "key_spans",
    "num_threads",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "set_num_threads",
    "store_kv",
]
