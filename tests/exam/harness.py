"""A server under examination, its cases, and what must hold after each of them."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

CASES = []  # in order: (name, is_quick, what, function)


def case(name, what, quick=True):
    """Registers a case. Quick ones run in CI, too."""

    def register(function):
        CASES.append((name, quick, what, function))
        return function

    return register


class Failed(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Failed(what)


class Reply:
    def __init__(self, status, headers, body, seconds):
        self.status, self.headers, self.body, self.seconds = status, headers, body, seconds

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]


class Server:
    """headrace serve on a free port of 127.0.0.1."""

    def __init__(self, program, *arguments, environment=None):
        self.log = []
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--deterministic", "-t", "1", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            env={**os.environ, **(environment or {})})
        self.report = []
        for line in self.process.stdout:
            self.report.append(line)
            if line.startswith("url"):
                break
        else:
            raise Failed(f"it did not start: {self.process.stderr.read()}")
        self.port = int(re.search(r":(\d+)$", self.report[-1].strip()).group(1))
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        start = time.monotonic()
        connection = self.connect()
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return Reply(response.status, response.headers, text, time.monotonic() - start)

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, **headers):
        """`body`: bytes, or what becomes JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, data, {"content-type": "application/json", **headers})

    def complete(self, **fields):
        return self.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **fields})

    def refuse(self, body, path="/v1/completions", status=400, param=None, says=None):
        """Posts what must be refused, with OpenAI's error object."""
        reply = self.post(path, body)
        shown = body if isinstance(body, bytes) else json.dumps(body).encode()
        expect(reply.status == status, f"{shown[:80]!r}: status {reply.status}, expected {status}: {reply.body[:200]!r}")
        error = reply.error()
        expect({"message", "type", "param", "code"} <= set(error), f"{shown[:80]!r}: {error}")
        expect(param is None or (error["param"] or "").startswith(param), f"{shown[:80]!r}: param is {error['param']!r}")
        expect(says is None or says in error["message"], f"{shown[:80]!r}: it says {error['message']!r}")
        return reply

    def stream(self, **fields):
        """A socket on which a stream has begun."""
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True, **fields})
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                           f"content-length: {len(body)}\r\n\r\n{body}".encode())
        return connection

    def metric(self, name):
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name) and line[len(name)] in "{ ":
                return float(line.rsplit(" ", 1)[1])
        raise Failed(f"there is no metric {name}")

    def wait_until_idle(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric("headrace_requests_running") == 0 and self.metric("headrace_requests_waiting") == 0:
                return
            time.sleep(0.02)
        raise Failed("requests are left")

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) * 1024

    def canary(self):
        return self.complete(seed=1).json()["choices"][0]["text"]

    def check(self, golden):
        """What holds after every case."""
        expect(self.process.poll() is None, f"it has ended with status {self.process.poll()}: {self.log[-3:]}")
        self.wait_until_idle()
        ready = self.get("/readyz")
        expect(ready.status == 200, f"/readyz: {ready.status}")
        expect(self.canary() == golden, "the canary's tokens have changed")
        expect(self.metric("headrace_free_pages") == self.metric("headrace_pages"), "pages are leased")

    def end(self, with_signal=signal.SIGTERM, seconds=40):
        """Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed("it does not end") from None
