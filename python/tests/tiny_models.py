"""Tiny random models of transformers, by headrace's attention and by transformers' own."""

import copy
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GDN = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}


def config_of(name: str, sizes: dict[str, Any]) -> Any:
    """The config `name` of transformers with these sizes, those of SIZES where they are not named."""
    return getattr(transformers, name)(**{**SIZES, **sizes})


def model_of(config: Any, name: str, attention: str, seed: int = 5) -> Any:
    """A model of transformers with random weights."""
    torch.manual_seed(seed)
    model = getattr(transformers, name)._from_config(copy.deepcopy(config), attn_implementation=attention).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.12 if parameter.ndim > 1 else 0.5)
    return model


def pair(config: Any, name: str) -> tuple[Any, Any]:
    """The same model twice: by headrace, and by transformers' "eager" attention."""
    ours, peer = model_of(config, name, "headrace"), model_of(config, name, "eager")
    peer.load_state_dict(ours.state_dict())
    assert ours.config._attn_implementation == "headrace"
    return ours, peer


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, 96, (batch, length), generator=torch.Generator().manual_seed(seed))


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)
