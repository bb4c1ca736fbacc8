"""Answers imports of pymllm's and Diffulex's attention packages with headrace's classes.

    import headrace.compat
    headrace.compat.install()
    from pymllm.layers.attention.radix_attention import RadixAttention  # headrace.attention.RadixAttention
    from diffulex.attention.attn_impl import Attention                  # headrace.diffusion.Attention

Call it before the origin's packages are imported. The packages `pymllm.layers.attention` and `diffulex.attention` are
replaced whether or not the origin is installed. Where it is not, `pymllm.engine`, `pymllm.mem_cache` and
`diffulex.mixin.multi_block` are answered, too.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence

from headrace.errors import InvalidArgumentError

# Modules of the origins, and those that stand for them.
REPLACED = {
    "pymllm.layers.attention": "headrace.attention",
    "pymllm.layers.attention.attention_backend": "headrace.attention.attention_backend",
    "pymllm.layers.attention.flashinfer_backend": "headrace.attention.flashinfer_backend",
    "pymllm.layers.attention.gdn_backend": "headrace.attention.gdn_backend",
    "pymllm.layers.attention.hybrid_backend": "headrace.attention.hybrid_backend",
    "pymllm.layers.attention.radix_attention": "headrace.attention.radix_attention",
    "pymllm.layers.attention.radix_linear_attention": "headrace.attention.radix_linear_attention",
    "diffulex.attention": "headrace.diffusion",
    "diffulex.attention.attn_impl": "headrace.diffusion.attn_impl",
    "diffulex.attention.metadata": "headrace.diffusion.metadata",
}

# The same, only where the origin is not installed. None: a package with the classes and functions of its modules.
FALLBACKS = {
    "pymllm": None,
    "pymllm.layers": None,
    "pymllm.engine": None,
    "pymllm.engine.forward_batch": "headrace.attention.forward_batch",
    "pymllm.mem_cache": None,
    "pymllm.mem_cache.memory_pool": "headrace.attention.memory_pool",
    "diffulex": None,
    "diffulex.mixin": None,
    "diffulex.mixin.multi_block": None,
    "diffulex.mixin.multi_block.attention_metadata": "headrace.diffusion.multi_block",
}

_PACKAGES = tuple(f"{name}." for name in ("pymllm.layers.attention", "diffulex.attention"))


class _Loader(importlib.abc.Loader):
    """Gives the import system a module that exists already, or a package for such modules."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        if self._target is None:
            return None
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if self._spec is not None:
            module.__spec__ = self._spec  # the import system has put that of the other name there
            return
        for name, target in FALLBACKS.items():
            if target is not None and name.rpartition(".")[0] == module.__name__:
                members = vars(importlib.import_module(target)).items()
                vars(module).update({k: v for k, v in members if getattr(v, "__module__", "").startswith("headrace")})


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, names: Mapping[str, str | None], closed: tuple[str, ...] = ()) -> None:
        self._names = names
        self._closed = closed  # packages that have no other modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._names:
            is_package = any(name.startswith(f"{fullname}.") for name in (*REPLACED, *FALLBACKS))
            return importlib.util.spec_from_loader(fullname, _Loader(self._names[fullname]), is_package=is_package)
        if fullname.startswith(self._closed):
            raise ModuleNotFoundError(
                f"headrace.compat has no module '{fullname}'; it has {', '.join(self._names)}", name=fullname
            )
        return None


_FRONT = _Finder(REPLACED, _PACKAGES)
_BACK = _Finder(FALLBACKS)


def install() -> None:
    """Begins to answer the imports. Calling it again changes nothing. Refused if the origin's modules are imported
    already: models hold their classes then."""
    if _FRONT in sys.meta_path:
        return
    imported = [name for name in sys.modules if name in REPLACED or name.startswith(_PACKAGES)]
    if imported:
        raise InvalidArgumentError(
            f"headrace.compat.install: {', '.join(imported)} is imported already; call install() before that"
        )
    sys.meta_path.insert(0, _FRONT)
    sys.meta_path.append(_BACK)


def uninstall() -> None:
    """Ends what install() began: later imports find the origin's modules, if there are any. Objects that were imported
    stay."""
    for finder in (_FRONT, _BACK):
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    for name in [*REPLACED, *FALLBACKS]:
        module = sys.modules.get(name)
        target = REPLACED.get(name) or FALLBACKS.get(name)
        ours = module is not None and (
            module is sys.modules.get(target or "") or isinstance(getattr(module.__spec__, "loader", None), _Loader)
        )
        if ours:
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                vars(sys.modules[parent]).pop(child, None)
