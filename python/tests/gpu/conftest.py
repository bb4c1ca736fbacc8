"""Tests that need a GPU: pytest python/tests/gpu"""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs torch with a CUDA device")
