"""Group D: load, the engine, resources."""

import ctypes
import os
import threading
import time

from harness import Server, case, expect


@case("D43", "a full queue")
def _(s):
    small = Server(s.program, "--max-num-seqs", "1", "--max-queued-requests", "8", "-c", "512")
    streams = [small.stream() for _ in range(9)]
    time.sleep(0.3)
    reply = small.complete()
    expect(reply.status == 429, f"status {reply.status}")
    expect(reply.seconds < 0.5, f"it took {reply.seconds:.3f} s")
    expect(int(reply.headers["retry-after"]) >= 1, "retry-after")
    expect(reply.error()["type"] == "rate_limit_error", reply.error())
    for stream in streams:
        stream.close()
    small.wait_until_idle()
    expect(small.complete().status == 200, "room again")
    expect(small.end() == 0, "its status")


@case("D44", "ten times more than it can do")
def _(s):
    small = Server(s.program, "--max-num-seqs", "4", "--max-queued-requests", "16", "-c", "512")
    end = time.monotonic() + 2
    counts = {}
    lock = threading.Lock()

    def client():
        while time.monotonic() < end:
            status = small.complete(max_tokens=16, ignore_eos=True).status
            with lock:
                counts[status] = counts.get(status, 0) + 1
            if status == 429:
                time.sleep(0.01)

    before = small.memory()
    threads = [threading.Thread(target=client) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(set(counts) <= {200, 429} and counts.get(200, 0) > 8 and counts.get(429, 0) > 0, counts)
    expect(small.memory() - before < 128 << 20, "its memory grows")
    small.wait_until_idle()
    expect(small.end() == 0, "its status")


@case("D45", "pages run out: requests are preempted, and tell the same")
def _(s):
    small = Server(s.program, "--max-num-seqs", "8", "-c", "512", "--kv-cache-memory-bytes", "8M")
    prompts = [f"Once upon a time there were {i} kings who" for i in range(8)]
    ask = lambda prompt: small.complete(prompt=prompt, max_tokens=110, ignore_eos=True, temperature=0.8, seed=5).json()
    alone = [ask(prompt)["choices"][0]["text"] for prompt in prompts]
    together = [None] * len(prompts)

    def run(i):
        together[i] = ask(prompts[i])["choices"][0]["text"]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(together == alone, "other texts")
    expect(small.metric("headrace_preemptions_total") > 0, "no request was preempted")
    small.wait_until_idle()
    expect(small.end() == 0, "its status")


ANY_THREAD = 0x40000000  # waitpid also of those that are no processes


def stop_thread(pid, thread):
    """Stops one thread of a child, as a step that hangs would."""
    libc = ctypes.CDLL(None, use_errno=True)
    seize, interrupt = 0x4206, 0x4207
    for request in (seize, interrupt):
        expect(libc.ptrace(request, thread, None, None) == 0, f"ptrace: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, ANY_THREAD)


@case("D49", "a step that hangs: alive but not ready, and then the watchdog ends the program", quick=False)
def _(s):
    one = Server(s.program, "-c", "4096", "--watchdog-timeout", "5s")
    tasks = f"/proc/{one.process.pid}/task"

    def times():
        seconds = {}
        for thread in os.listdir(tasks):
            with open(f"{tasks}/{thread}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            seconds[int(thread)] = int(fields[11]) + int(fields[12])
        return seconds

    before = times()
    stream = one.stream(max_tokens=4000)
    time.sleep(1)
    after = times()
    engine = max(after, key=lambda thread: after[thread] - before.get(thread, 0))
    stop_thread(one.process.pid, engine)
    start = time.monotonic()
    while one.get("/readyz").status == 200:
        expect(time.monotonic() - start < 3.5, "it is ready")
        time.sleep(0.05)
    expect(one.get("/livez").status == 200, "it does not live")
    os.waitpid(engine, ANY_THREAD)  # who traces a thread buries it
    expect(one.process.wait(20) == 70, "its status")
    time.sleep(0.2)
    expect("a step of the engine has run for" in "".join(one.log), one.log)
    stream.close()


@case("D46", "clients that go at any moment leave nothing behind")
def _(s):
    for delay in (0, 0.001, 0.01, 0.05, 0.1):
        streams = [s.stream(n=1 + i % 3, seed=i) for i in range(6)]
        time.sleep(delay)
        for stream in streams:
            stream.close()
    s.wait_until_idle()
