"""Tensors of headrace.ops: no copies, every library, errors that say what is wrong, threads, fork."""

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

np = pytest.importorskip("numpy")

import headrace  # noqa: E402
from headrace import ops  # noqa: E402

HEADS, DIM, PAGES, PAGE_SIZE = 2, 16, 3, 8


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def attention_arguments() -> dict:
    """Arguments of one token behind 9 cached ones."""
    table = np.array([[2, 1]], np.int32)
    spans = ops.key_spans([1], [9])
    pools = {"k_cache": rows(PAGES, HEADS, PAGE_SIZE, DIM), "v_cache": rows(PAGES, HEADS, PAGE_SIZE, DIM)}
    new = {"k_new": rows(1, HEADS, DIM), "v_new": rows(1, HEADS, DIM)}
    return {"q": rows(1, 4, DIM), **pools, "page_table": table, "spans": spans, **new}


def refused(call: Callable[..., Any], **changed: Any) -> str:
    """Returns the sentence of the refusal of a call with changed arguments."""
    arguments = {**attention_arguments(), **changed} if call is ops.paged_attention else changed
    with pytest.raises(headrace.InvalidArgumentError) as error:
        call(**arguments)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def test_numpy_in_numpy_out() -> None:
    out, lse = ops.paged_attention(**attention_arguments(), return_lse=True)
    assert isinstance(out, np.ndarray)
    assert isinstance(lse, np.ndarray)
    assert out.shape == (1, 4, DIM)
    assert [out.dtype, lse.dtype] == [np.float32, np.float32]
    assert np.isfinite(out).all()


def test_numpy_works_without_torch() -> None:
    code = """
import sys, numpy as np, headrace.ops as ops
assert "torch" not in sys.modules
x = np.arange(8, dtype=np.float32).reshape(2, 4)
y = ops.rms_norm(x, np.ones(4, np.float32))
assert np.allclose(y, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6), atol=1e-5)
assert ops.key_spans([2, 1], 0).tolist()[1][:2] == [2, 1]
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_import_loads_neither_numpy_nor_torch() -> None:
    code = "import sys, headrace.ops; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_out_is_written_and_returned() -> None:
    arguments, out = attention_arguments(), np.full((1, 4, DIM), np.nan, np.float32)
    assert ops.paged_attention(**arguments, out=out) is out
    assert np.array_equal(out, ops.paged_attention(**arguments))


def test_pools_and_states_are_updated_in_place() -> None:
    pools = [np.zeros((PAGES, HEADS, PAGE_SIZE, DIM), np.float32) for _ in range(2)]
    view, k = pools[0][1, :, 3], rows(1, HEADS, DIM)
    ops.store_kv(k, k, np.array([PAGE_SIZE + 3]), *pools)
    assert np.array_equal(view, k[0])
    state = np.zeros((2, 5, 3), np.float32)
    x = rows(1, 5)
    ops.causal_conv1d_update(x, rows(5, 4), state, np.array([1], np.int32))
    assert np.array_equal(state[1, :, 2], x[0])


def test_inputs_may_be_read_only_and_outputs_not() -> None:
    arguments = attention_arguments()
    for tensor in arguments.values():
        tensor.flags.writeable = False
    want = ops.paged_attention(**attention_arguments())
    assert np.array_equal(ops.paged_attention(**arguments), want)
    out = np.zeros_like(want)
    out.flags.writeable = False
    assert "out is read-only" in refused(ops.paged_attention, out=out)


def test_strided_rows_are_taken_where_kernels_take_them() -> None:
    arguments = attention_arguments()
    want = ops.paged_attention(**arguments)
    wide = np.zeros((1, 8, DIM), np.float32)
    wide[:, ::2] = arguments["q"]
    assert np.array_equal(ops.paged_attention(**{**arguments, "q": wide[:, ::2]}), want)
    sentence = refused(ops.paged_attention, q=np.zeros((1, 4, 2 * DIM), np.float32)[..., ::2])
    assert sentence == "paged_attention: q: the last dimension's stride is 2, expected 1"


def test_errors_name_the_argument_what_was_expected_and_what_was_found() -> None:
    call = ops.paged_attention
    assert refused(call, q=rows(1, 4, DIM).astype(np.float64)) == (
        "paged_attention: q: dtype is float64, expected float32, bfloat16 or float16"
    )
    assert refused(call, q=rows(4, DIM)) == "paged_attention: q: shape is [4, 16], expected 3 dimensions"
    assert refused(call, q=rows(1, 3, DIM)) == (
        "paged_attention: q has 3 heads, expected a multiple of the 2 heads of k_cache"
    )
    assert refused(call, q=rows(1, 4, 8)) == (
        "paged_attention: k_cache: shape is [3, 2, 8, 16], expected [any, any, any, 8]"
    )
    assert "page_table: [0, 1] is 3, expected 0 to 2" in refused(call, page_table=np.array([[0, 3]], np.int32))
    assert "page_table: dtype is int64, expected int32" in refused(call, page_table=np.array([[0, 1]]))
    assert "needs 2 pages of row 0, page_table is [1, 1]" in refused(call, page_table=np.zeros((1, 1), np.int32))
    assert "spans have 2 tokens, expected 1" in refused(call, spans=ops.key_spans([2], [9]))
    assert "k_scale is 2, expected 1 for a pool of float32" in refused(call, k_scale=2.0)
    crossing = ops.key_spans([1], 0, encoder_lens=5, encoder_page_rows=1)
    assert "needs 1 pages of row 1, page_table is [1, 2]" in refused(call, spans=crossing, keys="encoder")
    assert "one of k_new and v_new is None" in refused(call, v_new=None)
    assert "type is 'causal', expected one of 'decoder'" in refused(call, type="causal")
    assert "window is 0" in refused(call, window=0)
    with pytest.raises(headrace.InvalidArgumentError, match="weight is a list, expected a tensor"):
        ops.rms_norm(rows(1, 2), [1.0, 1.0])
    pools = [np.zeros((PAGES, HEADS, PAGE_SIZE, DIM), np.float32) for _ in range(2)]
    with pytest.raises(headrace.InvalidArgumentError, match="slot 24 of token 0 is outside the pool of 24 slots"):
        ops.store_kv(rows(1, HEADS, DIM), rows(1, HEADS, DIM), np.array([24]), *pools)


def test_numbers_and_what_is_no_tensor_are_refused_by_name() -> None:
    call = ops.paged_attention
    assert refused(call, spans=None) == (
        "paged_attention: spans is a NoneType, expected a tensor (torch, numpy, or anything with __dlpack__)"
    )
    assert refused(call, q=[[1.0]]).startswith("paged_attention: q is a list, expected a tensor")
    assert refused(call, scale="0.1") == "paged_attention: scale is '0.1', expected a number"
    assert refused(call, window=4.0) == "paged_attention: window is 4.0, expected an integer"
    assert refused(call, strict="x") == "paged_attention: strict is 'x', expected True or False"
    assert refused(call, scale=float("nan")) == "paged_attention: scale is nan, expected a finite number"
    assert "q: dtype is complex64, expected" in refused(call, q=rows(1, 4, DIM).astype(np.complex64))
    assert refused(ops.key_spans, q_lens=[1.9], ctx_lens=0) == (
        "key_spans: q_lens is [1.9], expected integers of 32 bits"
    )
    assert "ctx_lens is [1099511627777]" in refused(ops.key_spans, q_lens=[1], ctx_lens=[2**40 + 1])
    assert "ctx_lens is 1099511627777" in refused(ops.key_spans, q_lens=[1], ctx_lens=2**40 + 1)
    assert "ctx_lens has shape [2], expected [1]" in refused(ops.key_spans, q_lens=[1], ctx_lens=[1, 2])
    assert ops.key_spans([], 0).shape == (0, 15)


def test_what_is_written_shares_no_elements() -> None:
    out = np.lib.stride_tricks.as_strided(np.empty(DIM, np.float32), (1, 4, DIM), (DIM * 4, 0, 4))
    assert refused(ops.paged_attention, out=out) == (
        "paged_attention: out: shape [1, 4, 16] has strides [16, 0, 1], by which elements share memory; expected none "
        "of those in what is written"
    )
    swapped = np.empty((4, 1, DIM), np.float32).transpose(1, 0, 2)  # each element is there once
    assert ops.paged_attention(**attention_arguments(), out=swapped) is swapped


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("kind", 5, "request 0: kind is 5, expected 0 to 4"),
        ("q_off", 1, "request 0 has q_off 1, expected 0"),
        ("ctx_len", -1, "request 0: ctx_len is -1, expected 0 to 2^30"),
        ("block_size", 0, "request 0: block_size is 0, expected 1 to 2^30"),
        ("window_from", 2, "request 0: window_from is 2, expected 0 or 1"),
        ("hole_begin", 3, "request 0: hole_begin is 3, expected at most hole_end"),
        ("page_row", 1, "needs 2 pages of row 1"),
    ],
)
def test_spans_are_checked(column: str, value: int, sentence: str) -> None:
    spans = ops.key_spans([1], [9])
    spans[0, ops.SPAN_FIELDS.index(column)] = value
    assert sentence in refused(ops.paged_attention, spans=spans)


def test_state_slots_are_checked() -> None:
    x, weight, state = rows(2, 5), rows(5, 4), np.zeros((2, 5, 3), np.float32)
    spans, slots = ops.key_spans([2], 0), np.array([[-1, 2]], np.int32)
    with pytest.raises(headrace.InvalidArgumentError, match="request 0 reads state slot -1 and writes 2"):
        ops.causal_conv1d(x, weight, state, spans, slots)
    with pytest.raises(headrace.InvalidArgumentError, match="slots has 1 rows, expected one for each of 2 requests"):
        ops.causal_conv1d(x, weight, state, ops.key_spans([1, 1], 0), slots)
    two, twice, others = ops.key_spans([1, 1], 0), [[-1, 1], [-1, 1]], [[-1, 1], [1, 0]]
    with pytest.raises(headrace.InvalidArgumentError, match="requests 0 and 1 write state slot 1, expected one of its"):
        ops.causal_conv1d(x, weight, state, two, np.array(twice, np.int32))
    with pytest.raises(headrace.InvalidArgumentError, match="request 1 reads state slot 1, which request 0 writes"):
        ops.causal_conv1d(x, weight, state, two, np.array(others, np.int32))
    with pytest.raises(headrace.InvalidArgumentError, match="requests 0 and 1 write state slot 1, expected one of its"):
        ops.causal_conv1d_update(x, weight, state, np.array([1, 1], np.int32))
    snapshots = np.array([[0, 2, 0], [0, 1, 1]], np.int32)
    with pytest.raises(headrace.InvalidArgumentError, match="expected rows sorted by request, then by tokens"):
        ops.causal_conv1d(x, weight, state, spans, np.array([[-1, -1]], np.int32), snapshots=snapshots)


def test_key_spans_has_the_fields_of_key_span() -> None:
    spans = ops.key_spans(
        [3, 0, 2], [4, 5, 0], kind="block", block_size=4, hole=([1, 0, 0], [2, 0, 0]), log_shift=[1, 0, 0],
        page_rows=[7, 8, 9], window_from="segment", encoder_lens=6,
    )  # fmt: skip
    assert spans.dtype == np.int32
    assert len(ops.SPAN_FIELDS) == 15
    assert dict(zip(ops.SPAN_FIELDS, spans[2].tolist(), strict=True)) == {
        "q_off": 3, "q_len": 2, "ctx_len": 0, "phys0": 0, "log_shift": 0, "hole_begin": 0, "hole_end": 0, "kind": 1,
        "block_size": 4, "prompt_len": 0, "padded_prompt_len": 0, "window_from": 1, "page_row": 9, "encoder_len": 6,
        "encoder_page_row": 9,
    }  # fmt: skip
    assert spans[0].tolist() == [0, 3, 4, 4, 1, 1, 2, 1, 4, 0, 0, 1, 7, 6, 7]
    crossing = ops.key_spans([1, 1], 0, encoder_lens=[4, 5], encoder_page_rows=[3, 2])
    assert crossing[:, -2:].tolist() == [[4, 3], [5, 2]]
    assert ops.key_spans([1], 0, kind="prefix_full", prompt_lens=2, padded_prompt_lens=3)[0, 7:11].tolist() == [
        3,
        1,
        2,
        3,
    ]
    assert [int(ops.key_spans([1], 0, kind=kind)[0, 7]) for kind in ("causal", "block", "full", "none")] == [0, 1, 2, 4]
    with pytest.raises(headrace.InvalidArgumentError, match="kind is 'casual', expected one of 'causal'"):
        ops.key_spans([1], [0], kind="casual")
    with pytest.raises(headrace.InvalidArgumentError, match=r"ctx_lens has shape \[2\], expected \[1\]"):
        ops.key_spans([1], [0, 1])


def test_number_of_threads() -> None:
    before, arguments = ops.num_threads(), attention_arguments()
    try:
        want = ops.paged_attention(**arguments)
        for n in (1, 2, 5):
            ops.set_num_threads(n)
            assert ops.num_threads() == n
            assert np.array_equal(ops.paged_attention(**arguments), want)
        with pytest.raises(headrace.InvalidArgumentError, match="n is 0, expected 1 or more"):
            ops.set_num_threads(0)
    finally:
        ops.set_num_threads(before)


def long_work() -> dict:
    """Gated DeltaNet over a long prompt: a tenth of a second or more."""
    tokens, heads, dim = 8000, 8, 64
    fixed = {"a_log": rows(heads), "dt_bias": rows(heads), "state": np.zeros((1, heads, dim, dim), np.float32)}
    gates = {"a": rows(tokens, heads), "b": rows(tokens, heads)}
    spans, slots = ops.key_spans([tokens], 0), np.array([[-1, -1]], np.int32)
    return {
        "qkv": rows(tokens, 3 * heads * dim),
        **gates,
        **fixed,
        "spans": spans,
        "slots": slots,
        "num_k_heads": heads,
    }


def test_the_gil_is_released_and_threads_may_call_at_once() -> None:
    arguments = long_work()
    want, ticks, stop = ops.gated_delta_rule(**arguments), [], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    results: list = []
    ticker = threading.Thread(target=tick)
    workers = [threading.Thread(target=lambda: results.append(ops.gated_delta_rule(**arguments))) for _ in range(3)]
    ticker.start()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stop.set()
    ticker.join()
    assert len(results) == 3
    assert all(np.array_equal(result, want) for result in results)
    assert len(ticks) > 30  # the ticker ran while ops did


def in_child(connection: Any, arguments: dict[str, Any]) -> None:
    connection.send(ops.paged_attention(**arguments).tobytes())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_may_run_ops(method: str) -> None:
    arguments = attention_arguments()
    want = ops.paged_attention(**arguments)
    ops.gated_delta_rule(**long_work())  # starts threads, which a fork does not copy
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=in_child, args=(theirs, arguments))
    child.start()
    assert ours.poll(60), "the child hangs"
    assert ours.recv() == want.tobytes()
    child.join(60)
    assert child.exitcode == 0


def test_strict_attention_does_not_depend_on_the_split_of_a_request() -> None:
    length = 5000  # several splits of the keys in default mode
    pools = [rows(length // PAGE_SIZE + 1, HEADS, PAGE_SIZE, DIM) for _ in range(2)]
    table = np.arange(length // PAGE_SIZE + 1, dtype=np.int32)[None]
    q = rows(40, 4, DIM)
    whole = ops.paged_attention(q, *pools, table, ops.key_spans([40], [length - 40]), strict=True)
    last = ops.paged_attention(q[39:], *pools, table, ops.key_spans([1], [length - 1]), strict=True)
    assert np.array_equal(whole[39:], last)
    assert not np.array_equal(ops.paged_attention(q[39:], *pools, table, ops.key_spans([1], [length - 1])), last)


def test_strict_gated_delta_rule_does_not_depend_on_the_split_of_a_request() -> None:
    heads, dim, tokens, cut = 2, 32, 90, 37
    qkv, a, b = rows(tokens, 3 * heads * dim), rows(tokens, heads), rows(tokens, heads)
    fixed, slots = (rows(heads), rows(heads)), np.array([[0, 0]], np.int32)
    states = [np.zeros((1, heads, dim, dim), np.float32) for _ in range(2)]

    def run(begin: int, end: int, state: np.ndarray, strict: bool) -> np.ndarray:
        part = (x[begin:end] for x in (qkv, a, b))
        spans = ops.key_spans([end - begin], 0)
        return ops.gated_delta_rule(*part, *fixed, state, spans, slots, num_k_heads=heads, strict=strict)

    whole = run(0, tokens, states[0], strict=True)
    parts = np.concatenate([run(0, cut, states[1], strict=True), run(cut, tokens, states[1], strict=True)])
    assert np.array_equal(whole, parts)
    assert np.array_equal(*states)
    assert not np.array_equal(run(0, tokens, np.zeros_like(states[0]), strict=False), whole)
