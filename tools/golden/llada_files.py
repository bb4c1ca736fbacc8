"""How LLaDA spells the names of tensors and of config.json, for networks of transformers' Llama class."""

LLADA_TENSORS = [("model.embed_tokens", "model.transformer.wte"), ("model.norm", "model.transformer.ln_f"),
                 ("lm_head", "model.transformer.ff_out"), ("model.layers", "model.transformer.blocks"),
                 (".input_layernorm", ".attn_norm"), (".post_attention_layernorm", ".ff_norm"),
                 (".self_attn.o_proj", ".attn_out"), (".self_attn", ""), (".mlp.gate_proj", ".ff_proj"),
                 (".mlp.up_proj", ".up_proj"), (".mlp.down_proj", ".ff_out")]
LLADA_CONFIG = dict(d_model="hidden_size", n_layers="num_hidden_layers", n_heads="num_attention_heads",
                    n_kv_heads="num_key_value_heads", mlp_hidden_size="intermediate_size", vocab_size="vocab_size",
                    embedding_size="vocab_size", max_sequence_length="max_position_embeddings",
                    rms_norm_eps="rms_norm_eps", weight_tying="tie_word_embeddings")


def llada_name(name):
    for native, stored in LLADA_TENSORS:
        name = name.replace(native, stored)
    return name


def as_llada(config, tensors):
    theta = config["rope_parameters"]["rope_theta"]
    config = dict({new: config[old] for new, old in LLADA_CONFIG.items()}, rope_theta=theta, block_type="llama",
                  activation_type="silu", layer_norm_type="rms", rope=True, include_bias=False, include_qkv_bias=False,
                  block_group_size=1, torch_dtype="float32")
    return config, {llada_name(name): tensor for name, tensor in tensors.items()}
