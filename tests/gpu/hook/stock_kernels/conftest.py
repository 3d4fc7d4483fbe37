"""What is shared by the tests of PyTorch's own kernels, which stand in the model's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor import select_algorithm
from torch._inductor.utils import fresh_cache


@pytest.fixture
def nothing_fails() -> None:
    """These tests watch the warnings, and in some a ranking has to fail."""


@pytest.fixture
def benchmarked() -> Iterator[Callable[..., tuple[torch.Tensor, list[Any]]]]:
    """Compiles a function; gives its result and the choices of a class, as they are benchmarked."""
    seen: list[Any] = []

    def run(kind: str, function: Callable, *inputs: torch.Tensor, **how: Any) -> Any:
        seen.clear()
        torch._dynamo.reset()
        with fresh_cache():
            result = torch.compile(function, **how)(*inputs)
        return result, [choice for choice in seen if type(choice).__name__ == kind]

    select_algorithm.add_preprocessing_fn(lambda choices: seen.extend(choices) or choices)
    yield run
    select_algorithm.clear_preprocessing_fns()
