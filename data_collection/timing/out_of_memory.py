"""Whether it is memory that something failed for want of, whichever library says so."""

from __future__ import annotations

_WORDS = ("out of memory", "out_of_memory", "alloc_failed", "allocate memory")
"""CUDA's and torch's, the driver's and the DSL's, cuBLAS's and cuDNN's, and the host's."""


def is_shortage(error: Exception) -> bool:
    """Whether memory is short: each library has a type of its own for it, or none."""
    told = str(error).lower()
    return isinstance(error, MemoryError) or any(words in told for words in _WORDS)
