"""headrace serve for the clients' checks, and their reports."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("HEADRACE_PROGRAM", os.path.join(ROOT, "build", "cpu", "bin", "headrace"))
MODEL = os.path.join(ROOT, "demo_models", "fairy-hybrid")
KEY = "sk-clients"
SAME_BITS = ["-t", "1", "--dtype", "float32", "--deterministic"]  # of the server and of direct runs
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


CHECKED = [MODEL, "--served-model-name", "fairy", "--chat-template", TEMPLATE, "--api-key", KEY, *SAME_BITS]


class Server:
    """On a free port of 127.0.0.1; its log goes to a file."""

    def __init__(self, *flags, words=tuple(CHECKED)):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", *words, *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.url = f"http://127.0.0.1:{found.group(1)}"
                return
        self.log.seek(0)
        raise SystemExit(f"clients: headrace serve did not start: {self.log.read()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Throws unless the server lived until now and ends with status 0."""
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGTERM) if alive else None
        status = self.process.wait(60)
        self.log.seek(0)
        text = self.log.read()
        assert alive and status == 0, f"the server ended with status {status}: {text[-2000:]}"
        assert KEY not in text, "the log has the key"


def headrace(*words):
    return subprocess.run([PROGRAM, *words], check=True, capture_output=True, text=True).stdout


def greedy_text(prompt, tokens):
    """A direct run's."""
    words = ["generate", MODEL, "-p", prompt, "-n", str(tokens), "--temperature", "0", "--json", *SAME_BITS]
    return json.loads(headrace(*words))["text"]


def run_checks(client, checks):
    """Runs functions; prints a line for each, with its docstring. Returns the number of failures."""
    failures = 0
    for check, *arguments in checks:
        begin = time.monotonic()
        try:
            check(*arguments)
            outcome = "ok"
        except Exception as error:  # noqa: BLE001
            outcome = f"FAILED: {type(error).__name__}: {str(error)[:6000]}"
            failures += 1
        print(f"{client}: {check.__doc__} ... {outcome} ({time.monotonic() - begin:.2f} s)", flush=True)
    return failures


def finish(failures):
    sys.exit(1 if failures else 0)
