"""attn_implementation="headrace" on a GPU, beside transformers' own attention."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import headrace.integrations as integrations  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GDN = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
FAMILIES = {"Qwen3": {}, "Qwen3_5": GDN}


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    integrations.enable()
    yield
    integrations.disable()


def model_of(family: str, attention: str, dtype: torch.dtype) -> torch.nn.Module:
    config_name = f"{family}TextConfig" if family == "Qwen3_5" else f"{family}Config"
    config = getattr(transformers, config_name)(**SIZES, **FAMILIES[family])
    config._attn_implementation = attention
    torch.manual_seed(3)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval().to("cuda", dtype)


def padded_ids(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    most = max(lengths)
    ids = torch.randint(2, 96, (len(lengths), most), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(most) >= most - torch.tensor(lengths)[:, None]
    return torch.where(mask, ids, 0).cuda(), mask.long().cuda()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_as_near_to_float32_as_those_of_transformers(family: str) -> None:
    ids, mask = padded_ids([700, 64, 1])
    exact = model_of(family, "eager", torch.float32)(ids, attention_mask=mask).logits
    real = mask.bool()

    def error(attention: str) -> float:
        logits = model_of(family, attention, torch.bfloat16)(ids, attention_mask=mask).logits.float()
        return (logits - exact)[real].norm().item() / exact[real].norm().item()

    ours, theirs = error("headrace"), error("eager")
    assert ours < 1.3 * theirs + 1e-3, (ours, theirs)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_steps_give_the_logits_of_the_whole(family: str) -> None:
    model = model_of(family, "headrace", torch.float32)
    ids, _ = padded_ids([300, 300])
    want = model(ids, use_cache=False).logits
    cache = integrations.HeadraceCache(model.config)
    end = 0
    for size in (200, 1, 1, 98):
        got = model(ids[:, end : end + size], past_key_values=cache).logits
        torch.testing.assert_close(got, want[:, end : end + size], rtol=2e-3, atol=2e-3)
        end += size


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_generate_of_a_padded_batch(family: str) -> None:
    model = model_of(family, "headrace", torch.float32)
    ids, mask = padded_ids([130, 7])
    got = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)[1, ids.shape[1] :]
    alone = model.generate(ids[1:, -7:], max_new_tokens=24, do_sample=False)[0, 7:]
    assert got.tolist() == alone.tolist()
