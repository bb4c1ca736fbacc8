#!/usr/bin/env python3
"""Repacks a sharded safetensors checkpoint into two shards of about equal size. Standard library only.

  python3 tools/demo_models/two_shards.py SOURCE_DIR TARGET_DIR
"""
import json
import struct
import sys
from pathlib import Path


def read(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {n: (h["dtype"], h["shape"], data[8 + size + h["data_offsets"][0]:8 + size + h["data_offsets"][1]])
            for n, h in header.items()}


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, (_, _, d) in tensors))


def main():
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    tensors = {}
    for shard in sorted(source.glob("*.safetensors")):
        tensors.update(read(shard))
    total = sum(len(t[2]) for t in tensors.values())
    first, second, size = [], [], 0
    for name, tensor in sorted(tensors.items()):
        fits = size + len(tensor[2]) <= total / 2
        size += len(tensor[2]) if fits else 0
        (first if fits else second).append((name, tensor))
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for i, part in enumerate((first, second), 1):
        name = f"model-0000{i}-of-00002.safetensors"
        write(target / name, part)
        index["weight_map"].update({n: name for n, _ in part})
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
