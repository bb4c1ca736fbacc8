"""GGUF files that the gguf package writes from the golden checkpoints have the logits of these, and quantised ones run."""

import os
import subprocess
import sys
import tempfile

from serving import PROGRAM, ROOT, run_checks

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")
QUANTISED = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
BIN = os.path.dirname(PROGRAM)


def write(folder, family, kind="F32"):
    """The path of the family's file; its checkpoint is beside it."""
    checkpoint, file = os.path.join(folder, family), os.path.join(folder, f"{family}.gguf")
    if not os.path.exists(checkpoint):
        subprocess.run([os.path.join(BIN, "golden_checkpoint"), family, checkpoint], check=True)
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "golden", "write_gguf.py"), checkpoint, file, kind], check=True)
    return file


def check_logits():
    """files of every family have its logits"""
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            write(folder, family)
        done = subprocess.run([os.path.join(BIN, "model_golden_test"), "--gtest_filter=*GgufGolden.Files*"], capture_output=True,
                              text=True, env={**os.environ, "HEADRACE_GGUF_FILES": folder})
        assert done.returncode == 0 and f"[  PASSED  ] {len(FAMILIES)} tests" in done.stdout, done.stdout


def answer(file):
    done = subprocess.run([PROGRAM, "generate", file, "-p", "abc", "-n", "8", "--temperature", "0"], capture_output=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def check_formats():
    """files in every format that the package makes run, twice with the same text"""
    with tempfile.TemporaryDirectory() as folder:
        for kind in QUANTISED:
            for family in ("qwen3", "qwen3_5_moe"):
                file = write(folder, family, kind)
                assert answer(file) == answer(file) != b"", f"{family} in {kind}"


sys.exit(1 if run_checks("gguf", [(check_logits,), (check_formats,)]) else 0)
