"""Every failure of headrace: one sentence that says which argument, what was expected and what was found."""


class Error(RuntimeError):
    """A failure. `code` says of which kind: "invalid_argument", "unsupported", "model_file", "out_of_memory",
    "no_device", "io", "cuda", "cancelled" or "internal" (a bug in headrace)."""

    code = "internal"


class InvalidArgumentError(Error, ValueError):
    """The caller's mistake: a shape, a dtype, a range, an unknown name."""

    code = "invalid_argument"


class UnsupportedError(Error, NotImplementedError):
    """A kernel, a format or an option that is not built; the sentence names what is."""

    code = "unsupported"


class OutOfMemoryError(Error, MemoryError):
    """Memory of the host or of a device ran out; the sentence says for what, and which flag helps."""

    code = "out_of_memory"


_OF_CODE = {kind.code: kind for kind in (InvalidArgumentError, UnsupportedError, OutOfMemoryError)}


def error_of(code: str, sentence: str) -> Error:
    """Returns the exception for a failure of the compiled part."""
    error = _OF_CODE.get(code, Error)(sentence)
    error.code = code
    return error
