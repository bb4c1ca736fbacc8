"""headrace.ops with torch: no copies, gradients, custom operators, torch.compile."""

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from op_support import generator  # noqa: E402

import headrace  # noqa: E402
from headrace import ops  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def problem(dtype: torch.dtype = torch.float32, tokens: int = 3) -> dict:
    """Arguments of paged_attention: requests of 2 and tokens - 2 tokens, behind 9 and 4 cached ones."""
    g = generator(1)
    pools = {name: torch.randn((5, 2, 8, 16), generator=g).to(dtype) for name in ("k_cache", "v_cache")}
    new = {name: torch.randn((tokens, 2, 16), generator=g).to(dtype) for name in ("k_new", "v_new")}
    q = torch.randn((tokens, 4, 16), generator=g).to(dtype)
    table = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    return {
        "q": q,
        **pools,
        "page_table": table,
        "spans": ops.key_spans(torch.tensor([2, tokens - 2]), torch.tensor([9, 4])),
        **new,
    }


def gdn_problem() -> dict:
    g, heads, dim, tokens = generator(2), 2, 8, 5
    return {
        "qkv": torch.randn((tokens, 3 * heads * dim), generator=g),
        "a": torch.randn((tokens, heads), generator=g),
        "b": torch.randn((tokens, heads), generator=g),
        "a_log": torch.randn(heads, generator=g),
        "dt_bias": torch.randn(heads, generator=g),
        "state": torch.randn((3, heads, dim, dim), generator=g),
        "spans": ops.key_spans(torch.tensor([2, 3]), 0),
        "slots": torch.tensor([[0, 1], [-1, 2]], dtype=torch.int32),
        "num_k_heads": heads,
    }


def conv_problem() -> dict:
    g = generator(3)
    return {
        "x": torch.randn((5, 7), generator=g),
        "weight": torch.randn((7, 4), generator=g),
        "state": torch.randn((3, 7, 3), generator=g),
        "spans": ops.key_spans(torch.tensor([2, 3]), 0),
        "slots": torch.tensor([[0, 1], [-1, 2]], dtype=torch.int32),
    }


def store_problem() -> dict:
    g = generator(4)
    new = {name: torch.randn((3, 2, 16), generator=g) for name in ("k", "v")}
    pools = {name: torch.randn((5, 2, 8, 16), generator=g) for name in ("k_cache", "v_cache")}
    return {**new, "slots": torch.tensor([9, -1, 31]), **pools}


PROBLEMS = {
    "paged_attention": problem,
    "store_kv": store_problem,
    "causal_conv1d": conv_problem,
    "causal_conv1d_update": lambda: {
        **{k: v for k, v in conv_problem().items() if k not in ("spans", "slots", "x")},
        "x": torch.randn((2, 7), generator=generator(5)),
        "slots": torch.tensor([2, 0], dtype=torch.int32),
    },
    "gated_delta_rule": gdn_problem,
    "gated_delta_rule_update": lambda: {
        **{k: v for k, v in gdn_problem().items() if k != "spans"},
        "slots": torch.tensor([2, 0, 1, -1, -1], dtype=torch.int32),
    },
    "rms_norm": lambda: {"x": torch.randn((3, 8), generator=generator(6)), "weight": torch.ones(8)},
    "rotary_embedding": lambda: {
        "x": torch.randn((3, 2, 8), generator=generator(7)),
        "positions": torch.arange(3, dtype=torch.int32),
        "inv_freq": torch.rand(4, generator=generator(8)),
    },
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_torchs_and_not_copied(dtype: torch.dtype) -> None:
    arguments = problem(dtype)
    out = torch.full((3, 4, 16), torch.nan, dtype=dtype)
    address = out.data_ptr()
    assert ops.paged_attention(**arguments, out=out) is out
    assert out.data_ptr() == address
    fresh = ops.paged_attention(**arguments)
    assert isinstance(fresh, torch.Tensor)
    assert fresh.dtype == dtype
    assert torch.equal(fresh, out)


def test_numpy_and_torch_may_be_mixed() -> None:
    arguments = problem()
    mixed = {name: value.numpy() if name in ("k_cache", "spans") else value for name, value in arguments.items()}
    assert torch.equal(ops.paged_attention(**mixed), ops.paged_attention(**arguments))


class OnlyDLPack:
    """A tensor of a library that has `__dlpack__` and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_library_with_dlpack_will_do(dtype: torch.dtype) -> None:
    arguments = problem(dtype)
    foreign = {name: OnlyDLPack(value) for name, value in arguments.items()}
    foreign["q"].shape, foreign["v_cache"].shape = arguments["q"].shape, arguments["v_cache"].shape
    out = torch.empty_like(arguments["q"])
    ops.paged_attention(**foreign, out=OnlyDLPack(out))
    assert torch.equal(out, ops.paged_attention(**arguments))
    with pytest.raises(headrace.InvalidArgumentError, match=r"a OnlyDLPack cannot make new tensors .* expected out="):
        ops.paged_attention(**foreign)


def test_a_transposed_pool_is_a_view() -> None:
    arguments = problem()
    order = {name: arguments[name].transpose(1, 2).contiguous().transpose(1, 2) for name in ("k_cache", "v_cache")}
    assert not order["k_cache"].is_contiguous()
    assert torch.equal(ops.paged_attention(**{**arguments, **order}), ops.paged_attention(**arguments))


def test_tensors_without_elements() -> None:
    arguments = problem()
    nothing = {"q": torch.empty(0, 4, 16), "k_new": torch.empty(0, 2, 16), "v_new": torch.empty(0, 2, 16)}
    spans = ops.key_spans(torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=torch.int32))
    assert ops.paged_attention(**{**arguments, **nothing, "spans": spans}).shape == (0, 4, 16)
    ops.store_kv(nothing["k_new"], nothing["v_new"], torch.empty(0, dtype=torch.int64), *[torch.zeros(2, 2, 8, 16)] * 2)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_refused_in_a_sentence(name: str) -> None:
    arguments = PROBLEMS[name]()
    first = next(iter(arguments))
    arguments[first] = torch.nn.Parameter(arguments[first])
    with pytest.raises(headrace.InvalidArgumentError, match="requires a gradient, and headrace's ops have none"):
        getattr(ops, name)(**arguments)
    with torch.no_grad():
        getattr(ops, name)(**arguments)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_gradients_are_refused_under_compile(fullgraph: bool) -> None:
    torch._dynamo.reset()
    norm = torch.compile(lambda x, weight: ops.rms_norm(x, weight), fullgraph=fullgraph)
    x, weight = torch.randn((2, 8), generator=generator(10)), torch.nn.Parameter(torch.ones(8))
    with pytest.raises((headrace.InvalidArgumentError, torch._dynamo.exc.Unsupported)) as error:
        norm(x, weight)
    assert "a tensor requires a gradient, and headrace's ops have none" in str(error.value)
    with torch.no_grad():
        assert torch.equal(norm(x, weight), ops.rms_norm(x, weight))


@pytest.mark.parametrize("name", PROBLEMS)
def test_compiles_whole_with_the_same_bits(name: str) -> None:
    torch._dynamo.reset()
    eager, compiled = PROBLEMS[name](), PROBLEMS[name]()
    want = getattr(ops, name)(**eager)

    def call(arguments: dict) -> torch.Tensor | None:
        out = getattr(ops, name)(**arguments)
        return None if out is None else out + 0

    got = torch.compile(call, fullgraph=True)(compiled)
    assert want is None or torch.equal(got, want)
    for argument, value in eager.items():  # pools and states, too
        if isinstance(value, torch.Tensor):
            assert torch.equal(compiled[argument], value), argument


def test_a_layer_compiles_with_everything_around_it() -> None:
    torch._dynamo.reset()

    def layer(x: torch.Tensor, q_lens: torch.Tensor, ctx_lens: torch.Tensor, pools: dict) -> torch.Tensor:
        q, k, v = x.sin(), x[:, :2].cos(), x[:, 2:] * 2
        slots = torch.tensor([17, 18, 28])
        ops.store_kv(k, v, slots, pools["k_cache"], pools["v_cache"])
        spans = ops.key_spans(q_lens, ctx_lens)
        out, lse = ops.paged_attention(q, **pools, spans=spans, return_lse=True, window=6)
        return ops.rms_norm(out, torch.ones(16)).sum(2) + lse

    x, lens = torch.randn((3, 4, 16), generator=generator(9)), (torch.tensor([2, 1]), torch.tensor([9, 4]))
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True)):
        pools = {name: problem()[name] for name in ("k_cache", "v_cache", "page_table")}
        results.append((run(x, *lens, pools), pools["k_cache"], pools["v_cache"]))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_compiles_when_torch_comes_after_headrace() -> None:
    code = """
import headrace.ops as ops
import torch
f = torch.compile(lambda x, w: ops.rms_norm(x, w), fullgraph=True)
x, w = torch.randn(2, 8), torch.ones(8)
torch.testing.assert_close(f(x, w), torch.nn.functional.rms_norm(x, (8,), eps=1e-6))
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "ok", done.stderr


def operator_arguments() -> dict[str, tuple]:
    """Of each operator the arguments of one call."""
    calls: dict[str, tuple] = {}
    from headrace.ops import _torch

    kernels = dict(_torch._KERNELS)
    for name in kernels:
        _torch._KERNELS[name] = lambda *arguments, name=name: calls.update({name: arguments})
    try:
        for name, make in PROBLEMS.items():
            getattr(ops, name)(**make())
    finally:
        _torch._KERNELS.update(kernels)
    return calls


@pytest.mark.parametrize(
    "name", ["paged_attention", "store_kv", "causal_conv1d", "gated_delta_rule", "rms_norm", "rotary_embedding"]
)
def test_operators_pass_torchs_own_check(name: str) -> None:
    arguments = operator_arguments()[name]
    torch.library.opcheck(getattr(torch.ops.headrace, name).default, arguments)


def test_fake_tensors_run_no_kernel() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        arguments = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in problem().items()}
        out = ops.paged_attention(**arguments)
    assert out.shape == (3, 4, 16)
