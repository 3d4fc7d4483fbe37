"""Whether an error says that memory ran out, whichever package raised it."""

from __future__ import annotations

_WORDS = ("out of memory", "out_of_memory", "alloc_failed", "allocate memory")
"""Words of PyTorch and CUDA, of the driver and the DSL, of cuBLAS and cuDNN, and of the host."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: each package has an exception of its own for it, or none."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(words in message for words in _WORDS)
