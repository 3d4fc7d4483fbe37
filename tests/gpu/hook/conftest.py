"""What the tests of the hook share: one cache of kernels, a fresh start, and compiled functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from on_gpu.hook import failures, forget_kernels, hooked
from on_gpu.tensors import TOLERANCE, Function, error, exact
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from tilecast.inductor_hook import eager


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One object cache for these tests, the processes that they start and pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "hook-objects"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def afresh(gpu_with_a_model: None, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with the same numbers, and as if nothing had been compiled or multiplied."""
    monkeypatch.setenv("TILECAST_CACHE", str(objects))
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    forget_kernels()


@pytest.fixture(autouse=True)
def nothing_fails(afresh: None) -> Iterator[Callable[[], None]]:
    """Checks, behind each test and whenever it is called, that the hook counted no failure.

    Tests in which something has to fail put a fixture of the same name in its place.
    """

    def check() -> None:
        assert failures() == []

    yield check
    check()


@pytest.fixture
def compiled(nothing_fails: Callable[[], None]) -> Callable[..., tuple[torch.Tensor, str]]:
    """Compiles a function with TILECAST among the backends; gives its result and its code.

    Options are those of `on_gpu.hook.hooked`.
    """

    def run(function: Function, *operands: Any, **options: Any) -> tuple[torch.Tensor, str]:
        torch._dynamo.reset()
        counters.clear()
        with hooked(**options):
            result, codes = run_and_get_code(torch.compile(function, fullgraph=True), *operands)
        nothing_fails()
        # The graph's own comes last, behind that of what is compiled on trial.
        return result, codes[-1]

    return run


@pytest.fixture
def close(compiled: Callable) -> Callable[..., str]:
    """Compiles and compares with float32, whoever multiplies; gives the code."""

    def run(function: Function, *operands: Any, within: float = TOLERANCE, **options: Any) -> str:
        result, code = compiled(function, *operands, **options)
        expected = exact(function, *operands)
        assert result.shape == expected.shape
        assert result.numel() == 0 or error(result, expected) < within
        return code

    return run


@pytest.fixture
def ours(close: Callable[..., str]) -> Callable[..., str]:
    """Does the same, and checks that a kernel of ours multiplied."""

    def run(function: Function, *operands: torch.Tensor, **options: Any) -> str:
        code = close(function, *operands, **options)
        assert counters["tilecast"]["problems"] == 1
        assert "StaticMatmul.named" in code
        return code

    return run


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Gives what tilecast has logged."""
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("tilecast")]


@pytest.fixture
def model_here(model_of: Callable[..., Path]) -> Callable[..., Path]:
    """`model_of` with the shipped model of this GPU."""
    return partial(model_of, gpu=torch.cuda.get_device_name())


@pytest.fixture
def matrix_model(model_here: Callable[..., Path]) -> Path:
    """A model that has seen matrices added."""
    return model_here("bf16:rcr bf16:rcr:c")


@pytest.fixture
def switched_on(model_here: Callable[..., Path]) -> Iterator[Callable[..., None]]:
    """Switches routing on with a model of some operands, and off behind the test."""

    def enable(operands: str = "bf16:rcr", **options: Any) -> None:
        forget_kernels()
        eager.enable(model_here(operands, **options))

    yield enable
    eager.disable()
