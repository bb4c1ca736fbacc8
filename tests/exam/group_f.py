"""Group F: life and operation."""

import itertools
import os
import signal
import subprocess
import tempfile
import threading
import time

from harness import Server, case, expect


@case("F62", "SIGTERM with streams: they end, new requests are refused, status 0; a second signal ends at once")
def _(s):
    one = Server(s.program, "-c", "1024")
    kept = one.connect()
    kept.request("GET", "/readyz")
    expect(kept.getresponse().read() is not None, "ready")
    streams = [one.stream(max_tokens=300) for _ in range(4)]
    for stream in streams:
        expect(stream.recv(64), "it streams")
    one.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    kept.request("GET", "/readyz")
    reply = kept.getresponse()
    expect(reply.status == 503, f"/readyz: {reply.status}")
    reply.read()
    refused = one.complete()
    expect(refused.status == 503 and refused.headers["connection"] == "close", f"{refused.status} {refused.headers}")
    texts = []
    for stream in streams:
        text = b""
        while piece := stream.recv(1 << 16):
            text += piece
            if text.endswith(b"0\r\n\r\n"):
                break
        texts.append(text)
    expect(all(b"[DONE]" in text for text in texts), "a stream has no end")
    expect(one.process.wait(40) == 0, "its status")

    short = Server(s.program, "-c", "4096", "--shutdown-timeout", "100ms")
    stream = short.stream(max_tokens=4000)
    expect(stream.recv(64), "it streams")
    status = short.end()
    text = b""
    while piece := stream.recv(1 << 16):
        text += piece
    expect(b'"shutting_down"' in text and b"[DONE]" in text, text[-300:])
    expect(status == 0, f"status {status}")

    twice = Server(s.program, "-c", "4096")
    stream = twice.stream(max_tokens=4000)
    expect(stream.recv(64), "it streams")
    twice.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    start = time.monotonic()
    twice.process.send_signal(signal.SIGTERM)
    twice.process.wait(10)
    expect(time.monotonic() - start < 2, "the second signal waits")


@case("F63", "SIGTERM while the model loads")
def _(s):
    process = subprocess.Popen([s.program, "serve", "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.05)
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    expect(time.monotonic() - start < 2, "it goes on")


@case("F66", "options: unknown, wrong, twice, and where they come from")
def _(s):
    def run(*arguments, **environment):
        done = subprocess.run([s.program, "serve", *arguments], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **environment})
        return done.returncode, done.stdout, done.stderr

    with tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()

        def file(text):
            path = os.path.join(folder, f"config{next(numbers)}.toml")
            with open(path, "w") as out:
                out.write(text)
            return path

        for status, says, arguments, environment in (
                (2, "--port", ["--prot", "1"], {}),
                (2, "--port", ["--port", "abc"], {}),
                (2, "65535", ["--port", "70000"], {}),
                (2, "--port", ["--port", "1", "--port", "2"], {}),
                (2, "HEADRACE_PORT", [], {"HEADRACE_PORT": "abc"}),
                (2, "did you mean port", ["--config", file("prot = 1")], {}),
                (2, "config1.toml", ["--config", file("port = 'abc'")], {}),
                (2, "line 1", ["--config", file("port = [")], {}),
                (2, "config3.toml", ["--config", file("port = {a = 1}")], {}),
                (2, "1 MiB", ["--config", file("#" * (2 << 20))], {}),
                (2, "cannot be read", ["--config", folder + "/none.toml"], {}),
                (2, "queue", ["--queue-timeout", "60x"], {}),
                (3, "no such model", ["no/model/here"], {})):
            code, _, errors = run(*arguments, **environment)
            expect(code == status and says in errors, f"{arguments} {environment}: status {code}: {errors}")

        config = file("port = 1111\nmax-num-seqs = 3\ntop_k = 7\napi-key = ['a', 'b']\n")
        code, shown, errors = run("--print-config", "--config", config, "--port", "2222", HEADRACE_MAX_NUM_SEQS="5")
        expect(code == 0, errors)
        for line in ("port = 2222  # command line", "max-num-seqs = 5  # HEADRACE_MAX_NUM_SEQS", f"top-k = 7  # {config}",
                     "max-queued-requests = 512  # default"):
            expect(line in shown, f"{line} is not in {shown}")
        expect("'a'" not in shown and '"a"' not in shown, "a key is shown")
    taken = s.port
    code, _, errors = run("--port", str(taken))
    expect(code == 5, f"a port in use: status {code}: {errors}")


@case("F69", "the same tokens before and after a thousand others; salts share nothing", quick=False)
def _(s):
    def many(worker):
        for i in range(125):
            s.complete(prompt=f"The {worker} and {i}", max_tokens=1 + i % 9, temperature=1, n=1 + i % 2)

    before = s.canary()
    threads = [threading.Thread(target=many, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(s.canary() == before, "other tokens")
    long = "The king and the queen had a daughter, and she was fair. " * 8
    cached = lambda salt: s.complete(prompt=long, cache_salt=salt).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    cached("one")
    s.wait_until_idle()
    expect(cached("one") > 0, "the same salt")
    expect(cached("two") == 0, "another salt")


@case("F71", "keys: every route but health, and none in the log")
def _(s):
    one = Server(s.program, "--api-key", "sesame-7", "--api-key", "sesame-8")
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/nothing", "/api/tags"):
        expect(one.get(path).status == 401, path)
        expect(one.get(path, authorization="Bearer sesame-8").status in (200, 404), path)
    for path in ("/health", "/livez", "/readyz"):
        expect(one.get(path).status == 200, path)
    expect(one.complete().status == 401, "a completion")
    expect(one.post("/v1/completions", {"prompt": "secret words"}, authorization="Bearer sesame-7").status == 200, "a key")
    expect(one.end() == 0, "its status")
    log = "".join(one.log)
    expect("sesame" not in log and "secret words" not in log, log)
