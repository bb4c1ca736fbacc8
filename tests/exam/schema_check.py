#!/usr/bin/env python3
"""schemathesis on a server's OpenAPI document: no response is a server's error, and all are as the document says.

usage: schema_check.py PROGRAM [EXAMPLES]    (needs the package schemathesis)
"""

import os
import subprocess
import sys
import tempfile

from harness import Server

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def main():
    server = Server(sys.argv[1], "-c", "256", "--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    url = f"http://127.0.0.1:{server.port}"
    program = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "schemathesis")
    with tempfile.TemporaryDirectory() as folder:  # it leaves what it has found where it runs
        done = subprocess.run([program, "run", url + "/openapi.json", "--url", url, "--checks", CHECKS, "--request-timeout", "60",
                               "--seed", "1", "--max-examples", sys.argv[2] if len(sys.argv) > 2 else "20"], cwd=folder)
    status = server.end()
    sys.exit(done.returncode if status == 0 else 1)


main()
