"""Gradient-boosted trees through XGBoost's C library.

``import xgboost`` brings pandas, scikit-learn and scipy along and takes seconds; a prediction
needs none of them. The C interface used here is the documented, stable one, so the numbers are the
same.
"""

from __future__ import annotations

import ctypes
import json
import sys
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tilecast.heuristics.errors import TilecastError

_VALUES, _CONTRIBUTIONS = 0, 2
"""Kinds of prediction (XGBoost C API, ``XGBoosterPredictFromDMatrix``)."""
_LIBRARIES = {"win32": "xgboost.dll", "darwin": "libxgboost.dylib"}


@cache
def _library() -> ctypes.CDLL:
    """XGBoost's shared library, found beside its Python package but without importing that.

    Raises:
        TilecastError: XGBoost is not installed, or its library cannot be loaded.
    """
    spec = find_spec("xgboost")
    folders = (spec.submodule_search_locations if spec else None) or []
    name = _LIBRARIES.get(sys.platform, "libxgboost.so")
    for path in (Path(folder, "lib", name) for folder in folders):
        if path.exists():
            try:
                library = ctypes.CDLL(str(path))
            except OSError as error:
                raise TilecastError(f"xgboost cannot be loaded ({error}); reinstall it") from error
            library.XGBGetLastError.restype = ctypes.c_char_p
            return library
    raise TilecastError(
        f"xgboost is not installed ({name} was not found); allowed: xgboost or xgboost-cpu 3.2 "
        "or later; run `pip install xgboost-cpu`"
    )


def _call(name: str, *arguments: object) -> None:
    library = _library()
    if getattr(library, name)(*arguments) != 0:
        message = library.XGBGetLastError().decode(errors="replace").strip().splitlines()
        raise TilecastError(
            f"xgboost refused the model in {name} ({message[-1] if message else 'no reason'}); "
            "allowed: a model that `tilecast train` wrote; train it again"
        )


def _array(features: np.ndarray) -> bytes:
    """The array-interface description that the library reads the matrix by."""
    interface = features.__array_interface__
    return json.dumps(
        {
            "data": interface["data"],
            "shape": features.shape,
            "strides": features.strides,
            "typestr": interface["typestr"],
            "version": 3,
        }
    ).encode()


class Booster:
    """A trained model that predicts in one thread; it is loaded when first asked."""

    def __init__(self, model: bytes):
        """Keep the model.

        Args:
            model: UBJSON, as ``xgboost.Booster.save_raw("ubj")`` returns it.
        """
        self.model = model

    def __getstate__(self) -> dict[str, bytes]:
        """Everything but the handle, which is a pointer of this process."""
        return {"model": self.model}

    @cached_property
    def _handle(self) -> _Handle:
        return _Handle(self.model)

    def predict(self, features: np.ndarray, rounds: tuple[int, int] = (0, 0)) -> np.ndarray:
        """Evaluate trees.

        Args:
            features: float32 array [rows, features].
            rounds: first tree and the one after the last; (0, 0) is all.

        Returns:
            float32 array [rows].

        Raises:
            TilecastError: the model is no XGBoost model, or has another number of features.
        """
        shape, dimensions, values = _outputs()
        _call(
            "XGBoosterPredictFromDense",
            self._handle.pointer,
            _array(features),
            _request(_VALUES, rounds, missing=True),
            None,
            ctypes.byref(shape),
            ctypes.byref(dimensions),
            ctypes.byref(values),
        )
        return np.ctypeslib.as_array(values, (len(features),)).copy()

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """What each feature adds to each prediction (TreeSHAP).

        Args:
            features: float32 array [rows, features].

        Returns:
            float32 array [rows, features + 1]; the last column is the bias, rows sum to the
            prediction.
        """
        matrix = ctypes.c_void_p()
        parameters = json.dumps({"missing": float("nan"), "nthread": 1}).encode()
        _call("XGDMatrixCreateFromDense", _array(features), parameters, ctypes.byref(matrix))
        try:
            shape, dimensions, values = _outputs()
            _call(
                "XGBoosterPredictFromDMatrix",
                self._handle.pointer,
                matrix,
                _request(_CONTRIBUTIONS, (0, 0)),
                ctypes.byref(shape),
                ctypes.byref(dimensions),
                ctypes.byref(values),
            )
            rows, columns = features.shape
            return np.ctypeslib.as_array(values, (rows, columns + 1)).copy()
        finally:
            _call("XGDMatrixFree", matrix)


class _Handle:
    """A booster inside the library, freed with this object."""

    def __init__(self, model: bytes):
        self.pointer = ctypes.c_void_p()
        _call("XGBoosterCreate", None, ctypes.c_uint64(0), ctypes.byref(self.pointer))
        _call("XGBoosterLoadModelFromBuffer", self.pointer, model, ctypes.c_uint64(len(model)))
        _call("XGBoosterSetParam", self.pointer, b"nthread", b"1")

    def __del__(self) -> None:
        if self.pointer:
            _library().XGBoosterFree(self.pointer)


def _outputs() -> tuple:
    return ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64(), ctypes.POINTER(ctypes.c_float)()


@cache
def _request(kind: int, rounds: tuple[int, int], missing: bool = False) -> bytes:
    first, last = rounds
    request = {
        "type": kind,
        "training": False,
        "iteration_begin": first,
        "iteration_end": last,
        "strict_shape": False,
    }
    # Prediction straight from an array needs to be told what stands for a missing value.
    return json.dumps(
        request | ({"missing": float("nan"), "cache_id": 0} if missing else {})
    ).encode()
