"""The goals of one GPU beside what a run of the benches and of peers_gpu.py measured, as a Markdown table.

Reads the JSON lines that script/gpu_check collects of attention_gpu_bench, gdn_gpu_bench, `headrace bench model`,
`headrace bench blocks`, `headrace generate --json` and peers_gpu.py, which gives a case our bench's name. What was not
measured is a dash. "x peer" is the best peer's time divided by ours in fast mode. Usage: gpu_table.py FILE...
"""
import json
import sys
from typing import NamedTuple, Optional


class Run:
    """What was measured: our benches' records and peers' records."""

    def __init__(self, lines):
        self.records, self.peers, self.generate = [], [], None
        self.copy_rate = self.read_rate = None
        for line in lines:
            if line.startswith("{"):
                record = json.loads(line)
                self.peers.append(record) if "peer" in record else self.add_record(record)

    def add_record(self, record):
        if "timings" in record:
            self.generate = record["timings"]
        self.copy_rate = record.get("copy_tbytes_per_s", self.copy_rate)
        self.read_rate = self.read_rate or record.get("read_tbytes_per_s")  # of the first run, which is decode's
        self.records.append(record)

    def value(self, field, name, mode="fast", page_size=None):
        """The first record whose name begins so, or None. Records without a mode are of fast mode."""
        for record in self.records:
            if not record.get("name", "").startswith(name) or record.get("mode", "fast") != mode or field not in record:
                continue
            if page_size in (None, record.get("page_size")):
                return record[field]
        return None

    def peer(self, row):
        """(seconds, who) of the fastest peer of a row, or None."""
        known = [(record[row.time], record["peer"]) for record in self.peers
                 if record["name"].startswith(row.name) and row.time in record
                 and row.page_size in (None, record.get("page_size"))]
        return min(known, default=None)


class Row(NamedTuple):
    work: str
    goal: str
    unit: str
    name: str  # of the bench's record, from its beginning
    field: str = "median_s"
    scale: float = 1
    digits: int = 2
    page_size: Optional[int] = None
    time: str = "median_s"  # the field of our record and of a peer's whose quotient is "x peer"


def microseconds(work, goal, name, **more):
    return Row(work, goal, "us", name, scale=1e6, digits=1, **more)


def milliseconds(work, goal, name, **more):
    return Row(work, goal, "ms", name, scale=1e3, digits=3, **more)


def share_of(rate, share):
    return "–" if rate is None else f"{share * rate:.2f}"


def attention_rows(run):
    prefill = (("32/8 d128", {2048: 480, 8192: 640, 32768: 700}), ("16/2 d256", {2048: 450, 8192: 620, 32768: 680}),
               ("32/8 d64", {8192: 520, 32768: 550}))
    for shape, goals in prefill:
        for tokens, goal in goals.items():
            name = f"prefill {tokens} {shape}"
            yield Row(name, str(goal), "TFLOP/s", name, "tflops", digits=0)
    for page in (16, 64):
        yield Row(f"decode 64 x 8k, page {page}", f"the peer or {share_of(run.read_rate, 0.95)}", "TB/s",
                  "decode b64 8k", "tbytes_per_s", page_size=page)
    yield microseconds("decode 1 x 32k", "38", "decode b1 32k")
    yield microseconds("decode 1 x 128k, 16/2 d256", "72", "decode b1 128k d256")
    yield Row("decode 64, 256 to 64k (Zipf)", share_of(run.copy_rate, 0.9), "TB/s", "decode b64 zipf", "tbytes_per_s")
    for block, goal in ((32, "0.29"), (4, "0.27")):
        work = f"block diffusion 64 x {block} over 4k"
        yield milliseconds(work, goal, f"diffusion 64 x block {block}, 4k")
    yield microseconds("host work per step, batch 64: padding, upload, plan", "10", "decode b64 8k",
                       field="host_step_s", page_size=64, time="host_step_s")
    yield microseconds("the upload in it", "–", "decode b64 8k", field="upload_s", page_size=64, time="upload_s")


def gdn_rows():
    for count, tokens, goal in ((1, 32768, "0.40"), (16, 2048, "0.33"), (8, 4096, "0.31")):
        work = f"GDN prefill {count} x {tokens}"
        yield milliseconds(work, goal, f"gdn_prefill_{count}x{tokens}")
    for batch, goal in ((64, "70"), (1, "3.5")):
        yield microseconds(f"GDN decode step, batch {batch}", goal, f"gdn_decode_fused_batch{batch}")


def model_rows():
    for batch, goal in ((1, "0.44"), (8, "–"), (64, "–")):
        yield milliseconds(f"Qwen3.5-0.8B's shape, decode step, batch {batch}", goal,
                           f"model decode batch {batch} Qwen3_5")
    yield milliseconds("the same, prefill of 16k tokens", "45", "model prefill of 16384 tokens Qwen3_5")
    for batch in (1, 8):
        yield milliseconds(f"8 layers of Qwen3-Next's shape, decode step, {batch} requests", "–",
                           f"model decode batch {batch} Qwen3Next")
    for batch, tokens in ((1, 256), (128, 16), (128, 256)):
        name = f"blocks batch {batch} behind {tokens} tokens "
        yield Row(f"SDAR-4B's shape, {batch} requests behind {tokens} tokens, a step over its floor", "1.3", "x", name,
                  "over_floor")
    yield Row("the same, 1.33 tokens a forward", "5000", "tokens/s", name, "tokens_per_s", digits=0)


def mixed_share(run, mode):
    whole, decode, prompt = (run.value("median_s", name, mode) for name in
                             ("mixed: 32 decode at 8k + prefill 2k", "decode b32 8k alone", "prefill 2048 32/8 d128"))
    return whole / (decode + prompt) if whole and decode and prompt else None


def shown(value, scale, digits):
    return "–" if value is None else f"{value * scale:.{digits}f}"


def line_of(run, row):
    ours, strict = (shown(run.value(row.field, row.name, mode, row.page_size), row.scale, row.digits)
                    for mode in ("fast", "strict"))
    peer, seconds = run.peer(row), run.value(row.time, row.name, "fast", row.page_size)
    best = f"{peer[1]} {peer[0] * 1e6:.1f} us" if peer else "–"
    times = f"{peer[0] / seconds:.2f}" if peer and seconds else "–"
    return f"| {row.work} | {row.goal} | {ours} | {strict} | {row.unit} | {best} | {times} |"


def table(run):
    lines = ["| work | goal | ours | strict | unit | best peer | x peer |", "|---|---|---|---|---|---|---|"]
    lines += [line_of(run, row) for row in (*attention_rows(run), *gdn_rows(), *model_rows())]
    fast, strict = (shown(mixed_share(run, mode), 1, 2) for mode in ("fast", "strict"))
    lines.append(f"| 32 decode rows at 8k + one prompt of 2k, of the two apart | 0.85 | {fast} | {strict} | x | – | – |")
    if run.generate:
        first, device = (shown(run.generate[name], 1, 2) for name in ("first_token_s", "device_start_s"))
        work = f"start to first token ({device} s of it until the device was ready)"
        lines.append(f"| {work} | 1.5 | {first} | – | s | – | – |")
    return lines


if __name__ == "__main__":
    print("\n".join(table(Run(line for path in sys.argv[1:] for line in open(path, encoding="utf-8")))))
