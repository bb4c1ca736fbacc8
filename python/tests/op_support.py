"""Comparisons of the tests of ops."""

import torch
from hypothesis import settings

random_shapes = settings(deadline=None, derandomize=True, max_examples=60)  # the same shapes in every run

# Of each dtype: absolute and relative difference from float64 on values of size about 1, as tests/support/tolerances.h.
ATTENTION = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (8e-3, 8e-3), torch.float16: (1e-3, 1e-3)}
LSE = {torch.float32: (3e-5, 1e-5), torch.bfloat16: (4e-3, 2e-3), torch.float16: (4e-3, 2e-3)}
GDN = {torch.float32: (2e-5, 1e-4), torch.bfloat16: (1e-2, 1e-2), torch.float16: (5e-5, 6e-4)}
CONV = {torch.float32: (2e-6, 2e-6), torch.bfloat16: (1e-5, 8e-3), torch.float16: (1e-5, 1e-3)}
DENSE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2e-3, 8e-3), torch.float16: (2e-4, 1e-3)}


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float], what: str = "out") -> None:
    """Every element passes: equal, or finite in `want` and within abs + rel * |want|. A NaN on either side fails."""
    assert got.shape == want.shape, f"{what}: shape {list(got.shape)}, expected {list(want.shape)}"
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    allowed = tolerance[0] + tolerance[1] * want.abs()
    fine = (got == want) | (want.isfinite() & ((got - want).abs() <= allowed))
    if fine.all():
        return
    error = torch.where(fine, 0.0, (got - want).abs()).nan_to_num(nan=float("inf"))
    at = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape)) if error.dim() else ()
    raise AssertionError(
        f"{what}: {int((~fine).sum())} of {fine.numel()} elements differ, worst at {at}: got {got[at]}, want {want[at]}"
    )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
