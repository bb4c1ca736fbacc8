"""Threads of ops on the CPU."""

from headrace import _core


def num_threads() -> int:
    """Returns the most threads that an op on the CPU runs on, at first all cores that the process may use."""
    threads: int = _core.num_threads()
    return threads


def set_num_threads(n: int) -> None:
    """Sets the most threads that ops on the CPU run on, for the whole process.

    The threads are headrace's own, beside those of torch. They sleep between ops, so both share the cores. A child of
    `fork()` starts its own.

    Raises `InvalidArgumentError` if `n` is below 1.
    """
    _core.set_num_threads(n)
