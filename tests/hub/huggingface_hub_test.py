"""Both ways between headrace's cache of models and that of Hugging Face's own library.

Usage: huggingface_hub_test.py HEADRACE SMALL_HUB MODEL; MODEL: a directory that the small hub serves as org/tale.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

headrace, small_hub, model = sys.argv[1:4]
work = tempfile.TemporaryDirectory()
hub = subprocess.Popen(
    [small_hub, f"org/tale={model}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
os.environ["HF_ENDPOINT"] = hub.stdout.readline().strip()
os.environ["HF_HOME"] = work.name
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
os.environ["no_proxy"] = "*"
for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
    os.environ.pop(name, None)

# What reads the environment is imported behind it.
from filelock import FileLock  # noqa: E402
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache  # noqa: E402

cache = Path(work.name) / "hub"
failures = 0


def check(name, expected, found):
    global failures
    if expected != found:
        print(f"FAILED {name}: expected {expected!r}, found {found!r}")
        failures += 1


def run(*words, **environment):
    done = subprocess.run(
        [headrace, *words], env={**os.environ, **environment}, capture_output=True, text=True
    )
    check(f"headrace {' '.join(words)}: {done.stderr}", 0, done.returncode)
    return done.stdout


def plan():
    return json.loads(run("pull", "org/tale", "--json").splitlines()[0])


def remove():
    run("rm", "org/tale", "--yes")
    check("the repository's folder is removed", False, (cache / "models--org--tale").exists())


def blobs():
    return {path.name: path.stat() for path in (cache / "models--org--tale" / "blobs").iterdir()}


def same_blobs(before):
    return {n: (s.st_ino, s.st_mtime_ns, s.st_size) for n, s in before.items()} == {
        n: (s.st_ino, s.st_mtime_ns, s.st_size) for n, s in blobs().items()
    }


names = {path.name for path in Path(model).iterdir() if path.suffix in (".json", ".jinja", ".safetensors")}

# Our download, their reader. It comes first: their library remembers a listing of files, which has more than a model
# needs.
ours = Path(run("pull", "org/tale").strip())
check("files", names, {path.name for path in ours.iterdir()})
check("offline they find it", str(ours), snapshot_download("org/tale", local_files_only=True))
for name in names:
    path = hf_hub_download("org/tale", name, local_files_only=True)
    check(f"{name} is theirs", (Path(model) / name).read_bytes(), Path(path).read_bytes())
absent = try_to_load_from_cache("org/tale", "added_tokens.json")
check("what the repository lacks is known to be absent", True, absent is not None and not isinstance(absent, str))
before = blobs()
snapshot_download("org/tale", allow_patterns=["*.json", "*.jinja", "*.safetensors"])
check("they download none of it again", True, same_blobs(before))
scan = scan_cache_dir()
check("their scan warns of nothing", [], [str(w) for w in scan.warnings])
check("and finds one model", ["org/tale"], [repo.repo_id for repo in scan.repos])
check("of our size", sum((Path(model) / n).stat().st_size for n in names), next(iter(scan.repos)).size_on_disk)
remove()

# Their download, our reader.
theirs = Path(snapshot_download("org/tale"))
check("what they downloaded is all that a model needs", 0, plan()["missing_bytes"])
before = blobs()
check("pull finds their snapshot", f"{theirs}\n", run("pull", "org/tale"))
check("and downloads nothing", True, same_blobs(before))
check("list", ["org/tale"], [m["name"] for m in json.loads(run("list", "--json")) if m["place"] == "cache"])
check("show", str(theirs), json.loads(run("show", "org/tale", "--json"))["path"])
text = ("-p", "Once upon a time", "-n", "8", "--temperature", "0", "-t", "1")
expected = run("generate", *text)
check("generate, offline", expected, run("generate", "org/tale", *text, HF_HUB_OFFLINE="1"))
remove()

# A file whose lock they hold is waited for.
weights = max(before, key=lambda name: before[name].st_size)
with FileLock(str(cache / ".locks" / "models--org--tale" / f"{weights}.lock")):
    waiting = subprocess.Popen(
        [headrace, "pull", "org/tale"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines = [waiting.stderr.readline() for _ in range(2)]
    check("it says so", True, "another process downloads it; waiting" in lines[1])
    check("and waits", None, waiting.poll())
check("then downloads it", 0, waiting.wait(timeout=20))
check("their scan finds it whole", [], [str(w) for w in scan_cache_dir().warnings])

hub.stdin.close()
print("all good" if failures == 0 else f"{failures} failed")
sys.exit(failures != 0)
