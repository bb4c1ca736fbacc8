"""attn_implementation="headrace" on more families of transformers: each is right, or refused in one sentence."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import headrace.integrations as integrations  # noqa: E402
from headrace.errors import InvalidArgumentError, UnsupportedError  # noqa: E402
from tiny_models import GDN, assert_close, config_of, model_of, pair, tokens  # noqa: E402

RIGHT = {
    "Llama": {},
    "Mistral": {"sliding_window": 6},
    "Gemma3Text": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "Gemma3nText": {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": 8,
    },
    "Cohere2": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "Olmo2": {},
    "GPTNeoX": {},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}
LATENTS = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 8,
}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}
CHANGED = {
    "DeepseekV2": {**LATENTS, **EXPERTS},
    "DeepseekV3": {**LATENTS, **EXPERTS},
    "MiniCPM3": LATENTS,
    "JetMoe": {"kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DiffLlama": {},
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_ssm": 128}
HYBRIDS = {
    "Lfm2": ({"layer_types": ["conv", "full_attention"] * 2}, "conv"),
    "FalconH1": (MAMBA, "hybrid"),
    "Jamba": ({"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}, "linear_attention"),
    "OlmoHybrid": (GDN, "linear_attention"),
}
TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "decoder_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MASKS = {
    "Llama4ForCausalLM": (
        "Llama4TextConfig",
        {"attention_chunk_size": 8, "num_local_experts": 2},
        "chunked attention is not built",
    ),
    "ModernBertModel": (
        "ModernBertConfig",
        {"local_attention": 6, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
        "a window in both directions is not built",
    ),
    "Gemma3TextModel": (
        "Gemma3TextConfig",
        {"use_bidirectional_attention": True},
        "attention of some tokens in both directions is not built",
    ),
    "DeepseekV32ForCausalLM": (
        "DeepseekV32Config",
        {**LATENTS, **EXPERTS, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4},
        "a model that reads its causal mask is not built",
    ),
    "DogeForCausalLM": ("DogeConfig", {}, "causal mask is not built|attention_mask has shape"),
}
REFUSED_MODELS = {
    "XGLMForCausalLM": ("XGLMConfig", "attention interface"),
    "BloomForCausalLM": ("BloomConfig", "attention interface"),
    "FalconForCausalLM": ("FalconConfig", "attention interface"),
    "BigBirdPegasusForCausalLM": ("BigBirdPegasusConfig", 'neither "sdpa" nor flash attention'),
    "BartForConditionalGeneration": ("BartConfig", "encoder-decoder"),
    "WhisperForConditionalGeneration": ("WhisperConfig", "encoder-decoder"),
    "T5ForConditionalGeneration": ("T5Config", "encoder-decoder"),
}


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    integrations.enable()
    yield
    integrations.disable()


def causal_pair(family: str, sizes: dict[str, Any]) -> tuple[Any, Any]:
    model = family.removesuffix("Text") + "ForCausalLM"
    return pair(config_of(f"{family}Config", sizes), model)


@pytest.mark.parametrize("family", RIGHT)
@torch.no_grad()
def test_logits_and_tokens_are_those_of_transformers(family: str) -> None:
    ours, peer = causal_pair(family, RIGHT[family])
    ids = tokens(2, 21)
    want = peer(ids, use_cache=False).logits
    assert_close(ours(ids, use_cache=False).logits, want)
    begin = ours(ids[:, :8])
    assert isinstance(begin.past_key_values, integrations.HeadraceCache)
    assert_close(ours(ids[:, 8:], past_key_values=begin.past_key_values).logits, want[:, 8:])
    options = {"max_new_tokens": 8, "do_sample": False}
    assert ours.generate(ids, **options).tolist() == peer.generate(ids, **options).tolist()


@pytest.mark.parametrize("family", CHANGED)
@torch.no_grad()
def test_keys_that_change_behind_the_cache_are_refused(family: str) -> None:
    ours, peer = causal_pair(family, CHANGED[family])
    ids = tokens(2, 21)
    assert_close(ours(ids, use_cache=False).logits, peer(ids, use_cache=False).logits)
    with pytest.raises(UnsupportedError, match="layer 0 changes its keys or values behind the cache"):
        ours(ids)


@torch.no_grad()
def test_one_layer_that_changes_its_keys_is_refused_at_its_second_step() -> None:
    ours, peer = causal_pair("MiniCPM3", {**LATENTS, "num_hidden_layers": 1})
    ids = tokens(2, 9)
    begin = ours(ids[:, :8])
    assert_close(begin.logits, peer(ids[:, :8]).logits)
    with pytest.raises(UnsupportedError, match="layer 0 changes"):
        ours(ids[:, 8:], past_key_values=begin.past_key_values)
    begin.past_key_values.reset()
    assert_close(ours(ids[:, :8], past_key_values=begin.past_key_values).logits, begin.logits)


@pytest.mark.parametrize("family", ["Qwen3", "Qwen3_5Text"])
@torch.no_grad()
def test_packed_sequences_are_refused(family: str) -> None:
    ours, peer = causal_pair(family, GDN if family == "Qwen3_5Text" else {})
    ids = tokens(2, 8)
    for positions in (
        [[0, 1, 2, 3, 0, 1, 2, 3]],
        [[0, 1, 2, 3, 7, 8, 9, 10]],
        [list(range(8)), [0, 0, 1, 2, 3, 4, 5, 6]],
    ):
        with pytest.raises(UnsupportedError, match=r"position_ids: .*packed sequences"):
            ours(ids, position_ids=torch.tensor(positions), use_cache=False)
    later = torch.arange(5, 13)[None]
    assert_close(*(model(ids, position_ids=later, use_cache=False).logits for model in (ours, peer)))


@torch.no_grad()
def test_a_compiled_model_is_right_and_refuses_packed_sequences() -> None:
    ours, peer = causal_pair("Qwen3", {})
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    ids = tokens(2, 21)
    want = peer(ids, use_cache=False).logits
    assert_close(compiled(ids, use_cache=False).logits, want)
    begin = compiled(ids[:, :8])
    assert_close(compiled(ids[:, 8:], past_key_values=begin.past_key_values).logits, want[:, 8:])
    packed = torch.cat([torch.arange(10), torch.arange(11)])[None]
    with pytest.raises(RuntimeError, match="packed sequences"):
        compiled(ids, position_ids=packed, use_cache=False)


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_models_without_such_attention_are_refused(name: str, tmp_path: Path) -> None:
    config_name, sentence = REFUSED_MODELS[name]
    config, model = getattr(transformers, config_name)(**TINY), getattr(transformers, name)
    sentence = f'{name}: .*{sentence}.* not built with attn_implementation="headrace"'
    with pytest.raises(UnsupportedError, match=sentence):
        model._from_config(copy.deepcopy(config), attn_implementation="headrace")
    made = model(copy.deepcopy(config))
    for asked in ("headrace", {"": "headrace"}):
        with pytest.raises(UnsupportedError, match=sentence):
            made.set_attn_implementation(asked)
    made.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match=sentence):
        model.from_pretrained(tmp_path, attn_implementation="headrace")


@pytest.mark.parametrize("family", ["Phimoe", "Qwen2Moe"])
@torch.no_grad()
def test_windows_that_only_the_mask_knows_are_refused(family: str) -> None:
    sizes = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = f"{family}ForCausalLM"
    ours, peer = pair(config_of(f"{family}Config", sizes), model)
    assert_close(ours(tokens(2, 21)).logits, peer(tokens(2, 21)).logits)
    window = {"sliding_window": 6, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 4}
    with pytest.raises(UnsupportedError, match=f"{model}: sliding windows of models that do not pass them"):
        model_of(config_of(f"{family}Config", {**sizes, **window}), model, "headrace")


def test_disable_takes_back_the_refusal_of_models() -> None:
    enabled = transformers.PreTrainedModel.set_attn_implementation
    integrations.disable()
    assert transformers.PreTrainedModel.set_attn_implementation is enabled.__wrapped__


@pytest.mark.parametrize("family", HYBRIDS)
@torch.no_grad()
def test_other_states_are_refused(family: str) -> None:
    sizes, kind = HYBRIDS[family]
    ours, peer = causal_pair(family, sizes)
    ids = tokens(2, 9)
    assert_close(ours(ids, use_cache=False).logits, peer(ids, use_cache=False).logits)
    sentence = f'layer 0 of [a-z0-9_]+ is "{kind}", which HeadraceCache does not hold, expected "full_attention"'
    with pytest.raises(UnsupportedError, match=sentence):
        ours(ids)


@pytest.mark.parametrize("name", MASKS)
@torch.no_grad()
def test_other_masks_are_refused(name: str) -> None:
    config_name, sizes, sentence = MASKS[name]
    model = model_of(config_of(config_name, sizes), name, "headrace")
    with pytest.raises((UnsupportedError, InvalidArgumentError), match=sentence):
        model(tokens(2, 21), **({"use_cache": False} if "Causal" in name else {}))


@pytest.mark.parametrize("name", ["position_bias", "s_aux", "sinks", "indices", "block_indices", "cu_seq_lens_q"])
def test_other_parts_of_attention_are_refused(name: str) -> None:
    states = torch.zeros(1, 2, 3, 16)
    with pytest.raises(UnsupportedError, match=f"headrace: {name}: .* are not built"):
        integrations.headrace_attention(torch.nn.Module(), states, states, states, None, **{name: torch.zeros(1)})


@torch.no_grad()
def test_attention_in_both_directions_is_that_of_transformers() -> None:
    ours, peer = pair(config_of("BertConfig", {}), "BertModel")
    mask = torch.ones(2, 21, dtype=torch.long)
    mask[0, 16:] = 0
    got, want = (model(tokens(2, 21), attention_mask=mask).last_hidden_state[mask.bool()] for model in (ours, peer))
    assert_close(got, want)


@pytest.mark.parametrize("family", ["Qwen3", "Qwen3_5Text"])
@torch.no_grad()
def test_a_cache_of_another_batch_is_refused(family: str) -> None:
    ours, _ = causal_pair(family, GDN if family == "Qwen3_5Text" else {})
    cache = ours(tokens(1, 5)).past_key_values
    with pytest.raises(InvalidArgumentError, match="the cache holds 1 sequences, and the batch has 2"):
        ours(tokens(2, 5), past_key_values=cache)


@pytest.mark.parametrize("family", ["Qwen3", "Qwen3_5Text", "Mistral"])
@torch.no_grad()
def test_dynamic_and_offloaded_caches_become_ours_and_static_ones_are_refused(family: str) -> None:
    ours, peer = causal_pair(family, GDN if family == "Qwen3_5Text" else {})
    ids = tokens(2, 9)
    options = {"max_new_tokens": 8, "do_sample": False}
    want = peer.generate(ids, **options).tolist()
    assert ours.generate(ids, past_key_values=transformers.DynamicCache(config=ours.config), **options).tolist() == want
    assert ours.generate(ids, cache_implementation="offloaded", **options).tolist() == want
    with pytest.raises(InvalidArgumentError, match="HeadraceCache"):
        ours.generate(ids, cache_implementation="static", **options)
