"""Oracles in float64, one row at a time, written from the formulas of the origins and not from headrace's code."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    logit_cap: float = 0.0,
) -> torch.Tensor:
    """softmax(cap(scale * q k)) v over the visible keys. q [n, H, D], keys [m, Hkv, D], values [m, Hkv, Dv], visible
    bool [n, m]. A row that sees no key is zero. Returns float64 [n, H, Dv]."""
    group = q.shape[1] // keys.shape[1]
    keys = keys.double().repeat_interleave(group, dim=1)
    values = values.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q.double(), keys) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", weights, values)


def causal(prefix: int, new: int, window: int = -1) -> torch.Tensor:
    """Row i is position prefix + i. It sees itself and the `window` positions before it, or all of them (-1)."""
    at = torch.arange(prefix, prefix + new)[:, None]
    key = torch.arange(prefix + new)[None, :]
    seen = key <= at
    return seen if window < 0 else seen & (key >= at - window)


def conv_silu(past: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """past [channels, kernel - 1], x [n, channels], weight [channels, kernel]. Returns the outputs and the new past."""
    kernel = weight.shape[1]
    padded = torch.cat((past.double().T, x.double()))
    rows = [(padded[t : t + kernel] * weight.double().T).sum(dim=0) for t in range(x.shape[0])]
    y = torch.stack(rows) if rows else x.double()
    return y * torch.sigmoid(y), padded[padded.shape[0] - (kernel - 1) :].T


def gated_delta_rule(
    state: torch.Tensor,
    qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    num_k_heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence, token by token. state [Hv, V, K], qkv [n, 2 * Hk * K + Hv * V]. Returns outputs [n, Hv, V] and
    the new state."""
    num_v_heads, v_dim, k_dim = state.shape
    state = state.double().clone()
    outputs = torch.zeros((qkv.shape[0], num_v_heads, v_dim), dtype=torch.float64)
    for t, row in enumerate(qkv.double()):
        q, k, v = row.split([num_k_heads * k_dim, num_k_heads * k_dim, num_v_heads * v_dim])
        for h in range(num_v_heads):
            head = slice(h * num_k_heads // num_v_heads * k_dim, (h * num_k_heads // num_v_heads + 1) * k_dim)
            qn = q[head] / torch.sqrt((q[head] ** 2).sum() + 1e-6) * k_dim**-0.5
            kn = k[head] / torch.sqrt((k[head] ** 2).sum() + 1e-6)
            softplus = torch.log1p(torch.exp(a[t, h].double() + dt_bias[h].double()))
            decay = torch.exp(-torch.exp(a_log[h].double()) * softplus)
            s = decay * state[h]
            delta = torch.sigmoid(b[t, h].double()) * (v[h * v_dim : (h + 1) * v_dim] - s @ kn)
            state[h] = s + torch.outer(delta, kn)
            outputs[t, h] = state[h] @ qn
    return outputs, state


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-5) -> None:
    """Element by element; fails on NaN and names the worst element."""
    assert got.shape == want.shape, f"shape {list(got.shape)}, expected {list(want.shape)}"
    error = (got.double().cpu() - want.double()).abs()
    allowed = tolerance * (1 + want.double().abs())
    bad = ~(error <= allowed)
    if bool(bad.any()):
        worst = int(torch.nan_to_num(error, nan=torch.inf).argmax())
        found, expected = got.reshape(-1)[worst], want.reshape(-1)[worst]
        raise AssertionError(
            f"{int(bad.sum())} of {bad.numel()} differ, worst at {worst}: {found}, expected {expected}"
        )


class NothingIsReadOnTheHost(TorchDispatchMode):
    """Fails where Python reads a tensor's element, for which a GPU would be waited for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "an element is read on the host"
        return func(*args, **(kwargs or {}))
