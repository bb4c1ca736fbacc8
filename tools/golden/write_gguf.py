#!/usr/bin/env python3
"""Writes a checkpoint of Hugging Face's as a GGUF file, by the gguf package: `write_gguf.py CHECKPOINT FILE.gguf [TYPE]`.

For tests alone: it knows the families of tests/golden and gives the file a tokenizer of bytes. TYPE: F32 (the default) or a block
format that the package can make, for the matrices whose rows it divides. Names and changes of values: gguf_tensors.h.
"""
import json
import math
import pathlib
import struct
import sys

import gguf
import numpy as np

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
                 "Qwen3MoeForCausalLM": "qwen3moe", "Qwen3NextForCausalLM": "qwen3next",
                 "Qwen3_5ForCausalLM": "qwen35", "Qwen3_5MoeForCausalLM": "qwen35moe"}
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_safetensors(folder):
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        for name, entry in json.loads(raw[8:8 + size]).items():
            if name == "__metadata__" or entry["dtype"] not in DTYPES:
                continue
            begin, end = entry["data_offsets"]
            values = np.frombuffer(raw[8 + size + begin:8 + size + end], DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = values.astype(np.float32).reshape(entry["shape"])
    return tensors


class Model:
    def __init__(self, folder):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.arch = ARCHITECTURES[self.config["architectures"][0]]
        self.tensors = read_safetensors(folder)
        self.is_hybrid = self.arch in ("qwen3next", "qwen35", "qwen35moe")
        self.tiles_heads = self.arch.startswith("qwen35")
        c = self.config
        self.head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        if self.is_hybrid:
            self.k_heads, self.v_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
            self.dk, self.dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
            groups = self.v_heads // self.k_heads
            # Value head t of the file: grouped by key head, or key heads by turns.
            self.heads = [t % self.k_heads * groups + t // self.k_heads for t in range(self.v_heads)]
            if not self.tiles_heads:
                self.heads = list(range(self.v_heads))

    def rows_of_heads(self, unit):
        return [head * unit + i for head in self.heads for i in range(unit)]

    def norm(self, values):
        return values + 1 if self.is_hybrid else values

    def permuted(self, values, heads):
        """Rows of q and k in the pairs of llama's rotation."""
        if self.arch != "llama":
            return values
        half = values.shape[0] // heads // 2
        return values.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(values.shape)

    def gdn(self, layer):
        """Tensors of a Gated DeltaNet layer, by the file's names behind "blk.N."."""
        def take(name):
            return self.tensors[f"model.layers.{layer}.linear_attn.{name}"]
        keys = 2 * self.k_heads * self.dk
        if self.arch == "qwen3next":
            groups = self.v_heads // self.k_heads
            qkvz = take("in_proj_qkvz.weight").reshape(self.k_heads, -1, self.config["hidden_size"])
            q, k, v, z = np.split(qkvz, [self.dk, 2 * self.dk, 2 * self.dk + groups * self.dv], axis=1)
            yield "attn_qkv.weight", np.concatenate([part.reshape(-1, part.shape[-1]) for part in (q, k, v)])
            yield "attn_gate.weight", z.reshape(-1, z.shape[-1])
            yield "ssm_ba.weight", take("in_proj_ba.weight")
        else:
            qkv = take("in_proj_qkv.weight")
            yield "attn_qkv.weight", np.concatenate([qkv[:keys], qkv[keys:][self.rows_of_heads(self.dv)]])
            yield "attn_gate.weight", take("in_proj_z.weight")[self.rows_of_heads(self.dv)]
            yield "ssm_beta.weight", take("in_proj_b.weight")[self.heads]
            yield "ssm_alpha.weight", take("in_proj_a.weight")[self.heads]
        conv = take("conv1d.weight")[:, 0, :]
        yield "ssm_conv1d.weight", np.concatenate([conv[:keys], conv[keys:][self.rows_of_heads(self.dv)]])
        yield "ssm_a", -np.exp(take("A_log"))[self.heads]
        yield "ssm_dt.bias", take("dt_bias")[self.heads]
        yield "ssm_norm.weight", take("norm.weight")
        yield "ssm_out.weight", take("out_proj.weight")[:, self.rows_of_heads(self.dv)]

    def attention(self, layer):
        place = f"model.layers.{layer}.self_attn."
        heads = {"q": self.config["num_attention_heads"], "k": self.config["num_key_value_heads"]}
        for name in "qkvo":
            for kind in ("weight", "bias"):
                values = self.tensors.get(f"{place}{name}_proj.{kind}")
                if values is None:
                    continue
                values = self.permuted(values, heads[name]) if name in heads else values
                yield f"attn_{'output' if name == 'o' else name}.{kind}", values
            norm = self.tensors.get(f"{place}{name}_norm.weight")
            if norm is not None:
                yield f"attn_{name}_norm.weight", self.norm(norm)

    def experts(self, mlp, part):
        stacked = self.tensors.get(f"{mlp}experts.gate_up_proj")
        if stacked is None:
            count = self.config.get("num_experts") or self.config.get("num_local_experts")
            return np.stack([self.tensors[f"{mlp}experts.{e}.{part}_proj.weight"] for e in range(count)])
        half = stacked.shape[1] // 2
        return {"gate": stacked[:, :half], "up": stacked[:, half:], "down": self.tensors[f"{mlp}experts.down_proj"]}[part]

    def mlp(self, layer):
        place = f"model.layers.{layer}.mlp."
        has_experts = f"{place}gate.weight" in self.tensors
        if has_experts:
            yield "ffn_gate_inp.weight", self.tensors[f"{place}gate.weight"]
        for part in ("gate", "up", "down"):
            if has_experts:
                yield f"ffn_{part}_exps.weight", self.experts(place, part)
            else:
                yield f"ffn_{part}.weight", self.tensors[f"{place}{part}_proj.weight"]
            shared = self.tensors.get(f"{place}shared_expert.{part}_proj.weight")
            if shared is not None:
                yield f"ffn_{part}_shexp.weight", shared
        shared_gate = self.tensors.get(f"{place}shared_expert_gate.weight")
        if shared_gate is not None:
            yield "ffn_gate_inp_shexp.weight", shared_gate[0]

    def all_tensors(self):
        yield "token_embd.weight", self.tensors["model.embed_tokens.weight"]
        yield "output_norm.weight", self.norm(self.tensors["model.norm.weight"])
        if not self.config["tie_word_embeddings"]:
            yield "output.weight", self.tensors["lm_head.weight"]
        if self.config["rope_parameters"]["rope_type"] == "llama3":
            yield "rope_freqs.weight", self.rope_divisors()
        for layer in range(self.config["num_hidden_layers"]):
            place = f"model.layers.{layer}."
            recurrent = f"{place}linear_attn.A_log" in self.tensors
            after = "post_attention_norm" if self.is_hybrid else "ffn_norm"
            yield f"blk.{layer}.attn_norm.weight", self.norm(self.tensors[f"{place}input_layernorm.weight"])
            yield f"blk.{layer}.{after}.weight", self.norm(self.tensors[f"{place}post_attention_layernorm.weight"])
            for parts in (self.gdn(layer) if recurrent else self.attention(layer), self.mlp(layer)):
                for name, values in parts:
                    yield f"blk.{layer}.{name}", values

    def rope_divisors(self):
        """What llama3's scaling divides each frequency by."""
        rope = self.config["rope_parameters"]
        low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
        divisors = []
        for i in range(0, self.head_dim, 2):
            length = 2 * math.pi * rope["rope_theta"] ** (i / self.head_dim)
            smooth = (old / length - low) / (high - low)
            between = 1 / ((1 - smooth) / rope["factor"] + smooth)
            divisors.append(1 if length < old / high else rope["factor"] if length > old / low else between)
        return np.array(divisors, np.float32)


def add_keys(writer, model):
    c, rope = model.config, model.config["rope_parameters"]
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c.get("intermediate_size", 0) or c["moe_intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(model.head_dim * rope.get("partial_rotary_factor", 1)))
    experts = c.get("num_experts") or c.get("num_local_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in c:
            writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if model.is_hybrid:
        writer.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        writer.add_ssm_inner_size(model.v_heads * model.dv)
        writer.add_ssm_state_size(model.dk)
        writer.add_ssm_time_step_rank(model.v_heads)
        writer.add_ssm_group_count(model.k_heads)
        writer.add_uint32(f"{model.arch}.full_attention_interval", c["layer_types"].index("full_attention") + 1)
    if model.tiles_heads:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])


def add_tokenizer(writer, model):
    """The 256 bytes, one merge, for the package writes no empty list, and padding."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in plain]
    tokens = [chr(b) if b in plain else chr(256 + moved.index(b)) for b in range(256)]
    tokens += ["ab", *(f"[PAD{i}]" for i in range(257, model.config["vocab_size"]))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre({"llama": "llama-bpe", "qwen35": "qwen35", "qwen35moe": "qwen35"}.get(model.arch, "qwen2"))
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [5] * (len(tokens) - 257))
    writer.add_token_merges(["a b"])
    if model.config.get("eos_token_id") is not None:
        writer.add_eos_token_id(model.config["eos_token_id"])


def stored_type(name, values, wanted):
    """Everything that converters keep in float32 stays in it."""
    stays = values.ndim < 2 or name.endswith("norm.weight") or "ssm_conv1d" in name or "ffn_gate_inp" in name
    if wanted == "F32" or stays:
        return gguf.GGMLQuantizationType.F32
    kind = gguf.GGMLQuantizationType[wanted]
    return kind if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else gguf.GGMLQuantizationType.F32


def main():
    folder, out, wanted = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "F32"
    model = Model(folder)
    writer = gguf.GGUFWriter(out, model.arch)
    add_keys(writer, model)
    add_tokenizer(writer, model)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, values in model.all_tensors():
        kind = stored_type(name, values, wanted)
        values = np.ascontiguousarray(values, np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
