"""headrace.compat: the origins' import paths lead to headrace, with and without the origins."""

import importlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import headrace.diffusion  # noqa: E402
from headrace.errors import InvalidArgumentError  # noqa: E402

import headrace.attention  # noqa: E402
from headrace import compat  # noqa: E402


@pytest.fixture
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


def test_pymllm_paths(installed: None) -> None:
    import pymllm.engine
    import pymllm.mem_cache
    from pymllm.engine.forward_batch import ForwardBatch, ForwardMode
    from pymllm.layers.attention.attention_backend import AttentionBackend
    from pymllm.layers.attention.flashinfer_backend import FlashInferAttnBackend
    from pymllm.layers.attention.gdn_backend import GDNAttnBackend, GDNForwardMetadata
    from pymllm.layers.attention.hybrid_backend import HybridAttnBackend
    from pymllm.layers.attention.radix_attention import AttentionType, RadixAttention
    from pymllm.layers.attention.radix_linear_attention import RadixLinearAttention
    from pymllm.mem_cache.memory_pool import GDNPool, KVPool, ReqToTokenPool, TokenToKVPoolAllocator

    classes = [ForwardBatch, ForwardMode, AttentionBackend, FlashInferAttnBackend, GDNAttnBackend, GDNForwardMetadata]
    classes += [HybridAttnBackend, AttentionType, RadixAttention, RadixLinearAttention]
    classes += [GDNPool, KVPool, ReqToTokenPool, TokenToKVPoolAllocator]
    assert all(getattr(headrace.attention, x.__name__) is x for x in classes)
    assert FlashInferAttnBackend is headrace.attention.HeadraceAttnBackend
    assert pymllm.engine.ForwardMode is ForwardMode
    assert pymllm.mem_cache.KVPool is KVPool


@pytest.mark.parametrize("name", ["DecodeMetadata", "PrefillMetadata", "WrapperDispatch", "should_use_tensor_core"])
def test_names_of_flashinfers_kernels_are_refused(installed: None, name: str) -> None:
    for module in ("pymllm.layers.attention", "pymllm.layers.attention.flashinfer_backend"):
        with pytest.raises(ImportError, match=f"headrace.attention has no {name}: it is about FlashInfer's kernels"):
            getattr(importlib.import_module(module), name)
        assert not hasattr(importlib.import_module(module), "another_name")


def test_diffulex_paths(installed: None) -> None:
    import diffulex.attention.metadata
    from diffulex.attention import fetch_attn_metadata
    from diffulex.attention.attn_impl import Attention, reference_torch_attention, triton_attention
    from diffulex.attention.metadata import AttnMetaDataBase, set_fetch_fn_for_attn_metadata
    from diffulex.mixin.multi_block import MultiBlockAttnMetaDataMixin

    assert Attention is headrace.diffusion.Attention
    mixin = importlib.import_module("diffulex.mixin.multi_block.attention_metadata").MultiBlockAttnMetaDataMixin
    assert MultiBlockAttnMetaDataMixin is headrace.diffusion.MultiBlockAttnMetaDataMixin is mixin
    assert AttnMetaDataBase is headrace.diffusion.AttnMetaDataBase
    assert reference_torch_attention is headrace.diffusion.reference_torch_attention
    assert triton_attention is headrace.diffusion.triton_attention
    metadata = diffulex.attention.metadata.AttnMetaDataBase()
    set_fetch_fn_for_attn_metadata(lambda: metadata)
    assert fetch_attn_metadata() is headrace.diffusion.fetch_attn_metadata() is metadata


def test_headrace_keeps_its_own_names(installed: None) -> None:
    importlib.import_module("pymllm.layers.attention.radix_attention")
    assert headrace.attention.radix_attention.__spec__.name == "headrace.attention.radix_attention"
    assert headrace.attention.__spec__.name == headrace.attention.__name__ == "headrace.attention"


def test_modules_that_headrace_lacks_are_named(installed: None) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"has no module 'pymllm\.layers\.attention\.gdn_chunkwise'"):
        importlib.import_module("pymllm.layers.attention.gdn_chunkwise")
    with pytest.raises(ModuleNotFoundError, match=r"has no module 'diffulex\.attention\.step_plan'"):
        importlib.import_module("diffulex.attention.step_plan")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'pymllm\.models'"):
        importlib.import_module("pymllm.models")


def test_uninstall_leaves_nothing() -> None:
    before, path = set(sys.modules), list(sys.meta_path)
    compat.install()
    compat.install()
    importlib.import_module("pymllm.mem_cache.memory_pool")
    importlib.import_module("diffulex.attention.attn_impl")
    importlib.import_module("diffulex.mixin.multi_block.attention_metadata")
    compat.uninstall()
    compat.uninstall()
    assert set(sys.modules) == before
    assert sys.meta_path == path
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pymllm.layers.attention.radix_attention")
    assert headrace.attention.radix_attention.RadixAttention is headrace.attention.RadixAttention


def write(root: pathlib.Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MODEL = """
import torch
from pymllm.engine.forward_batch import ForwardBatch
from pymllm.layers.attention.radix_attention import RadixAttention

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = RadixAttention(2, 8, 8**-0.5, 1, layer_id=0)

    def forward(self, x, forward_batch: ForwardBatch):
        q, k, v = x.split([16, 8, 8], dim=-1)
        return self.attn(q, k, v, forward_batch)
"""


@pytest.fixture
def origin(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """An installed package of the origin's shape, whose attention must not be imported."""
    broken = "raise AssertionError('the origin is imported')\n"
    write(
        tmp_path,
        {
            "pymllm/__init__.py": "is_origin = True\n",
            "pymllm/layers/__init__.py": "from pymllm.layers.attention.radix_attention import RadixAttention\n",
            "pymllm/layers/attention/__init__.py": broken,
            "pymllm/layers/attention/radix_attention.py": broken,
            "pymllm/engine/__init__.py": "",
            "pymllm/engine/forward_batch.py": "class ForwardBatch: is_origin = True\n",
            "pymllm/models/__init__.py": MODEL,
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] in ("pymllm", "diffulex")]:
        del sys.modules[name]


def test_installed_origin_keeps_its_other_modules(origin: pathlib.Path) -> None:
    compat.install()
    models = importlib.import_module("pymllm.models")
    pymllm = importlib.import_module("pymllm")
    assert pymllm.is_origin
    assert models.ForwardBatch.is_origin
    assert isinstance(models.Layer().attn, headrace.attention.RadixAttention)
    assert pymllm.layers.attention.radix_attention is headrace.attention.radix_attention
    compat.uninstall()
    assert not hasattr(pymllm.layers, "attention")
    with pytest.raises(AssertionError, match="the origin is imported"):
        importlib.import_module("pymllm.layers.attention")


def test_installed_diffulex_keeps_its_strategies(origin: pathlib.Path) -> None:
    mixin = "diffulex/mixin/multi_block"
    base = "from diffulex.attention.metadata import AttnMetaDataBase\n"
    write(
        origin,
        {
            "diffulex/__init__.py": "",
            "diffulex/attention/__init__.py": "raise AssertionError('the origin is imported')\n",
            "diffulex/mixin/__init__.py": "",
            f"{mixin}/__init__.py": f"from {mixin.replace('/', '.')}.attention_metadata import Mixin\n",
            f"{mixin}/attention_metadata.py": f"{base}class Mixin(AttnMetaDataBase): pass\n",
        },
    )
    compat.install()
    found = importlib.import_module("diffulex.mixin.multi_block").Mixin
    assert found.__mro__[1] is headrace.diffusion.AttnMetaDataBase


def test_install_after_the_origin_is_refused(origin: pathlib.Path) -> None:
    attention = "pymllm/layers/attention"
    write(origin, {f"{attention}/__init__.py": "", f"{attention}/radix_attention.py": "RadixAttention = int\n"})
    importlib.import_module("pymllm.layers")
    path = list(sys.meta_path)
    with pytest.raises(InvalidArgumentError, match=r"pymllm\.layers\.attention.* is imported already"):
        compat.install()
    assert sys.meta_path == path


def test_model_code_of_the_origin_runs(origin: pathlib.Path) -> None:
    """A model of the origin's imports, an engine's batch of headrace's classes."""
    compat.install()
    layer = importlib.import_module("pymllm.models").Layer()
    ha = headrace.attention
    table = ha.ReqToTokenPool(2, 8, "cpu")
    backend = ha.FlashInferAttnBackend(2, 1, 8, torch.float32, torch.float32, 8, table.req_to_token, "cpu", 2)
    row = table.alloc(1)[0]
    table.write((row, slice(0, 3)), torch.tensor([1, 2, 3]))
    batch = ha.ForwardBatch(
        forward_mode=ha.ForwardMode.EXTEND,
        batch_size=1,
        input_ids=torch.zeros(3, dtype=torch.int32),
        req_pool_indices=torch.tensor([row]),
        seq_lens=torch.tensor([3], dtype=torch.int32),
        out_cache_loc=torch.tensor([1, 2, 3]),
        extend_seq_lens=torch.tensor([3], dtype=torch.int32),
        extend_prefix_lens=torch.tensor([0], dtype=torch.int32),
        token_to_kv_pool=ha.KVPool(8, 1, 1, 8, "cpu", torch.float32),
        attn_backend=backend,
    )
    backend.init_forward_metadata(batch)
    x = torch.randn(3, 32)
    out = layer(x, batch)
    assert torch.allclose(out[0], x[0, 24:].repeat(2))  # the first token sees itself only
    assert out.shape == (3, 16)


def test_install_alone_imports_no_torch() -> None:
    code = "import sys, headrace.compat; headrace.compat.install(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
