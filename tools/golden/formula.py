"""Weights of the golden checkpoints: a formula gives them, so that no file has to hold them.

A piece is (seed, mean, spread, count). Its element i is bfloat16(mean + spread * n / 2**32), where n is the sum of the four
16-bit parts of SplitMix64's output i of the stream that begins at seed * 2**32, less their mean: an integer that is nearly
normal, of standard deviation 37837. Everything up to the rounding is exact in float64.

tests/golden/<family>/weights.txt has the FNV-1a of all data and then a line for each tensor, in the file's order:
  name dtype shape seed mean spread count [seed mean spread count ...]
Names, dtypes and shapes are those that transformers saved, in the family's spelling; its pieces fill a tensor in order.
tests/support/golden_folder.cpp makes model.safetensors of it.
"""
import contextlib
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

UNIT = 37837.0  # the standard deviation of n
DTYPES = dict(BF16=torch.bfloat16, F32=torch.float32)
FLOAT32 = ("A_log", "linear_attn.norm.weight")  # what released checkpoints have in float32; all else is bfloat16


def normal(seed, count):
    z = np.uint64(seed << 32) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return sum((z >> np.uint64(16 * i) & np.uint64(0xFFFF)).astype(np.int64) for i in range(4)) - 131070


def filled(pieces):
    """All elements of a tensor, in float32, each of them exact in bfloat16."""
    parts = [mean + spread * normal(seed, count) / 2**32 for seed, mean, spread, count in pieces]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32)).bfloat16().float()


def piece_of(family, name, initial):
    """How a tensor is filled: by its name, its shape and what its class begins with."""
    mean, deviation = 0.0, initial.shape[-1] ** -0.5
    if name.endswith("A_log"):
        deviation = 0.29  # always between -1 and 1
    elif name.endswith("e_score_correction_bias"):
        mean, deviation = 0.25, 0.15  # large enough to change what is chosen
    elif name.endswith("layer_scalar"):
        mean, deviation = 0.703125 if "encoder" in name else 0.8984375, 0.0
    elif initial.ndim == 1:
        mean, deviation = float(initial[0]), 0.1
        assert (initial == mean).all(), f"{name} does not begin with one value"
    elif "conv1d" in name:
        deviation = 0.5
    elif "self_conditioning.down_proj" in name:
        deviation /= 4  # more amplifies from step to step what float32 rounds
    return zlib.crc32(f"{family} {name}".encode()), mean, round(deviation / UNIT * 2**32), initial.numel()


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def stored_bytes(tensor, dtype):
    return tensor.to(DTYPES[dtype]).contiguous().view(torch.uint8).numpy().tobytes()


def unspelled(tensors):
    return tensors


class Weights:
    """The weights of one network under the names that transformers saves."""

    def __init__(self, family, initial):
        self.shapes = {name: tensor.shape for name, tensor in initial.items()}
        self.pieces = {name: piece_of(family, name, tensor) for name, tensor in initial.items()}

    def tensors(self):
        return {name: filled([self.pieces[name]]).reshape(shape) for name, shape in self.shapes.items()}

    def write(self, folder, spell=unspelled):
        """weights.txt of spell(tensors), which renames, joins and stacks whole tensors."""
        names = list(self.pieces)
        places = spell({name: torch.full(shape, at) for at, (name, shape) in enumerate(self.shapes.items())})
        lines, data = [], b""
        for name, tensor in spell(self.tensors()).items():
            order = torch.unique_consecutive(places[name].flatten()).tolist()
            pieces = [self.pieces[names[at]] for at in order]
            assert torch.equal(filled(pieces), tensor.flatten()), f"{name} is not made of whole tensors"
            dtype = "F32" if name.endswith(FLOAT32) else "BF16"
            data += stored_bytes(tensor, dtype)
            shape = "x".join(map(str, tensor.shape))
            numbers = " ".join(f"{seed} {mean:g} {spread} {count}" for seed, mean, spread, count in pieces)
            lines.append(f"{name} {dtype} {shape} {numbers}\n")
        (folder / "weights.txt").write_text(f"{fnv1a(data):016x}\n" + "".join(lines))


def read(folder):
    """The tensors of a golden checkpoint, in float32."""
    tensors = {}
    for line in (folder / "weights.txt").read_text().splitlines()[1:]:
        name, _, shape, *numbers = line.split()
        pieces = [(int(s), float(m), int(p), int(n)) for s, m, p, n in zip(*[iter(numbers)] * 4)]
        tensors[name] = filled(pieces).reshape([int(size) for size in shape.split("x")])
    return tensors


def given_weights(cls, config, family):
    """A network of this class that has loaded the formula's weights from a checkpoint, and those weights."""
    with tempfile.TemporaryDirectory() as folder:
        cls(config).float().save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        weights = Weights(family, load_file(path))
        save_file(weights.tensors(), path, metadata=dict(format="pt"))
        model, report = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                            output_loading_info=True)
    problems = {kind: found for kind, found in report.items() if found}
    assert not problems, problems
    return model.eval(), weights


@contextlib.contextmanager
def checkpoint(folder):
    """A folder with the golden's model.safetensors, for as long as it is read."""
    with tempfile.TemporaryDirectory() as made:
        for file in folder.glob("*.json"):
            shutil.copy(file, made)
        save_file(read(folder), Path(made) / "model.safetensors", metadata=dict(format="pt"))
        yield Path(made)
