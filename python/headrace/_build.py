"""What this package was built with."""

from typing import Any

from headrace import _core


def build_info() -> dict[str, Any]:
    """Returns the version, the commit, the compiler, the CPU kernel sets that are built in (best first), the one that
    this machine selects, and whether the CUDA part was built."""
    return _core.build_info()
