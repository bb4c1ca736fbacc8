"""causal_conv1d, gated_delta_rule, rms_norm and rotary_embedding against float64 on random shapes."""

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")

import op_references as reference  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from op_support import CONV, DENSE, GDN, assert_close, generator, random_shapes  # noqa: E402

from headrace import ops  # noqa: E402

FLOATS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SEEDS = st.integers(0, 2**31)


def random_slots(count: int, g: torch.Generator) -> torch.Tensor:
    """Slots of requests: each reads and writes one of its own, reads another's nowhere, or has none."""
    order = torch.randperm(2 * count, generator=g)
    slots = torch.stack((order[:count], order[count:]), 1).to(torch.int32)
    some = torch.randint(0, 4, (count,), generator=g)
    slots[some == 0, 0] = -1
    slots[some == 1, 1] = -1
    slots[some == 2, 1] = slots[some == 2, 0]
    return slots


def random_snapshots(q_lens: list[int], first_slot: int, g: torch.Generator) -> list[list[int]]:
    found = []
    for r, q_len in enumerate(q_lens):
        if q_len > 0:
            tokens = int(torch.randint(1, q_len + 1, (), generator=g))
            found.append([r, tokens, first_slot + len(found)])
    return found


@random_shapes
@given(
    SEEDS, FLOATS, FLOATS, st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 70)
)
def test_causal_conv1d_is_that_of_float64(
    seed: int, dtype: torch.dtype, state_dtype: torch.dtype, q_lens: list[int], width: int, channels: int
) -> None:
    g, count = generator(seed), len(q_lens)
    x = torch.randn((sum(q_lens), channels + 3), generator=g).to(dtype)[:, 1 : channels + 1]
    weight = torch.randn((channels, width), generator=g).to(dtype)
    state = torch.randn((3 * count, channels, width - 1), generator=g).to(state_dtype)
    slots, snapshots = random_slots(count, g), random_snapshots(q_lens, 2 * count, g)
    want_state = state.clone()
    spans = ops.key_spans(torch.tensor(q_lens), 0)
    tensor = torch.tensor(snapshots, dtype=torch.int32).reshape(-1, 3)
    out = ops.causal_conv1d(x, weight, state, spans, slots, snapshots=tensor if snapshots else None)
    want = reference.causal_conv1d(x, weight, want_state, spans, slots, snapshots)
    assert_close(out, want, CONV[dtype])
    assert torch.equal(state, want_state)


@random_shapes
@given(
    SEEDS,
    FLOATS,
    st.lists(st.sampled_from([0, 1, 2, 5, 17, 64, 100]), min_size=1, max_size=4),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from([8, 32, 64]),
    st.sampled_from([8, 24, 64]),
    st.booleans(),
)
def test_gated_delta_rule_is_that_of_float64(
    seed: int, dtype: torch.dtype, q_lens: list[int], k_heads: int, group: int, k_dim: int, v_dim: int, strict: bool
) -> None:
    g, count, heads, tokens = generator(seed), len(q_lens), k_heads * group, sum(q_lens)
    qkv = torch.randn((tokens, 2 * k_heads * k_dim + heads * v_dim), generator=g).to(dtype)
    a, b = (torch.randn((tokens, heads), generator=g).to(dtype) for _ in range(2))
    a_log, dt_bias = (torch.randn(heads, generator=g) for _ in range(2))
    state = torch.randn((3 * count, heads, v_dim, k_dim), generator=g)
    slots, snapshots = random_slots(count, g), random_snapshots(q_lens, 2 * count, g)
    want_state = state.double()
    spans = ops.key_spans(torch.tensor(q_lens), 0)
    out = ops.gated_delta_rule(
        qkv, a, b, a_log, dt_bias, state, spans, slots, num_k_heads=k_heads, strict=strict,
        snapshots=torch.tensor(snapshots, dtype=torch.int32) if snapshots else None,
    )  # fmt: skip
    want = reference.gated_delta_rule(qkv, a, b, a_log, dt_bias, want_state, spans, slots, k_heads, snapshots)
    assert_close(out, want, GDN[dtype])
    assert_close(state, want_state, GDN[dtype if dtype == torch.bfloat16 else torch.float32], "state")


@random_shapes
@given(SEEDS, st.integers(1, 6), st.booleans())
def test_updates_are_requests_of_one_token(seed: int, count: int, absent: bool) -> None:
    g = generator(seed)
    x, weight = torch.randn((count, 40), generator=g), torch.randn((40, 4), generator=g)
    slots = torch.randperm(8, generator=g)[:count].to(torch.int32)
    if absent:
        slots[0] = -1
    pairs, spans = torch.stack((slots, slots), 1), ops.key_spans(torch.ones(count, dtype=torch.int32), 0)
    states = [torch.randn((8, 40, 3), generator=g)] * 2
    states = [s.clone() for s in states]
    out = ops.causal_conv1d_update(x, weight, states[0], slots)
    assert torch.equal(out, ops.causal_conv1d(x, weight, states[1], spans, pairs))
    assert torch.equal(*states)
    states = [torch.randn((8, 2, 8, 12), generator=g)] * 2
    states = [s.clone() for s in states]
    gates = [torch.randn((count, 2), generator=g) for _ in range(2)]
    fixed = [torch.randn(2, generator=g) for _ in range(2)]
    out = ops.gated_delta_rule_update(x, *gates, *fixed, states[0], slots, num_k_heads=1)
    assert torch.equal(out, ops.gated_delta_rule(x, *gates, *fixed, states[1], spans, pairs, num_k_heads=1))
    assert torch.equal(*states)


@random_shapes
@given(SEEDS, FLOATS, FLOATS, st.sampled_from([(5, 64), (3, 7, 24), (0, 16), (2, 1, 1)]), st.booleans(), st.booleans())
def test_rms_norm_is_that_of_float64(
    seed: int, dtype: torch.dtype, weight_dtype: torch.dtype, shape: tuple[int, ...], gated: bool, plus_one: bool
) -> None:
    g = generator(seed)
    x = torch.randn((*shape[:-1], 2 * shape[-1]), generator=g).to(dtype)[..., : shape[-1]]
    weight = torch.randn(shape[-1], generator=g).to(weight_dtype)
    gate = torch.randn(shape, generator=g).to(dtype) if gated else None
    want = reference.rms_norm(x, weight, 1e-5, gate, plus_one)
    assert_close(ops.rms_norm(x, weight, eps=1e-5, gate=gate, plus_one=plus_one), want, DENSE[dtype])
    ops.rms_norm(x, weight, eps=1e-5, gate=gate, plus_one=plus_one, out=x)
    assert_close(x, want, DENSE[dtype], "out=x")


@random_shapes
@given(SEEDS, FLOATS, st.integers(0, 9), st.integers(1, 3), st.sampled_from([(64, 32), (64, 16), (20, 3)]))
def test_rotary_embedding_is_that_of_float64(
    seed: int, dtype: torch.dtype, tokens: int, heads: int, sizes: tuple[int, int]
) -> None:
    g, (dim, half) = generator(seed), sizes
    x = torch.randn((tokens, heads, dim), generator=g).to(dtype)
    positions = torch.randint(0, 5000, (tokens,), generator=g, dtype=torch.int32)
    inv_freq = 10000.0 ** (-torch.arange(half) / half)
    want = reference.rotary_embedding(x, positions, inv_freq, 1.25)
    assert ops.rotary_embedding(x, positions, inv_freq, magnitude=1.25) is x
    # The angle is a float32 product, so at position 5000 it is 3e-4 from float64's.
    assert_close(x, want, (DENSE[dtype][0] + 2e-3, DENSE[dtype][1]))
