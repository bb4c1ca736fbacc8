"""Measures other libraries on one GPU, on our benches' shapes and inputs.

The benches are attention_gpu_bench, gdn_gpu_bench and `headrace bench model`.

Prints a JSON line per measurement under the name that our bench gives the case, then a Markdown table. Peers:

    cuDNN              PyTorch's scaled_dot_product_attention; dense keys, requests of one length
    FlashAttention-3   flash_attn_interface, or the build in vLLM; paged keys
    FlashInfer         paged keys, Gated DeltaNet
    fla                flash-linear-attention: Gated DeltaNet
    vLLM               steps of whole models, random weights (its engine, CUDA graphs, no prefix cache)
    transformers       the same, eager

One sentence names each peer that is not importable. PEERS_PATH names a folder to import from as well. Kernels run in
CUDA graphs over inputs that no cache holds. The results of all peers of a case are compared: one that differs is
reported as wrong, without a time. FlashInfer compiles its kernels on first use, with nvcc.
"""
import argparse
import collections
import functools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

if "PEERS_PATH" in os.environ:
    sys.path.insert(0, os.environ["PEERS_PATH"])
try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as import_error:  # --help and --list work without
    torch, no_torch = None, import_error

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = "cuda"
COLD_BYTES = 1 << 30  # of keys, or states, that calls read in turn: the L2 then holds next to nothing
MOST_DIFFERENCE = 0.03  # between two peers' results, relative, in the 2-norm
STEPS = ((1, 4), (8, 256), (64, 256))  # requests, tokens of each prompt: as `headrace bench model --parallel 8,64`
PROMPT = 16384
SHAPES = ("qwen3_5_0_8b", "qwen3_4b")


class NotHere(Exception):
    """A case that a peer does not support; says why."""


class Case(NamedTuple):
    """A case of attention_gpu_bench: for each request the cached keys, and the new rows, each with its key."""
    part: str
    name: str
    contexts: tuple
    new_tokens: tuple
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    page: int = 64
    causal: bool = True  # False: every row sees all keys, as in a block of block diffusion

    def keys(self):
        return [cached + new for cached, new in zip(self.contexts, self.new_tokens)]

    def flops(self):
        pairs = sum(new * cached + (new * (new + 1) // 2 if self.causal else new * new)
                    for cached, new in zip(self.contexts, self.new_tokens))
        return 4 * pairs * self.heads * self.dim

    def moved(self):
        return 4 * self.dim * (sum(self.keys()) * self.kv_heads + sum(self.new_tokens) * self.heads)

    def num_pools(self):
        return max(1, round(COLD_BYTES / self.moved())) if self.contexts[0] > 0 else 1


def attention_cases():
    for heads, kv_heads, dim, lengths in ((32, 8, 128, (2048, 8192, 32768)), (16, 2, 256, (2048, 8192, 32768)),
                                          (32, 8, 64, (8192, 32768))):
        for tokens in lengths:
            yield Case("prefill", f"prefill {tokens} {heads}/{kv_heads} d{dim}", (0,), (tokens,), heads, kv_heads, dim)

    def decode(name, keys, **more):
        return Case("decode", f"decode {name}", tuple(n - 1 for n in keys), (1,) * len(keys), **more)

    yield decode("b64 8k", [8192] * 64, page=16)
    yield decode("b64 8k", [8192] * 64)
    yield decode("b128 8k", [8192] * 128)
    yield decode("b256 1k", [1024] * 256)
    yield decode("b1 32k", [32768])
    yield decode("b1 128k d256", [131072], heads=16, kv_heads=2, dim=256)
    for thousands in (4, 8, 16, 64):
        yield decode(f"one {thousands}k", [thousands * 1024])
        yield decode(f"one d256 16/2 {thousands}k", [thousands * 1024], heads=16, kv_heads=2, dim=256)
    yield decode("b64 zipf", [max(256, 65536 // i) for i in range(1, 65)])
    for block in (32, 4):
        yield Case("diffusion", f"diffusion 64 x block {block}, 4k", (4096,) * 64, (block,) * 64, page=32, causal=False)
    yield Case("mixed", "decode b32 8k alone", (8191,) * 32, (1,) * 32)
    yield Case("mixed", "mixed: 32 decode at 8k + prefill 2k", (8191,) * 32 + (0,), (1,) * 32 + (2048,))
    yield Case("mixed", "mixed: decode at 128k + prefill 2k", (131071, 0), (1, 2048))


# ---- measuring

def seconds_in_graph(calls, rounds=5, least_s=0.004):
    """Median seconds of one call in a CUDA graph that repeats `calls` in turn."""
    for call in calls:
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def elapsed(work):
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    repeats = max(2, min(20, round(least_s / elapsed(lambda: [call() for call in calls]))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    graph.replay()
    return statistics.median(elapsed(graph.replay) for _ in range(rounds)) / (repeats * len(calls))


def wall_seconds(work, rounds):
    """Median wall-clock seconds of `work`, device work included. The first call compiles and does not count."""
    seconds = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


class Results:
    """Prints what is measured, and keeps it for the table."""

    def __init__(self):
        self.records = []

    def add(self, peer, name, **values):
        self.records.append({"peer": peer, "name": name, **values})
        print(json.dumps(self.records[-1]), flush=True)

    def add_time(self, peer, name, seconds, flops=0, moved=0, **more):
        rates = {"tflops": round(flops / seconds * 1e-12, 1)} if flops else {}
        if moved:
            rates["tbytes_per_s"] = round(moved / seconds * 1e-12, 3)
        self.add(peer, name, median_s=float(f"{seconds:.4g}"), **rates, **more)

    def add_error(self, peer, name, error, **more):
        text = (str(error).splitlines() or [""])[0][:200]
        key = "skipped" if isinstance(error, NotHere) else "failed"
        self.add(peer, name, **{key: text if key == "skipped" else f"{type(error).__name__}: {text}"}, **more)

    def table(self):
        yield "| work | peer | median | rate |"
        yield "|---|---|---|---|"
        for r in self.records:
            name = r["name"] + (f", page {r['page_size']}" if r.get("page_size") else "")
            seconds = r.get("median_s", r.get("host_step_s"))
            median = f"{seconds * 1e6:.1f} µs" if seconds else r.get("skipped") or r["failed"]
            rate = f"{r['tflops']:.0f} TFLOP/s, " if "tflops" in r else ""
            rate += f"{r['tbytes_per_s']:.2f} TB/s" if "tbytes_per_s" in r else ""
            yield f"| {name} | {r['peer']} | {median} | {rate.rstrip(', ')} |"


def compare_and_time(results, name, runs, **more):
    """`runs`: peer -> function that returns (calls, rows of a call's result). Times those whose results agree."""
    want, whose = None, None
    for peer, make in runs.items():
        try:
            calls, rows_of = make()
            got = rows_of(calls[0]()).float()
            difference = 0.0 if want is None else ((got - want).norm() / want.norm()).item()
            if not difference < MOST_DIFFERENCE:
                raise ValueError(f"the result differs from that of {whose} by {difference:.2g}")
            if want is None:
                want, whose = got, peer
            results.add_time(peer, name, seconds_in_graph(calls), **more, difference=float(f"{difference:.2g}"))
        except Exception as error:  # a peer's failure is a row, and the others go on
            page = {key: value for key, value in more.items() if key == "page_size"}
            results.add_error(peer, name, error, **page)


# ---- attention

class Batch:
    """A case's inputs: standard normal queries, keys and values; pages of each pool in random order."""

    def __init__(self, case):
        self.case = case
        pages = [math.ceil(keys / case.page) for keys in case.keys()]
        self.starts = [sum(pages[:r]) for r in range(len(pages) + 1)]
        self.q = normal(sum(case.new_tokens), case.heads, case.dim)
        self.pools = [tuple(normal(sum(pages), case.page, case.kv_heads, case.dim) for _ in range(2))
                      for _ in range(case.num_pools())]
        self.pages = torch.randperm(sum(pages), device=DEVICE, dtype=torch.int32)
        self.table = torch.zeros(len(pages), max(pages), device=DEVICE, dtype=torch.int32)
        for r, count in enumerate(pages):
            self.table[r, :count] = self.pages[self.starts[r]:self.starts[r + 1]]
        self.keys = ints(case.keys())
        self.rows = ints([sum(case.new_tokens[:r]) for r in range(len(pages) + 1)])
        self.last = [keys - (count - 1) * case.page for keys, count in zip(case.keys(), pages)]
        self.scale = 1 / math.sqrt(case.dim)

    def dense(self, pool):
        """Keys and values [requests, kv_heads, keys, dim] of a pool, for requests of one length."""
        case = self.case
        return [x[self.table.long()].flatten(1, 2)[:, :case.keys()[0]].transpose(1, 2).contiguous() for x in pool]


def cudnn_attention(batch):
    case = batch.case
    if len(set(case.contexts)) > 1 or len(set(case.new_tokens)) > 1:
        raise NotHere("its requests have one length")
    rows, cached = case.new_tokens[0], case.contexts[0]
    if case.causal and rows > 1 and cached > 0:
        raise NotHere("its causal mask begins at the first key")
    q = batch.q.view(-1, rows, case.heads, case.dim).transpose(1, 2).contiguous()

    def call(k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal and rows > 1, enable_gqa=True)

    calls = [functools.partial(call, *batch.dense(pool)) for pool in batch.pools]
    return calls, lambda out: out.transpose(1, 2).reshape(batch.q.shape)


def flash_attention_3(library, batch):
    case = batch.case
    common = {"cu_seqlens_q": batch.rows, "max_seqlen_q": max(case.new_tokens), "softmax_scale": batch.scale,
              "causal": case.causal}
    if library.__name__ == "flash_attn_interface":
        call = functools.partial(library.flash_attn_with_kvcache, batch.q, cache_seqlens=batch.keys,
                                 page_table=batch.table, **common)
        calls = [functools.partial(call, k_cache=k, v_cache=v) for k, v in batch.pools]
    else:
        call = functools.partial(library.flash_attn_varlen_func, q=batch.q, seqused_k=batch.keys,
                                 max_seqlen_k=max(case.keys()), block_table=batch.table, fa_version=3, **common)
        calls = [functools.partial(call, k=k, v=v) for k, v in batch.pools]
    return calls, lambda out: out[0] if isinstance(out, tuple) else out


def flashinfer_wrapper(library, batch):
    """The wrapper that FlashInfer has for the batch, and its plan()."""
    case = batch.case
    starts, last = host_ints(batch.starts), host_ints(batch.last)
    workspace = torch.zeros(1 << 28, device=DEVICE, dtype=torch.uint8)
    shape = (case.heads, case.kv_heads, case.dim, case.page)
    dtypes = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    buffers = starts.to(DEVICE), batch.pages.clone(), last.to(DEVICE)
    if max(case.new_tokens) == 1:
        names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True, **dict(zip(names, buffers)))
        return wrapper, functools.partial(wrapper.plan, starts, batch.pages, last, *shape, **dtypes)
    backend = "fa3" if torch.cuda.get_device_capability()[0] == 9 else "auto"
    rows = batch.rows.cpu()
    wrapper = library.BatchPrefillWithPagedKVCacheWrapper(
        workspace, "NHD", True, rows.to(DEVICE), *buffers, backend=backend)
    plan = functools.partial(wrapper.plan, rows, starts, batch.pages, last, *shape, causal=case.causal, **dtypes)
    return wrapper, plan


def flashinfer_attention(library, batch):
    wrapper, plan = flashinfer_wrapper(library, batch)
    plan()
    return [functools.partial(wrapper.run, batch.q, pool) for pool in batch.pools], lambda out: out


def measure_attention(results, part):
    cases = [case for case in attention_cases() if case.part == part]
    for case in cases:
        batch = Batch(case)
        runs = {f"cuDNN {torch.backends.cudnn.version()}, dense": functools.partial(cudnn_attention, batch)}
        if library := peer("FlashAttention-3"):
            runs["FlashAttention-3"] = functools.partial(flash_attention_3, library, batch)
        if library := peer("FlashInfer"):
            runs[f"FlashInfer {library.__version__}"] = functools.partial(flashinfer_attention, library, batch)
        compare_and_time(results, case.name, runs, flops=case.flops(), moved=case.moved(), page_size=case.page)
        if library and (case.name, case.page) == ("decode b64 8k", 64):
            measure_plan(results, library, batch)
        del batch, runs
        torch.cuda.empty_cache()


def measure_plan(results, library, batch):
    """The host's time for FlashInfer's plan(), which a step needs once for all layers."""
    name = f"FlashInfer {library.__version__}, plan()"
    try:
        seconds = wall_seconds(flashinfer_wrapper(library, batch)[1], 20)
        results.add(name, batch.case.name, page_size=batch.case.page, host_step_s=float(f"{seconds:.3g}"))
    except Exception as error:
        results.add_error(name, batch.case.name, error, page_size=batch.case.page)


# ---- Gated DeltaNet: 16 heads of queries and keys, 32 of values, of 128 elements

class Tokens:
    """Inputs of `count` requests: standard normal q, k, v, a, b and a_log, dt_bias around -6.

    g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b), as in our kernels.
    """

    def __init__(self, count, tokens):
        total = count * tokens
        self.q, self.k, self.v = normal(total, 16, 128), normal(total, 16, 128), normal(total, 32, 128)
        self.a, self.b = normal(total, 32), normal(total, 32)
        self.a_log = torch.randn(32, device=DEVICE)
        self.dt_bias = torch.randn(32, device=DEVICE) - 6
        self.g = -self.a_log.exp() * F.softplus(self.a.float() + self.dt_bias)
        self.beta = self.b.float().sigmoid()
        self.starts = torch.arange(0, total + 1, tokens, device=DEVICE, dtype=torch.long)

    def normalized(self):
        return (F.normalize(x.float(), dim=-1).to(x.dtype) for x in (self.q, self.k))


def states(count):
    """States [count, 32, 128, 128], symmetric: libraries differ in which of the last two dimensions is the key's."""
    x = torch.randn(count, 32, 128, 128, device=DEVICE) * 0.07
    return x + x.transpose(-1, -2)


def fla_prompts(library, t, state):
    call = functools.partial(library.chunk_gated_delta_rule, t.q[None], t.k[None], t.v[None], t.g[None],
                             t.beta[None].to(t.q.dtype), initial_state=state, output_final_state=True,
                             cu_seqlens=t.starts, use_qk_l2norm_in_kernel=True)
    return [call], lambda out: out[0].reshape(t.v.shape)


def flashinfer_prompts(t, state):
    """Norms of q and k and the gates are made before, untimed: its kernel leaves them to others."""
    from flashinfer.gdn_prefill import chunk_gated_delta_rule
    q, k = t.normalized()
    call = functools.partial(chunk_gated_delta_rule, q, k, t.v, t.g.exp(), t.beta, initial_state=state,
                             output_final_state=True, cu_seqlens=t.starts, output=torch.empty_like(t.v),
                             output_state=torch.empty_like(state))
    return [call], lambda out: out[0] if isinstance(out, tuple) else out


def fla_step(library, t, pools):
    """The recurrence alone. It returns a new state, so all calls have the same result."""
    def rows(x):
        return x[:, None]

    call = functools.partial(library.fused_recurrent_gated_delta_rule, rows(t.q), rows(t.k), rows(t.v), rows(t.g),
                             beta=rows(t.beta.to(t.q.dtype)), output_final_state=True, use_qk_l2norm_in_kernel=True)
    return [functools.partial(call, initial_state=state) for state in pools], lambda out: out[0].reshape(t.v.shape)


def flashinfer_step(t, pools):
    """Gates and recurrence, float32 states in place; the first call's states are a copy, as fla's are not changed."""
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose as step
    out = torch.empty_like(t.v[:, None])

    def call(state):
        step(*(x[:, None] for x in (t.q, t.k, t.v)), state, t.a_log, t.a[:, None], t.dt_bias, t.b[:, None], output=out)
        return out

    copies = [state.clone() for state in pools]
    return [functools.partial(call, state) for state in copies], lambda rows: rows.reshape(t.v.shape)


def gdn_cases():
    """(name, requests, tokens of each) as gdn_gpu_bench names them."""
    prompts = [(f"gdn_prefill_{count}x{tokens}", count, tokens) for count, tokens in
               ((1, 32768), (16, 2048), (8, 4096))]
    return prompts + [(f"gdn_decode_fused_batch{count}", count, 1) for count in (1, 8, 16, 32, 64)]


def measure_gdn(results):
    if not any([peer("fla"), peer("FlashInfer")]):
        return
    for name, count, tokens in gdn_cases():
        with torch.no_grad():
            t, one = Tokens(count, tokens), states(count)
            pools = [one] + [states(count) for _ in range(1, max(2, 128 // count))] if tokens == 1 else [one]
            runs = {}
            if peer("fla"):
                from fla.ops import gated_delta_rule as library
                make = functools.partial(fla_step, library, t, pools) if tokens == 1 else functools.partial(
                    fla_prompts, library, t, one)
                runs["fla, recurrence alone" if tokens == 1 else "fla"] = make
            if library := peer("FlashInfer"):
                extent = "gates and recurrence" if tokens == 1 else "without norms and gates"
                make = functools.partial(flashinfer_step, t, pools) if tokens == 1 else functools.partial(
                    flashinfer_prompts, t, one)
                runs[f"FlashInfer {library.__version__}, {extent}"] = make
            compare_and_time(results, name, runs)


# ---- whole models

def shape_of(name):
    path = os.path.join(HERE, "shapes", name)
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        return path, json.load(file)


def measure_vllm(results, names):
    """Each shape in a process of its own: an engine keeps the GPU's memory."""
    if not peer("vLLM"):
        return
    for name in names:
        command = [sys.executable, os.path.abspath(__file__), "--vllm-shape", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout:
                if line.startswith('{"peer"'):
                    record = json.loads(line)
                    results.add(record.pop("peer"), record.pop("name"), **record)
        if child.returncode != 0:
            results.add("vLLM", f"model {name}", failed=f"its process ended with status {child.returncode}")


def text_only_qwen3_5():
    """vLLM has Qwen3.5 as a model of images and text; this is the class of its language part alone."""
    from vllm.model_executor.models import interfaces, qwen3_5
    whole = qwen3_5.Qwen3_5ForConditionalGeneration
    members = {name: classmethod(getattr(whole, name).__func__) for name in
               ("get_mamba_state_dtype_from_config", "get_mamba_state_shape_from_config", "get_mamba_state_copy_func")
               if hasattr(whole, name)}
    return type("Qwen3_5TextOnly", (qwen3_5.Qwen3_5ForCausalLM, interfaces.IsHybrid), members)


def vllm_engine(path, config):
    for name, value in (("VLLM_ENABLE_V1_MULTIPROCESSING", "0"), ("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1")):
        os.environ.setdefault(name, value)
    import vllm
    options = {"model": path, "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16",
               "max_model_len": PROMPT + 1024, "max_num_batched_tokens": PROMPT, "max_num_seqs": 64,
               "enable_prefix_caching": False, "disable_log_stats": True, "gpu_memory_utilization": 0.7}
    if config["model_type"].startswith("qwen3_5"):
        vllm.ModelRegistry.register_model("Qwen3_5TextOnly", text_only_qwen3_5())
        options.update(hf_overrides={"architectures": ["Qwen3_5TextOnly"]}, mamba_ssm_cache_dtype="float32")
    return vllm, vllm.LLM(**options)


def vllm_step_seconds(vllm, engine, prompts):
    """Median seconds of a step in which every request gets a token, of three windows of 48 steps."""
    from vllm.sampling_params import RequestOutputKind
    params = vllm.SamplingParams(temperature=0, max_tokens=512, ignore_eos=True, detokenize=False,
                                 output_kind=RequestOutputKind.DELTA)
    tokens = collections.Counter({f"{len(prompts)} requests, {r}": 0 for r in range(len(prompts))})
    for request, prompt in zip(tokens, prompts):
        engine.add_request(request, {"prompt_token_ids": prompt}, params)

    def run_until(fewest):
        while min(tokens.values()) < fewest:
            for out in engine.step():
                tokens[out.request_id] += len(out.outputs[0].token_ids)

    run_until(12)
    seconds = []
    for _ in range(3):
        before = min(tokens.values())
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run_until(before + 48)
        seconds.append((time.perf_counter() - begin) / (min(tokens.values()) - before))
    engine.abort_request(list(tokens))
    while engine.has_unfinished_requests():
        engine.step()
    return statistics.median(seconds)


def run_vllm(results, name):
    path, config = shape_of(name)
    draw = random.Random(1)

    def prompt(length):
        return [draw.randrange(config["vocab_size"]) for _ in range(length)]

    vllm, llm = vllm_engine(path, config)
    who, what = f"vLLM {vllm.__version__}", config["architectures"][0]
    for requests, length in STEPS:
        seconds = vllm_step_seconds(vllm, llm.llm_engine, [prompt(length) for _ in range(requests)])
        results.add_time(who, f"model decode batch {requests} {what}", seconds)
    one = vllm.SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    whole = {"prompt_token_ids": prompt(PROMPT)}
    seconds = wall_seconds(lambda: llm.generate([whole], one, use_tqdm=False), 5)
    results.add_time(who, f"model prefill of {PROMPT} tokens {what}", seconds)


def measure_transformers(results, name):
    if not (transformers := peer("transformers")):
        return
    path, description = shape_of(name)
    who = f"transformers {transformers.__version__}, eager, {'with' if peer('fla') else 'without'} fla"
    step, prefill = (f"model {work} {description['architectures'][0]}" for work in
                     ("decode batch 1", f"prefill of {PROMPT} tokens"))
    try:
        with torch.no_grad():
            config = transformers.AutoConfig.from_pretrained(path)
            with torch.device(DEVICE):
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
            prompt = torch.randint(config.vocab_size, (1, PROMPT), device=DEVICE)
            cache = model(prompt[:, :STEPS[0][1]], use_cache=True, logits_to_keep=1).past_key_values
            results.add_time(who, step, wall_seconds(lambda: model(
                prompt[:, :1], past_key_values=cache, use_cache=True, logits_to_keep=1), 20))
            results.add_time(who, prefill, wall_seconds(lambda: model(prompt, use_cache=True, logits_to_keep=1), 3))
    except Exception as error:
        results.add_error(who, step, error)


# ---- peers, parts and flags

def load_flash_attention_3():
    try:
        import flash_attn_interface as library
    except ImportError:
        try:
            import vllm.vllm_flash_attn as library
        except ImportError as error:
            raise ImportError(f"neither flash_attn_interface nor vllm.vllm_flash_attn ({error})") from error
    return library


MODULES = {"FlashAttention-3": None, "FlashInfer": "flashinfer", "fla": "fla.ops.gated_delta_rule", "vLLM": "vllm",
           "transformers": "transformers"}


@functools.cache
def peer(name):
    """The peer's module, or None: then one sentence says why, once."""
    try:
        if name == "FlashAttention-3":
            return load_flash_attention_3()
        module = __import__(MODULES[name])
        __import__(MODULES[name])
        return module
    except Exception as error:  # a broken installation raises anything
        print(f"{name} is not importable: {(str(error).splitlines() or [type(error).__name__])[0]}", flush=True)
        return None


def normal(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def ints(values):
    return host_ints(values).to(DEVICE)


def host_ints(values):
    return torch.tensor(values, dtype=torch.int32)


def measure_limits(results):
    source = torch.randn(1 << 30, device=DEVICE, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    # By a kernel: a graph's copy node reaches two thirds of that.
    results.add_time("PyTorch", "copy of 2 GiB", seconds_in_graph([lambda: torch.neg(source, out=target)]),
                     moved=4 * source.numel())
    x, y = normal(8192, 8192), normal(8192, 8192)
    results.add_time("PyTorch", "matmul 8192^3", seconds_in_graph([lambda: x @ y]), flops=2 * 8192**3)


PARTS = {"limits": measure_limits,
         **{part: functools.partial(measure_attention, part=part) for part in
            ("prefill", "decode", "diffusion", "mixed")},
         "gdn": measure_gdn,
         "vllm": functools.partial(measure_vllm, names=SHAPES),
         "transformers": functools.partial(measure_transformers, name=SHAPES[0])}


def listed():
    for case in attention_cases():
        yield {"part": case.part, "name": case.name, "page_size": case.page, "requests": len(case.contexts),
               "keys": sum(case.keys()), "flops": case.flops(), "bytes": case.moved()}
    for name, count, tokens in gdn_cases():
        yield {"part": "gdn", "name": name, "requests": count, "tokens": count * tokens}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--list", action="store_true", help="print the cases of attention and GDN, measure nothing")
    parser.add_argument("--seed", type=int, default=1, help="of all inputs (default: %(default)s)")
    parser.add_argument("--vllm-shape", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for part in given.parts:
        if part not in PARTS:
            parser.error(f"'{part}' is no part, expected {', '.join(PARTS)}")
    return given


def main():
    given = arguments()
    if given.list:
        for case in listed():
            print(json.dumps(case))
        return
    if torch is None:
        sys.exit(f"peers_gpu.py: PyTorch is not importable: {no_torch}")
    if not torch.cuda.is_available():
        sys.exit("peers_gpu.py: PyTorch finds no GPU")
    torch.manual_seed(given.seed)
    results = Results()
    if given.vllm_shape:
        run_vllm(results, given.vllm_shape)
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for part in given.parts or PARTS:
        PARTS[part](results)
    print("\n".join(["", *results.table()]))


if __name__ == "__main__":
    main()
