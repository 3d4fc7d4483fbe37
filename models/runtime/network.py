"""A small neural network as plain arrays, evaluated with numpy.

Dense layers with a ReLU between them, added up in double precision: matrix libraries differ in the
order in which they add, and no choice between near equals shall depend on the host. What is read
from disk is checked once by `Network.unpack` and handed to no other package, so a forged model can
be wrong but do no harm.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock

import numpy as np
from threadpoolctl import ThreadpoolController

MAX_WIDTH = 1024
"""Numbers that a layer may have."""
MAX_LAYERS = 8
"""Layers of weights."""
REACH = 4.0
"""Standard deviations from the mean beyond which a feature says no more: nothing was seen there."""
MAX_OUTPUT = 50.0
"""What may be predicted: it predicts logarithms, and e^50 fits into a float."""
_MAX_SUM = 1e30
"""What no sum of a layer may reach, so that none overflows."""
_limiting = Lock()
"""Held while matrix libraries have one thread."""


def _forget() -> None:
    """Have a forked process not wait for a thread of its parent."""
    global _limiting
    _limiting = Lock()


os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True, eq=False)
class Network:
    """Layers that turn the features of a config into one number for each of some outputs."""

    logarithmic: np.ndarray
    """bool [features]: which features count by log2(1 + x); they are 0 or more."""
    mean: np.ndarray
    """float32 [features]: of what was learned from, after that."""
    deviation: np.ndarray
    """float32 [features]: the same one's standard deviation, above 0."""
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Weights and biases, in order: float32 [inputs, outputs] and [outputs]."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers between the layers: features first, outputs last."""
        return (len(self.mean), *(len(bias) for _, bias in self.layers))

    @cached_property
    def _exact(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """The layers in double precision."""
        return tuple((w.astype(np.float64), b.astype(np.float64)) for w, b in self.layers)

    def pack(self) -> bytes:
        """The arrays, one behind the other, as little-endian float32."""
        arrays = (
            self.logarithmic,
            self.mean,
            self.deviation,
            *(a for pair in self.layers for a in pair),
        )
        return b"".join(array.astype("<f4").tobytes() for array in arrays)

    @staticmethod
    def packed_bytes(widths: Sequence[int]) -> int:
        """Length of what `pack` returns.

        Raises:
            ValueError: no network has such widths.
        """
        if not (1 < len(widths) <= MAX_LAYERS + 1) or any(
            type(width) is not int or not 0 < width <= MAX_WIDTH for width in widths
        ):
            raise ValueError(f"layers of {list(widths)!r:.100}")
        weights = sum((above + 1) * below for above, below in zip(widths, widths[1:], strict=False))
        return 4 * (3 * widths[0] + weights)

    @classmethod
    def unpack(cls, content: bytes, widths: Sequence[int]) -> Network:
        """Read what `pack` returned, of `packed_bytes`, and check all that a prediction relies on.

        Raises:
            ValueError: it is no sound network; says why.
        """
        numbers = np.frombuffer(content, "<f4").astype(np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError("a weight that is no number")
        shapes = [(widths[0],)] * 3
        for above, below in zip(widths, widths[1:], strict=False):
            shapes += [(above, below), (below,)]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        parts = zip(np.split(numbers, ends), shapes, strict=True)
        logarithmic, mean, deviation, *rest = (part.reshape(shape) for part, shape in parts)
        if not np.isin(logarithmic, (0, 1)).all() or deviation.min() <= 0:
            raise ValueError("a scale that is none")
        layers = tuple(zip(rest[::2], rest[1::2], strict=True))
        most = np.full(widths[0], REACH)
        for weights, bias in layers:
            most = most @ np.abs(weights).astype(np.float64) + np.abs(bias)
        if not most.max() < _MAX_SUM:
            raise ValueError(f"weights that add up to {most.max():g}")
        return cls(logarithmic > 0, mean, deviation, layers)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Evaluate the network: float32 [rows, outputs], within `MAX_OUTPUT`.

        Features are float32 [rows, features], without NaN.
        """
        # The threads of a matrix library wait actively for each other: where compilers keep the
        # cores busy, that takes many times as long as to multiply so little in one. The limit is
        # the process's: of two that overlap, the second would put back what the first had set.
        with _limiting, _blas().limit(limits=1):
            values = self._values(self.scaled(features))
        return np.clip(values, -MAX_OUTPUT, MAX_OUTPUT).astype(np.float32)

    def scaled(self, features: np.ndarray) -> np.ndarray:
        """What the first layer sees of features: float64 array [rows, features]."""
        rows = features.astype(np.float64)
        take_logarithms(rows, self.logarithmic)
        return np.clip((rows - self.mean) / self.deviation, -REACH, REACH)

    def _values(self, rows: np.ndarray) -> np.ndarray:
        """What the last layer adds up to, from scaled rows."""
        for index, (weights, bias) in enumerate(self._exact):
            rows = (np.maximum(rows, 0) if index else rows) @ weights + bias
        return rows


@cache
def _blas() -> ThreadpoolController:
    """The matrix libraries of this process. Looking for them takes longer than to multiply."""
    return ThreadpoolController().select(user_api="blas")


def take_logarithms(rows: np.ndarray, logarithmic: np.ndarray) -> None:
    """Replace x by log2(1 + x) in the columns of rows that are ``logarithmic``."""
    # Those of a forged model may be below 0.
    rows[:, logarithmic] = np.log2(1 + np.maximum(rows[:, logarithmic], 0))
