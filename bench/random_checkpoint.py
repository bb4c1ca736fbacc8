"""A checkpoint of random weights for a Qwen3 or Qwen3.5 shape without experts, as files that a start reads: safetensors
in the types of the released ones, and a tokenizer.json of the shape's vocabulary, grown from the demo's.

Usage: random_checkpoint.py SHAPE DIRECTORY (SHAPE has a config.json, DIRECTORY is made)
"""
import itertools
import json
import math
import os
import shutil
import struct
import sys

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "demo_models", "fairy-hybrid", "tokenizer.json")
BYTES_OF = {"BF16": 2, "F32": 4}
BLOCK = 1 << 24  # bytes that all tensors are made of


def attention(c):
    hidden, dim, heads, kv_heads = (c[key] for key in
                                    ("hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads"))
    per_head = 2 * dim if "layer_types" in c else dim  # Qwen3.5 has a gate beside each head's query
    yield "self_attn.q_proj.weight", (heads * per_head, hidden)
    for name in "k_proj", "v_proj":
        yield f"self_attn.{name}.weight", (kv_heads * dim, hidden)
    yield "self_attn.o_proj.weight", (hidden, heads * dim)
    for name in "q_norm", "k_norm":
        yield f"self_attn.{name}.weight", (dim,)


def delta_net(c):
    hidden, heads = c["hidden_size"], c["linear_num_value_heads"]
    keys, values = c["linear_num_key_heads"] * c["linear_key_head_dim"], heads * c["linear_value_head_dim"]
    rows = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    for name, count in rows.items():
        yield f"linear_attn.{name}.weight", (count, hidden)
    yield "linear_attn.conv1d.weight", (2 * keys + values, 1, c["linear_conv_kernel_dim"])
    yield "linear_attn.out_proj.weight", (hidden, values)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.norm.weight", (c["linear_value_head_dim"],)


def layer(c, kind):
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    yield from (attention if kind == "full_attention" else delta_net)(c)
    yield "mlp.gate_proj.weight", (inner, hidden)
    yield "mlp.up_proj.weight", (inner, hidden)
    yield "mlp.down_proj.weight", (hidden, inner)


def tensors(c):
    """(name, shape) of every tensor in the file; the head is tied to the embedding."""
    yield "model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"])
    for i, kind in enumerate(c.get("layer_types", ["full_attention"] * c["num_hidden_layers"])):
        yield from ((f"model.layers.{i}.{name}", shape) for name, shape in layer(c, kind))
    yield "model.norm.weight", (c["hidden_size"],)


def header(shapes):
    """The header's bytes, and how many bytes of tensors follow."""
    entries, at = {}, 0
    for name, shape in shapes:
        dtype = "F32" if name.endswith(("A_log", "linear_attn.norm.weight")) else "BF16"
        end = at + math.prod(shape) * BYTES_OF[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def random_block():
    """Numbers of either sign and 2^-7 to 2^-5 in size, as bfloat16; two of them are one such float32."""
    signs = bytes(0xBC if byte & 1 else 0x3C for byte in range(256))  # and the upper bits of the exponent
    block = bytearray(os.urandom(BLOCK))
    block[1::2] = block[1::2].translate(signs)
    return memoryview(block)


def grow(tokenizer, size):
    """Adds tokens of two others to the vocabulary, each with its merge, until it has `size`."""
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    parts = [token for token in vocab if token not in special]
    for left, right in itertools.product(parts, repeat=2):
        if len(vocab) >= size:
            return
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append([left, right])


def main(shape, directory):
    os.makedirs(directory, exist_ok=True)
    shutil.copy(os.path.join(shape, "config.json"), directory)
    with open(os.path.join(shape, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(DEMO, encoding="utf-8") as file:
        tokenizer = json.load(file)
    grow(tokenizer, config["vocab_size"])
    with open(os.path.join(directory, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False)
    head, left = header(tensors(config))
    block = random_block()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(head)
        while left > 0:
            left -= file.write(block[:left])


if __name__ == "__main__":
    main(*sys.argv[1:])
