"""Speed of other libraries' attention on one GPU, on the shapes of attention_gpu_bench and gdn_gpu_bench.

Prints a Markdown table, the limits of the machine first. Calls are timed in CUDA graphs, as ours are; one that cannot
be recorded is timed alone, and says so. Libraries that cannot be imported are skipped by name; PEERS_PATH names a folder
to look in as well. FlashInfer compiles its kernels on first use, with nvcc, into FLASHINFER_WORKSPACE_BASE; those of
Gated DeltaNet in its newer versions with nvidia-cutlass-dsl.
Usage: peers_gpu.py [limits] [prefill] [decode] [flashinfer] [gdn] [diffusion] [model]
"""
import math
import os
import statistics
import sys
import time
from functools import partial

sys.path.insert(0, os.environ.get("PEERS_PATH", "peers"))
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

BF16 = dict(device="cuda", dtype=torch.bfloat16)
INTS = dict(device="cuda", dtype=torch.int32)
COLD = 1 << 30  # bytes of inputs in turn, of which the L2 then holds next to nothing
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}
PROMPTS = [(tokens, *heads) for heads in ((32, 8, 128), (16, 2, 256), (32, 8, 64)) for tokens in (2048, 8192, 32768)]


def in_graph(calls, rounds=5, least_ms=4):
    """Median milliseconds of one call, in a graph that repeats `calls`, which have inputs of their own, in turn."""
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def elapsed(work):
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    once = elapsed(lambda: [call() for call in calls])
    repeats = max(2, min(20, round(least_ms / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    graph.replay()
    return statistics.median(elapsed(graph.replay) for _ in range(rounds)) / (repeats * len(calls))


def failed(name, error):
    print(f"| {name} | failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]} |", flush=True)


def report(name, *calls, flops=0, moved=0, plan=lambda: None):
    """One row: the median of a call, with what `flops` and `moved` bytes make of it. A call that fails is a row too.

    `plan` runs once before, untimed.
    """
    try:
        plan()
        for call in calls:
            call()
        try:
            ms, how = in_graph(calls), ""
        except RuntimeError:
            torch.cuda.synchronize()
            ms, how = do_bench(calls[0], warmup=20, rep=100, return_mode="median"), "no graph"
    except Exception as error:
        failed(name, error)
        return
    rate = f"{flops / ms / 1e9:.0f} TFLOP/s" if flops else f"{moved / ms / 1e9:.2f} TB/s" if moved else ""
    print(f"| {name} | {ms * 1e3:.1f} us | {' '.join(filter(None, (rate, how)))} |", flush=True)


def limits():
    source = torch.empty(1 << 30, **BF16)
    target = torch.empty_like(source)
    # By a kernel: what a graph makes of copy_() reaches two thirds of that.
    report("copy of 2 GiB", lambda: torch.neg(source, out=target), moved=4 * source.numel())
    x = torch.randn(8192, 8192, **BF16)
    report("matmul 8192^3", lambda: x @ x, flops=2 * 8192**3)


def attention(label, heads, kv_heads, dim, batch, rows, keys, causal):
    shape = (batch, kv_heads, keys, dim)
    moved = 4 * math.prod(shape)
    copies = 1 if causal else max(1, round(COLD / moved))
    q, *kv = torch.randn(batch, heads, rows, dim, **BF16), *(torch.randn(shape, **BF16) for _ in range(2 * copies))

    def call(backend, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    for name, backend in BACKENDS.items():
        calls = [partial(call, backend, k, v) for k, v in zip(kv[::2], kv[1::2])]
        report(f"{label}, {name}", *calls, flops=2 * heads * dim * rows * keys if causal else 0, moved=moved)


def prefill():
    for tokens, heads, kv_heads, dim in PROMPTS:
        attention(f"prefill {tokens} {heads}/{kv_heads} d{dim}", heads, kv_heads, dim, 1, tokens, tokens, True)


def decode():
    for heads, kv_heads, dim, batch, keys in ((32, 8, 128, 64, 8192), (32, 8, 128, 1, 32768), (16, 2, 256, 1, 131072)):
        attention(f"decode b{batch} {keys} {heads}/{kv_heads} d{dim}, dense", heads, kv_heads, dim, batch, 1, keys, False)


class Paged:
    """FlashInfer over shuffled pages: as many pools of keys and values, in turn, as leave the L2 cold."""

    def __init__(self, library, label, heads, batch, keys, page, pools=1):
        pages = keys // page
        self.name = f"{label}, page {page}, FlashInfer {library.__version__}"
        self.shape = (*heads, page)
        # Where requests' pages begin and end is on the host, where plan() reads it.
        self.starts = torch.arange(0, batch * pages + 1, pages, dtype=torch.int32)
        self.indices, self.last = torch.randperm(batch * pages, **INTS), torch.full((batch,), page, dtype=torch.int32)
        pool = (batch * pages, page, *heads[1:])
        self.pools = [tuple(torch.randn(pool, **BF16) for _ in range(2)) for _ in range(pools)]
        self.workspace = torch.zeros(1 << 28, device="cuda", dtype=torch.uint8)

    def buffers(self):
        """What a graph reads where each plan() writes it: the pages' starts, the pages, the last ones' tokens."""
        return self.starts.cuda(), self.indices.clone(), self.last.cuda()

    def measure(self, wrapper, q, plan, **cost):
        report(self.name, *(partial(wrapper.run, q, pool) for pool in self.pools), plan=plan, **cost)


def paged_decode(library, heads, kv_heads, dim, batch, keys, page):
    """The row of one batch; returns its plan()."""
    moved = 4 * batch * keys * kv_heads * dim
    p = Paged(library, f"decode b{batch} {keys} {heads}/{kv_heads} d{dim}", (heads, kv_heads, dim), batch, keys, page,
              pools=max(1, round(COLD / moved)))
    starts, indices, last = p.buffers()
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        p.workspace, use_cuda_graph=True, use_tensor_cores=True, paged_kv_indptr_buffer=starts,
        paged_kv_indices_buffer=indices, paged_kv_last_page_len_buffer=last)
    plan = partial(wrapper.plan, p.starts, p.indices, p.last, *p.shape, q_data_type=BF16["dtype"])
    p.measure(wrapper, torch.randn(batch, heads, dim, **BF16), plan, moved=moved)
    return plan


def paged_prefill(library, tokens, heads, kv_heads, dim, page=16):
    p = Paged(library, f"prefill {tokens} {heads}/{kv_heads} d{dim}", (heads, kv_heads, dim), 1, tokens, page)
    rows = torch.tensor([0, tokens], dtype=torch.int32)
    backend = "fa3" if torch.cuda.get_device_capability()[0] == 9 else "auto"
    wrapper = library.BatchPrefillWithPagedKVCacheWrapper(
        p.workspace, "NHD", True, rows.cuda(), *p.buffers(), backend=backend)
    plan = partial(
        wrapper.plan, rows, p.starts, p.indices, p.last, *p.shape, causal=True, q_data_type=BF16["dtype"])
    p.measure(wrapper, torch.randn(tokens, heads, dim, **BF16), plan, flops=2 * heads * dim * tokens**2)


def host_time(name, work):
    """One row: the median of 20 calls by the host's clock, each begun while the device is idle."""
    def once():
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    try:
        print(f"| {name} | {statistics.median(once() for _ in range(20)) * 1e6:.1f} us | |", flush=True)
    except Exception as error:
        failed(name, error)


def flashinfer():
    try:
        import flashinfer as library
    except ImportError as error:
        print(f"| attention over pages, FlashInfer | skipped: {error} |")
        return
    paged_decode(library, 32, 8, 128, 64, 8192, 16)
    plan = paged_decode(library, 32, 8, 128, 64, 8192, 64)
    host_time(f"host plan, batch 64, FlashInfer {library.__version__}", plan)
    paged_decode(library, 32, 8, 128, 1, 32768, 16)
    paged_decode(library, 16, 2, 256, 1, 131072, 16)
    for prompt in PROMPTS:
        paged_prefill(library, *prompt)


class Prompts:
    """Prompts one behind the other: 16 heads of queries and keys and 32 of values, of 128 elements."""

    def __init__(self, count, tokens):
        total = count * tokens
        self.name = f"GDN prefill {count} x {tokens}"
        self.q, self.k = (torch.randn(total, 16, 128, **BF16) for _ in range(2))
        self.v, self.beta = torch.randn(total, 32, 128, **BF16), torch.rand(total, 32, **BF16)
        self.g, self.state = -torch.rand(total, 32, device="cuda"), torch.randn(count, 32, 128, 128, device="cuda")
        self.starts = torch.arange(0, total + 1, tokens, device="cuda", dtype=torch.long)

    def measure(self, library, chunk_gated_delta_rule, *inputs, **options):
        report(f"{self.name}, {library}", lambda: chunk_gated_delta_rule(
            *inputs, initial_state=self.state, output_final_state=True, cu_seqlens=self.starts, **options))


GDN_PROMPTS = ((1, 32768), (16, 2048), (8, 4096))


def gdn_fla():
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    except ImportError as error:
        print(f"| Gated DeltaNet, flash-linear-attention | skipped: {error} |")
        return
    for p in (Prompts(*sizes) for sizes in GDN_PROMPTS):
        inputs = (x[None] for x in (p.q, p.k, p.v, p.g, p.beta))
        p.measure("fla", chunk_gated_delta_rule, *inputs, use_qk_l2norm_in_kernel=True)
    for count in (1, 64):
        q, k = (torch.randn(count, 1, 16, 128, **BF16) for _ in range(2))
        v, beta = torch.randn(count, 1, 32, 128, **BF16), torch.rand(count, 1, 32, **BF16)
        g = -torch.rand(count, 1, 32, device="cuda")
        states = [torch.randn(count, 32, 128, 128, device="cuda") for _ in range(max(2, 128 // count))]
        report(f"GDN decode b{count}, fla recurrence alone", *(partial(
            fused_recurrent_gated_delta_rule, q, k, v, g, beta=beta, initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True) for state in states))


def gdn_flashinfer():
    """Prompts whose q and k are normalized before, untimed, which its kernel leaves to others.

    Its gate is the decay itself, where fla's is the logarithm.
    """
    try:
        from flashinfer import __version__
        from flashinfer.gdn_prefill import chunk_gated_delta_rule
    except ImportError as error:
        print(f"| Gated DeltaNet, FlashInfer | skipped: {error} |")
        return
    for p in (Prompts(*sizes) for sizes in GDN_PROMPTS):
        q, k = (F.normalize(x.float(), dim=-1).to(x.dtype) for x in (p.q, p.k))
        inputs = q, k, p.v, p.g.exp(), p.beta.float()
        p.measure(f"FlashInfer {__version__} without norms", chunk_gated_delta_rule, *inputs,
                  output=torch.empty_like(p.v), output_state=torch.empty_like(p.state))


@torch.no_grad()
def gdn():
    gdn_fla()
    gdn_flashinfer()


def diffusion():
    try:
        from diffulex.attention.metadata import AttnMetaDataBase
        from diffulex_kernel.python.grouped import chunked_prefill_attn_grouped_unified as grouped
    except ImportError as error:
        print(f"| block diffusion, Diffulex | skipped: {error} |")
        return
    heads, kv_heads, dim, count, context, page = 32, 8, 128, 64, 4096, 32
    pages = count * (context // page)
    k_pool = torch.randn(pages, page, kv_heads, dim, **BF16)
    v_pool = torch.randn_like(k_pool)
    for block in (32, 4):
        rows = count * block
        q, k = torch.randn(rows, heads, dim, **BF16), torch.randn(rows, kv_heads, dim, **BF16)
        v, meta = torch.randn_like(k), AttnMetaDataBase()
        meta.page_tables = torch.randperm(pages, **INTS).view(count, -1)
        meta.cu_seqlens_q, meta.max_seqlen_q = torch.arange(0, rows + 1, block, **INTS), block
        meta.context_lens, meta.status_table = torch.full((count,), context, **INTS), torch.ones(count, **INTS)
        meta.valid_slices = torch.arange(block, rows + 1, block, **INTS)
        meta.prefix_lens = meta.padded_prefix_lens = torch.zeros(count, **INTS)
        meta.page_size, meta.block_size, meta.is_block_causal, meta.is_prefix_full = page, block, True, False
        report(f"block diffusion {count} x {block} over 4k, Diffulex grouped",
               lambda: grouped(q, k, v, k_pool, v_pool, meta), moved=4 * pages * page * kv_heads * dim)


@torch.no_grad()
def model():
    """Steps of a whole hybrid model, by wall clock as `headrace bench model` takes them."""
    try:
        import transformers
        from transformers.utils.import_utils import is_flash_linear_attention_available
        config = transformers.AutoConfig.from_pretrained(os.path.join(os.path.dirname(__file__), "shapes", "qwen3_5_0_8b"))
    except (ImportError, ValueError) as error:  # it is not there, or too old for the shape
        print(f"| Qwen3.5-0.8B's shape, transformers | skipped: {error} |")
        return
    who = f"transformers {transformers.__version__} {'with' if is_flash_linear_attention_available() else 'without'} fla"

    def median(name, run, rounds):
        seconds = []
        for _ in range(rounds + 1):  # the first one compiles, and does not count
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        print(f"| {name}, {who} | {statistics.median(seconds[1:]) * 1e6:.1f} us | no graph |", flush=True)

    try:
        with torch.device("cuda"):
            network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        prompt = torch.randint(config.vocab_size, (1, 16384), device="cuda")
        cache = network(prompt[:, :256], use_cache=True, logits_to_keep=1).past_key_values
        median("Qwen3.5-0.8B's shape, decode step",
               lambda: network(prompt[:, :1], past_key_values=cache, use_cache=True, logits_to_keep=1), 20)
        del cache
        median("Qwen3.5-0.8B's shape, prefill of 16384 tokens",
               lambda: network(prompt, use_cache=True, logits_to_keep=1), 3)
    except Exception as error:
        failed(f"Qwen3.5-0.8B's shape, {who}", error)


PARTS = {part.__name__: part for part in (limits, prefill, decode, flashinfer, gdn, diffusion, model)}

if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    print("| work | median | rate |\n|---|---|---|")
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
