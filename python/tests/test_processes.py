"""Threads, forks, spawned processes, Ctrl-C, and the end of an interpreter."""

import gc
import multiprocessing
import os
import pickle
import threading
import time
import weakref

import pytest
from conftest import num_threads, python

import headrace
from headrace import LLM, SamplingParams

PROMPT = "Once upon a time"
LONG = "headrace.SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)"


def test_threads_share_a_model(llm: LLM) -> None:
    params = [SamplingParams(seed=i, max_tokens=30) for i in range(8)]
    expected = [llm.generate(PROMPT, one)[0].outputs[0].text for one in params]
    found: list[str] = [""] * 8

    def generate(i: int) -> None:
        found[i] = llm.generate(PROMPT, params[i])[0].outputs[0].text

    threads = [threading.Thread(target=generate, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_the_gil_is_free_while_the_engine_works(llm: LLM) -> None:
    count, done = 0, threading.Event()

    def work() -> None:
        llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        count += 1
        time.sleep(0.001)
    thread.join()
    assert count > 20


def test_closing_ends_calls_of_other_threads() -> None:
    llm, failures = LLM(), []

    def generate() -> None:
        try:
            llm.generate(PROMPT, SamplingParams(max_tokens=3000, ignore_eos=True))
        except headrace.Error as error:
            failures.append(str(error))

    thread = threading.Thread(target=generate)
    thread.start()
    while llm.stats["num_running"] == 0:
        time.sleep(0.001)
    llm.close()
    thread.join()
    assert failures in (["this LLM was closed while requests ran"], ["this LLM is closed"])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_in_a_sentence_and_may_load_its_own(llm: LLM) -> None:
    expected = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].text
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            llm.generate(PROMPT)
        except headrace.UnsupportedError as error:
            said += str(error)
        llm.close()
        with LLM(deterministic=True) as own:
            said += "|" + own.generate(PROMPT, SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].text
        os.write(write, said.encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sentence, text = os.read(read, 10000).decode().split("|")
    for end in (read, write):
        os.close(end)
    assert sentence == (
        f"this LLM belongs to process {os.getpid()}, from which this one was forked: "
        "load the model in the child, or start the child by spawn"
    )
    assert text == expected
    assert llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].text == expected


def test_a_forked_child_ends_like_any_other() -> None:
    code = """
import os, sys, warnings, headrace
warnings.simplefilter("ignore")  # of Python 3.12: the process has threads
llm = headrace.LLM()
llm.generate("a", headrace.SamplingParams(max_tokens=2))
child = os.fork()
if child == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(llm.generate("a")))
"""
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 1\n", "")


def text_in_a_process(prompt: str) -> str:
    with LLM(deterministic=True) as llm:
        return llm.generate(prompt, SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].text


def test_a_spawned_process_loads_its_own(llm: LLM) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        text = pool.apply(text_in_a_process, (PROMPT,))
    assert text == llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].text
    with pytest.raises(NotImplementedError, match="LLM cannot be sent to another process: load the model there"):
        pickle.dumps(llm)


def test_an_interpreter_ends_while_a_thread_generates() -> None:
    code = f"""
import headrace, threading, time
llm = headrace.LLM()
params = {LONG}
def work():
    llm.generate("a", params)
threading.excepthook = lambda _: None
threading.Thread(target=work, daemon=True).start()
while llm.stats["num_running"] == 0: time.sleep(0.001)
"""
    for _ in range(5):
        done = python(code)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("work", ["headrace.LLM()", "headrace.AsyncLLM('puzzle-llada')"])
def test_an_interpreter_ends_while_a_thread_loads(work: str) -> None:
    for delay in (0, 0.0005, 0.002, 0.004, 0.008, 0.012, 0.016, 0.02):
        done = python(f"""
import headrace, threading, time
headrace.LLM, headrace.AsyncLLM
threading.excepthook = lambda _: None
threading.Thread(target=lambda: {work}, daemon=True).start()
time.sleep({delay})
""")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), delay


def test_an_interpreter_ends_while_threads_run_ops() -> None:
    code = """
import headrace.ops as ops, numpy, threading, time
x, weight = numpy.ones((2000, 512), "float32"), numpy.ones(512, "float32")
def work():
    out = numpy.empty_like(x)
    while True: ops.rms_norm(x, weight, out=out)
for _ in range(4): threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""
    for _ in range(5):
        done = python(code)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_interpreter_ends_with_a_stream_open() -> None:
    code = f"""
import asyncio, headrace
async def main():
    global answer
    llm = headrace.AsyncLLM()
    answer = llm.generate("a", {LONG})
    print((await anext(answer)).finished)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""
    for _ in range(5):
        done = python(code)
        assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
        assert "Fatal" not in done.stderr


def test_an_exception_with_a_model_loaded_is_only_that_exception() -> None:
    done = python("import headrace\nllm = headrace.LLM()\nraise SystemExit(5)")
    assert (done.returncode, done.stderr) == (5, "")


# Sends SIGINT to the process itself, once `num_requests` requests are under way and the call only waits.
INTERRUPT = """
import headrace, os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
def interrupt_when_busy(llm, num_requests):
    def work():
        while llm.stats["num_running"] + llm.stats["num_waiting"] < num_requests: time.sleep(0.001)
        before = llm.stats["num_tokens"]
        while llm.stats["num_tokens"] < before + 100: time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=work, daemon=True).start()
"""


def test_ctrl_c_ends_a_call_and_its_requests() -> None:
    code = f"""
before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGBUS)]
llm = headrace.LLM()
assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGBUS)]
interrupt_when_busy(llm, 50)
try:
    llm.generate(["a"] * 50, {LONG})
except KeyboardInterrupt:
    print("interrupted", llm.stats["num_running"], llm.stats["num_waiting"], llm.stats["num_tokens"] < 20000)
print(len(llm.generate("a", headrace.SamplingParams(max_tokens=2))[0].outputs[0].token_ids))
"""
    done = python(INTERRUPT + code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted 0 0 True\n2\n", "")


def test_ctrl_c_ends_a_stream() -> None:
    code = f"""
import asyncio
async def main():
    async with headrace.AsyncLLM() as llm:
        interrupt_when_busy(llm, 1)
        async for output in llm.generate("a", {LONG}):
            pass
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    done = python(INTERRUPT + code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_del_frees_everything() -> None:
    def use() -> None:
        llm = LLM(dtype="float32", quantize="q8_0")
        llm.generate(PROMPT, SamplingParams(max_tokens=5))

    use()
    gc.collect()
    threads, memory = num_threads(), resident_bytes()
    for _ in range(8):
        use()
    gc.collect()
    assert num_threads() <= threads
    assert resident_bytes() - memory < 30 << 20  # a model has 12 MB of weights here, besides its pools

    llm = LLM()
    freed, running = weakref.ref(llm), num_threads()
    del llm
    assert freed() is None
    assert num_threads() < running
