"""paged_attention and store_kv."""

from typing import Any

from headrace import _core
from headrace.errors import InvalidArgumentError
from headrace.ops._tensors import empty, empty_like, expect_tensor, torch_of, wrong_number

_TYPES = {"decoder": 0, "decoder_bidirectional": 1, "encoder_only": 2}
_KEYS = {"sequence": 0, "encoder": 1}
_NO_WINDOW = 2**31 - 1


def _unknown(name: str, value: Any, choices: dict[str, int]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"paged_attention: {name} is {value!r}, expected one of {', '.join(map(repr, choices))}"
    )


def _new_out(q: Any, v_cache: Any, v_new: Any) -> Any:
    values = v_new if v_cache is None else v_cache
    if values is None:
        raise InvalidArgumentError("paged_attention: neither v_cache nor v_new is given, expected one of them")
    expect_tensor("paged_attention", "q", q)
    expect_tensor("paged_attention", "v_cache" if values is v_cache else "v_new", values)
    shape, v_dim = q.shape, values.shape[-1]
    return empty_like(q) if shape[-1] == v_dim else empty(q, (*shape[:-1], v_dim))


def _scales(k_scale: Any, v_scale: Any) -> tuple[float, float, Any, Any]:
    """Returns the numbers of an FP8 pool and the tensors of an int8 pool."""
    if isinstance(k_scale, (int, float)) and isinstance(v_scale, (int, float)):
        return k_scale, v_scale, None, None
    return 1.0, 1.0, k_scale, v_scale


def paged_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    page_table: Any,
    spans: Any,
    *,
    k_new: Any = None,
    v_new: Any = None,
    scale: float | None = None,
    logit_cap: float = 0.0,
    window: int | None = None,
    type: str = "decoder",
    keys: str = "sequence",
    grouped: bool = True,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
    out: Any = None,
    return_lse: bool = False,
    max_q_len: int | None = None,
    max_kv_len: int | None = None,
    strict: bool = False,
) -> Any:
    """Attention of a ragged batch over a paged KV cache and the batch's new keys.

    out[t, h] = sum over the keys j that token t sees of softmax_j(cap(scale * q[t, h] . k[j, g])) v[j, g], where g =
    h // (num_heads // kv_heads) and cap(s) = logit_cap * tanh(s / logit_cap). Sums are float32 or wider. A token that
    sees no key yields zeros, and a log-sum-exp of -inf.

    Arguments:
        q: [num_tokens, num_heads, head_dim], float32, bfloat16 or float16. The first two dimensions may be strided.
        k_cache: the pool of keys, [pages, kv_heads, page_size, head_dim], of a float dtype, float8_e4m3fn, or int8 (on
            a CPU). Any strides but the last, so `pool.transpose(1, 2)` shows a pool in the order [pages, page_size,
            kv_heads, head_dim]. None if no request reads cached keys.
        v_cache: the pool of values, [pages, kv_heads, page_size, v_head_dim]; likewise.
        page_table: int32 [rows, pages], the page of the pool of each page of a request; None without a pool.
        spans: int32 [num_requests, 15] of `key_spans`: which keys each token sees, and its row of the page table.
        k_new: keys of the new tokens, [num_tokens, kv_heads, head_dim], rounded to the pool's dtype as they are read.
            The pool is not written. None: they are in the pool, where `store_kv` wrote them.
        v_new: values of the new tokens, [num_tokens, kv_heads, v_head_dim]; likewise.
        scale: of the scores, by default head_dim ** -0.5.
        logit_cap: soft cap of the scores; 0 is none.
        window: the most keys that a token sees, its own included; None is no window.
        type: "decoder"; "decoder_bidirectional" makes causal spans full; "encoder_only" makes all spans full and
            ignores the cache.
        keys: "sequence", or "encoder" for cross-attention: the keys 0 to encoder_len - 1 of the encoder's pages,
            without mask or window.
        grouped: one pass over K and V for all query heads of a KV head; False makes one per query head.
        k_scale: of a float8_e4m3fn pool, key = stored * scale. Of an int8 pool the tensor float32 [pages, kv_heads,
            page_size] that `store_kv` wrote.
        v_scale: of the values; likewise.
        out: [num_tokens, num_heads, v_head_dim] of q's dtype, written in full; by default a new tensor.
        return_lse: also return the log-sum-exps.
        max_q_len: on a GPU, a bound of the spans' q_len. With both bounds nothing waits for the GPU, and a CUDA graph
            may be captured. Without them each call copies the spans to the host and waits. Ignored on a CPU.
        max_kv_len: a bound of the spans' ctx_len + q_len.
        strict: a token's bits depend neither on the rest of the batch nor on how its request was split into steps.

    Returns `out`, or (`out`, float32 [num_tokens, num_heads]) with return_lse.

    Writes only `out`. Raises `InvalidArgumentError` if shapes, dtypes or devices disagree, or a span or page (on a
    CPU) is outside its tensor; `UnsupportedError` for sizes that the device has no kernel for.
    """
    if type not in _TYPES:
        raise _unknown("type", type, _TYPES)
    if keys not in _KEYS:
        raise _unknown("keys", keys, _KEYS)
    torch = torch_of(q)
    if out is None:
        out = _new_out(q, v_cache, v_new)
    lse = empty(q, tuple(q.shape[:-1]), "float32") if return_lse else None
    k_factor, v_factor, k_token_scales, v_token_scales = _scales(k_scale, v_scale)
    run = _core.paged_attention if torch is None else torch.kernel("paged_attention", q)
    try:
        run(
            q,
            k_cache,
            v_cache,
            page_table,
            spans,
            k_new,
            v_new,
            k_token_scales,
            v_token_scales,
            out,
            lse,
            scale,
            logit_cap,
            _NO_WINDOW if window is None else window,
            _TYPES[type],
            _KEYS[keys],
            grouped,
            k_factor,
            v_factor,
            max_q_len or 0,
            max_kv_len or 0,
            strict,
        )
    except TypeError as error:
        numbers = {"scale": (scale, float), "logit_cap": (logit_cap, float), "window": (window, int)}
        bounds = {"max_q_len": (max_q_len, int), "max_kv_len": (max_kv_len, int)}
        flags = {"grouped": (grouped, bool), "strict": (strict, bool)}
        raise wrong_number("paged_attention", error, **numbers, **bounds, **flags) from None
    return (out, lse) if return_lse else out


def store_kv(
    k: Any,
    v: Any,
    slots: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
) -> None:
    """Writes new keys and values to their slots of a paged KV cache.

    k_cache[slots[t] // page_size, h, slots[t] % page_size] = k[t, h] / k_scale, rounded to the pool's dtype and
    saturated if that is float8_e4m3fn; v likewise.

    Arguments:
        k: [num_tokens, kv_heads, head_dim], float32, bfloat16 or float16. The first two dimensions may be strided.
        v: [num_tokens, kv_heads, v_head_dim]; likewise.
        slots: int64 [num_tokens], distinct; -1: the token is not stored.
        k_cache: the pool of keys, updated in place; see `paged_attention`.
        v_cache: the pool of values, updated in place.
        k_scale: a number for a float8_e4m3fn pool. For an int8 pool a tensor float32 [pages, kv_heads, page_size],
            which is written too: each row gets the scale max |row| / 127.
        v_scale: of the values; likewise.

    Raises `InvalidArgumentError` if shapes, dtypes or devices disagree, or a slot (on a CPU) is outside the pool.
    """
    torch = torch_of(k)
    run = _core.store_kv if torch is None else torch.kernel("store_kv", k)
    run(k, v, slots, k_cache, v_cache, *_store_scales(k_scale, v_scale))


def _store_scales(k_scale: Any, v_scale: Any) -> tuple[Any, Any, float, float]:
    k_factor, v_factor, k_token_scales, v_token_scales = _scales(k_scale, v_scale)
    return k_token_scales, v_token_scales, k_factor, v_factor
