"""attn_implementation="headrace" beside transformers' own attention, on tiny random models."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import headrace.integrations as integrations  # noqa: E402
from headrace.errors import InvalidArgumentError, UnsupportedError  # noqa: E402
from tiny_models import GDN, assert_close, config_of, pair, tokens  # noqa: E402

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "qwen3_window": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"sliding_window": 6, "query_pre_attn_scalar": 16}),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**GDN, **EXPERTS, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1},
    ),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", GDN),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {**GDN, **EXPERTS, "shared_expert_intermediate_size": 32},
    ),
}
HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    integrations.enable()
    yield
    integrations.disable()


def models(family: str) -> tuple[object, object]:
    """The same random model twice: by headrace, and by transformers' "eager" attention."""
    config_name, model_name, sizes = FAMILIES[family]
    return pair(config_of(config_name, sizes), model_name)


def padded(lengths: list[int], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) of sequences of these lengths."""
    most = max(lengths)
    ids, place = tokens(len(lengths), most), torch.arange(most)
    count = torch.tensor(lengths)[:, None]
    mask = place >= most - count if side == "left" else place < count
    return torch.where(mask, ids, 0), mask.long()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_transformers(family: str) -> None:
    ours, peer = models(family)
    ids = tokens(2, 77)
    assert_close(ours(ids, use_cache=False).logits, peer(ids, use_cache=False).logits)
    assert_close(ours(ids).logits, peer(ids).logits)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_is_no_token(family: str, side: str) -> None:
    ours, peer = models(family)
    ids, mask = padded([9, 1, 70], side)
    got, want = ours(ids, attention_mask=mask).logits, peer(ids, attention_mask=mask).logits
    assert_close(got[mask.bool()], want[mask.bool()])
    alone = ours(ids[:1, mask[0].bool()]).logits
    assert_close(got[0, mask[0].bool()], alone[0])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_steps_give_the_logits_of_the_whole(family: str) -> None:
    ours, peer = models(family)
    ids = tokens(2, 140)
    want = peer(ids, use_cache=False).logits
    cache = integrations.HeadraceCache(ours.config)
    end = 0
    for size in (70, 1, 1, 60, 1, 7):
        got = ours(ids[:, end : end + size], past_key_values=cache).logits
        assert_close(got, want[:, end : end + size])
        end += size
    cache.reset()
    assert_close(ours(ids[:, :5], past_key_values=cache).logits, want[:, :5])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_generate_gives_the_tokens_of_transformers(family: str) -> None:
    ours, peer = models(family)
    ids, mask = padded([9, 4, 33], "left")
    for options in ({}, {"num_beams": 3}, {"prefill_chunk_size": 8}):
        options = {"max_new_tokens": 40, "do_sample": False, **options}
        got = ours.generate(ids, attention_mask=mask, **options)
        want = peer.generate(ids, attention_mask=mask, **options)
        assert got.tolist() == want.tolist(), options


@torch.no_grad()
def test_a_model_gets_our_cache_by_default() -> None:
    ours, peer = models("qwen3_5")
    assert isinstance(ours(tokens(1, 3)).past_key_values, integrations.HeadraceCache)
    assert not isinstance(peer(tokens(1, 3)).past_key_values, integrations.HeadraceCache)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
@torch.no_grad()
def test_other_caches_are_refused(family: str) -> None:
    ours, _ = models(family)
    cache = transformers.DynamicCache()
    with pytest.raises(InvalidArgumentError, match="HeadraceCache"):
        [ours(tokens(1, size), past_key_values=cache) for size in (5, 1)]


def test_training_and_weights_are_refused() -> None:
    ours, _ = models("qwen3")
    with pytest.raises(InvalidArgumentError, match="gradient"):
        ours(tokens(1, 5))
    with torch.no_grad(), pytest.raises(UnsupportedError, match="output_attentions"):
        ours(tokens(1, 5), output_attentions=True)


@torch.no_grad()
def test_holes_in_a_mask_are_refused() -> None:
    ours, _ = models("qwen3")
    mask = torch.tensor([[1, 0, 1, 1]])
    with pytest.raises(InvalidArgumentError, match="padding between tokens"):
        ours(tokens(1, 4), attention_mask=mask)


@torch.no_grad()
def test_disable_takes_everything_back() -> None:
    ours, _ = models("qwen3_5")
    integrations.disable()
    assert type(transformers.DynamicCache(config=ours.config)) is transformers.DynamicCache
    integrations.enable()
    assert type(transformers.DynamicCache(config=ours.config)) is integrations.HeadraceCache
