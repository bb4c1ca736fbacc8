"""Group C: HTTP and transport. Limits of 10 s and more are slow cases here; tests/http has them in milliseconds."""

import json
import socket
import time

from harness import Server, case, expect


def talk(s, data, seconds=20, half_close=False):
    """Sends bytes and returns all that comes until the server closes, or until nothing comes for `seconds`."""
    with socket.create_connection(("127.0.0.1", s.port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        out = b""
        try:
            while piece := connection.recv(1 << 16):
                out += piece
        except TimeoutError:
            return out + b" (and no end)"
        except OSError:
            pass
        return out


def refuse(s, data, status):
    out = talk(s, data)
    expect(out.startswith(b"HTTP/1.1 %d " % status), f"{data[:60]!r}: {out[:100]!r}, expected {status}")
    expect(b"(and no end)" not in out, f"{data[:60]!r}: the connection stays open")
    expect({"message", "type", "param", "code"} <= set(json.loads(out.split(b"\r\n\r\n", 1)[1])["error"]), out[-300:])
    expect(b"\r\nx-request-id: " in out.lower(), "no x-request-id")


def head(more=b"", line=b"POST /v1/completions HTTP/1.1"):
    return line + b"\r\nHost: a\r\nContent-Type: application/json\r\n" + more + b"\r\n"


def body_of(**fields):
    return json.dumps({"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, **fields}).encode()


def whole(body):
    return head(b"Content-Length: %d\r\n" % len(body)) + body


def health_times(s, count):
    """Sorted seconds of requests to /health on one connection."""
    connection, times = s.connect(), []
    for _ in range(count):
        start = time.monotonic()
        connection.request("GET", "/health")
        expect(connection.getresponse().read(), "/health")
        times.append(time.monotonic() - start)
    return sorted(times)


@case("C32", "long lines, many headers, a long target")
def _(s):
    refuse(s, head(b"A: " + b"a" * 65536 + b"\r\n"), 431)
    refuse(s, head(b"a: b\r\n" * 10000), 431)
    refuse(s, head(b"a: b\r\n" * 120), 431)
    refuse(s, head(line=b"GET /" + b"a" * 65536 + b" HTTP/1.1"), 414)


@case("C32s", "a thousand heads of one byte a second", quick=False)
def _(s):
    slow = [socket.create_connection(("127.0.0.1", s.port), timeout=20) for _ in range(1000)]
    start = time.monotonic()
    for i in range(8):
        for one in slow:
            one.sendall(b"GET /hea"[i:i + 1])
        expect(health_times(s, 100)[98] < 0.05, "/health is slow")
        time.sleep(max(0, start + i + 1 - time.monotonic()))
    for one in slow:
        expect(one.recv(100).startswith(b"HTTP/1.1 408 "), "a head that does not come is not refused")
        one.close()


@case("C33", "a body of one byte a second", quick=False)
def _(s):
    with socket.create_connection(("127.0.0.1", s.port), timeout=1) as connection:
        connection.sendall(head(b"Content-Length: 1000\r\n"))
        start = time.monotonic()
        while time.monotonic() - start < 60:
            try:
                connection.sendall(b" ")
                expect(connection.recv(100).startswith(b"HTTP/1.1 408 "), "its status")
                break
            except TimeoutError:
                pass
        expect(25 < time.monotonic() - start < 40, f"it ended after {time.monotonic() - start:.0f} s")


@case("C34", "chunks of odd sizes, a million of one byte, endless trailers, a missing end")
def _(s):
    chunked = head(b"Transfer-Encoding: chunked\r\n")
    for size in (b"-2", b"FFFFFFFFFFFFFFFF", b"+5", b"0x5", b"5 ", b"g", b"10000000000000000"):
        refuse(s, chunked + size + b"\r\nhello\r\n0\r\n\r\n", 400)
    refuse(s, chunked + b"0\r\n" + b"a: b\r\n" * 5000, 400)
    before = s.memory()
    body = body_of(max_tokens=1) + b" " * 1000000
    out = talk(s, head(b"Transfer-Encoding: chunked\r\nConnection: close\r\n")
               + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    expect(out.startswith(b"HTTP/1.1 200 "), out[:100])
    expect(s.memory() - before < 64 << 20, "its memory grows")
    expect(talk(s, chunked + b"5\r\nhello\r\n", half_close=True).startswith(b"HTTP/1.1 400 "), "no last chunk")


@case("C34b", "a request that two programs would read in two ways")
def _(s):
    for more in (b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length: +5\r\n",
                 b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Folded: a\r\n b\r\n", b"Space : a\r\n",
                 b"Host: b\r\n"):
        refuse(s, head(more) + b"hello", 400)
    refuse(s, head(b"Transfer-Encoding: gzip, chunked\r\n"), 501)


@case("C36", "connections beyond the limit")
def _(s):
    small = Server(s.program, "--max-connections", "20", "-c", "512")
    kept = [small.connect() for _ in range(20)]
    for connection in kept:
        connection.request("GET", "/health")
        connection.getresponse().read()
    refuse(small, b"", 503)
    kept.pop().close()
    time.sleep(0.1)
    expect(small.get("/health").status == 200, "room again")
    expect(small.end() == 0, "its status")


@case("C36s", "5,000 idle streams and 8 active", quick=False)
def _(s):
    big = Server(s.program, "--max-connections", "6000", "--max-num-seqs", "8", "--max-queued-requests", "6000",
                 "-c", "512")
    streams = [big.stream(max_tokens=100, seed=i) for i in range(5008)]
    end = time.monotonic() + 120
    while big.metric("headrace_requests_waiting") + big.metric("headrace_requests_running") < 4900:
        expect(time.monotonic() < end, "the streams do not begin")
        time.sleep(0.1)
    times = health_times(big, 200)
    expect(times[197] < 0.05, f"/health takes {times[197]:.3f} s")
    for stream in streams:
        stream.close()
    big.wait_until_idle(120)
    expect(big.end() == 0, "its status")


def is_idle_within(s, seconds):
    """Whether no request runs or waits by then. (The metrics are those of the last step.)"""
    end = time.monotonic() + seconds
    while s.metric("headrace_requests_running") + s.metric("headrace_requests_waiting") > 0:
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@case("C37", "clients that go: at once, in the queue, within the answer, streaming or not; a half-close is none")
def _(s):
    small = Server(s.program, "--max-num-seqs", "1", "-c", "4096")
    for stream in (False, True):
        for delay in (0, 0.1):
            connections = []
            for _ in range(3):  # one runs, two wait
                connection = socket.create_connection(("127.0.0.1", small.port), timeout=20)
                connection.sendall(whole(body_of(max_tokens=4000, stream=stream)))
                connections.append(connection)
            time.sleep(delay)
            for connection in connections:
                connection.close()
            expect(is_idle_within(small, 0.5), f"requests go on without their clients (stream: {stream})")
    body = body_of(max_tokens=60)
    closed = head(b"Content-Length: %d\r\nConnection: close\r\n" % len(body)) + body
    for _ in range(2):
        out = talk(small, closed, half_close=True)
        expect(out.startswith(b"HTTP/1.1 200 OK\r\n"), out[:100])
        expect(json.loads(out.split(b"\r\n\r\n", 1)[1])["usage"]["completion_tokens"] == 60, "half-close aborts")
    body = body_of(max_tokens=60, stream=True)
    out = talk(small, head(b"Content-Length: %d\r\nConnection: close\r\n" % len(body)) + body, half_close=True)
    expect(b"data: [DONE]" in out, "half-close ends a stream")
    expect(small.end() == 0, "its status")


@case("C38", "a reader that stops", quick=False)
def _(s):
    big = Server(s.program, "-c", "4096")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", big.port))
    body = body_of(max_tokens=3900, stream=True, logprobs=5, n=8)
    expect(big.post("/v1/completions", body).status == 200, "with a reader")  # touches all pages
    before = big.memory()
    connection.sendall(whole(body))
    for _ in range(40):
        expect(big.complete(max_tokens=4).status == 200, "others wait")
        time.sleep(0.5)
        expect(big.memory() - before < 64 << 20, "its memory grows")
    connection.close()
    big.wait_until_idle()
    expect(big.end() == 0, "its status")


@case("C40", "pipelining, keep-alive behind errors, methods, 100-continue, other protocols")
def _(s):
    get = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    out = talk(s, get * 50 + last)
    expect(out.count(b"HTTP/1.1 200 OK") == 51, "pipelined requests")
    kept = s.connect()
    for body, status in ((b"{", 400), (b"{}", 400), (body_of(max_tokens=1), 200)):
        kept.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        reply = kept.getresponse()
        expect(reply.status == status and reply.read(), f"{body[:20]!r}: {reply.status}")
    out = talk(s, head(line=b"HEAD /health HTTP/1.1", more=b"Connection: close\r\n"))
    expect(out.startswith(b"HTTP/1.1 ") and out.endswith(b"\r\n\r\n"), f"HEAD: {out!r}")
    for method, statuses in ((b"TRACE", (405,)), (b"BREW", (501,)), (b"CONNECT", (501,)), (b"DELETE", (404, 405))):
        out = talk(s, head(line=method + b" /v1/completions HTTP/1.1", more=b"Connection: close\r\n"))
        expect(any(out.startswith(b"HTTP/1.1 %d " % status) for status in statuses), f"{method!r}: {out[:60]!r}")
    body = body_of(max_tokens=1)
    with socket.create_connection(("127.0.0.1", s.port), timeout=20) as connection:
        connection.sendall(head(b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(body)))
        expect(connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n", "100-continue")
        connection.sendall(body)
        expect(connection.recv(100).startswith(b"HTTP/1.1 200 "), "behind 100-continue")
    refuse(s, b"GET /health\r\n", 400)
    refuse(s, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505)
    refuse(s, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400)
    out = talk(s, b"GET /health HTTP/1.0\r\n\r\n")
    expect(out.startswith(b"HTTP/1.1 200 ") and b"(and no end)" not in out, "HTTP/1.0")


@case("C41", "keys: none, wrong, a prefix, a long one, in the query; on every route")
def _(s):
    secret = "a-secret-key-of-the-exam"
    one = Server(s.program, "--api-key", secret, "-c", "512")
    routes = ("/v1/models", "/v1/completions", "/metrics", "/version", "/tokenize", "/openapi.json", "/no/such", "/")
    for path in routes:
        for key in (None, "wrong", secret[:-1], secret + "x", "", "x" * 20000):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            reply = one.request("GET", path, headers=headers)
            expect(reply.status == 401, f"{path} with {str(key)[:30]}: {reply.status}")
            expect(reply.error()["type"] == "authentication_error", reply.error())
    expect(one.get(f"/v1/models?key={secret}&api_key={secret}").status == 401, "a key in the query")
    for scheme in ("Bearer", "bearer"):
        expect(one.get("/v1/models", authorization=f"{scheme} {secret}").status == 200, scheme)
    for path in ("/health", "/livez", "/readyz"):
        expect(one.get(path).status == 200, path)
    expect(one.get("/v1/models", authorization="Bearer " + "x" * 1000000).status == 431, "a key of 1 MB")
    expect(one.end() == 0, "its status")
    expect(secret not in "".join(one.log + one.report), "the key is in the log")
