"""schemathesis draws requests from /openapi.json: no status is 500 or more; responses are as the document says."""

import os
import subprocess
import sys
import tempfile

from serving import KEY, Server, finish, run_checks

SECONDS = os.environ.get("HEADRACE_SCHEMATHESIS_SECONDS", "30")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def drawn_requests(server):
    """requests drawn from the document, right and wrong"""
    command = [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", server.url + "/openapi.json",
               "--checks", CHECKS, "--phases", "fuzzing", "--workers", "2", "--max-time", SECONDS, "--seed", "1",
               "--continue-on-failure", "--header", f"Authorization: Bearer {KEY}", "--request-timeout", "20",
               "--no-color",
               "--generation-database", "none", "--suppress-health-check", "all", "--warnings", "off"]
    with tempfile.TemporaryDirectory() as directory:  # it keeps what it found where it runs
        done = subprocess.run(command, capture_output=True, text=True, cwd=directory)
    if done.returncode != 0:
        raise AssertionError("\n" + (done.stdout + done.stderr)[-6000:])
    summary = [line.strip() for line in done.stdout.splitlines() if "generated" in line or "passed" in line]
    print("schemathesis:", "; ".join(summary[-3:]))


with Server("-c", "128") as served:
    failed = run_checks("schemathesis", [(drawn_requests, served)])
finish(failed)
