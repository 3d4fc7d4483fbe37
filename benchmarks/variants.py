"""What `torch.compile` is asked for: GEMM backends that compete, and what became of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast
from unittest.mock import patch

MODE = "max-autotune-no-cudagraphs"
NVGEMM = "NVGEMM"
NVGEMM_SINCE = (2, 14)
"""The first PyTorch whose NVGEMM backend knows Hopper."""


@dataclass(frozen=True)
class Variant:
    """One way to compile."""

    name: str
    """What tables call it."""
    backends: str | None
    """GEMM backends that compete under max-autotune; None for the default mode, which does not
    tune."""
    k: int | str | None = None
    """Shortlist of ours, where we compete."""

    def options(self) -> dict[str, Any]:
        """What `torch.compile` takes: the mode's options and the backends.

        Options, not a patched configuration: a backward pass compiles in another thread, which sees
        no patch.
        """
        from torch._inductor import list_mode_options

        if self.backends is None:
            return {}
        return list_mode_options(MODE) | {"max_autotune_gemm_backends": self.backends}

    def available(self, torch_version: tuple[int, ...]) -> bool:
        """Whether a PyTorch has all its backends."""
        return self.backends != NVGEMM or torch_version[:2] >= NVGEMM_SINCE


def torch_version() -> tuple[int, ...]:
    """Major and minor version."""
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def named(
    variants: Iterable[Variant], wanted: Iterable[str] | None, torch_version: tuple[int, ...]
) -> list[Variant]:
    """Those of some names, or all; without those that this PyTorch lacks."""
    names = None if wanted is None else set(wanted)
    return [
        v for v in variants if (names is None or v.name in names) and v.available(torch_version)
    ]


@contextmanager
def competing(variant: Variant) -> Iterator[list[str]]:
    """Inside, what `compiled` made compiles as the variant says; yields the code it becomes."""
    from torch._inductor.graph import GraphLowering

    from tilecast.inductor_hook import installed

    sources: list[str] = []
    with ExitStack() as stack:
        if variant.k is not None:
            stack.enter_context(installed(variant.k))
        # What `torch._inductor.utils.run_and_get_code` does, which also forgets all that was
        # compiled before.
        stack.enter_context(patch.object(GraphLowering, "save_output_code", sources.append))
        yield sources


def compiled(function: Callable[..., Any], variant: Variant) -> Callable[..., Any]:
    """A function under `torch.compile`, for fixed shapes; compiles when first called.

    Of its own code object: that is where Dynamo keeps what it compiled, and where one variant would
    find another's.
    """
    import torch

    plain = cast(FunctionType, function)
    name = re.sub(r"\W", "_", f"{plain.__name__}_{variant.name}")
    own = FunctionType(
        plain.__code__.replace(co_name=name), plain.__globals__, name, None, plain.__closure__
    )
    return torch.compile(own, options=variant.options(), dynamic=False)


def linear(x: Any, w: Any) -> Any:
    """Multiply x (m, k) by w (n, k) transposed, as ``torch.nn.Linear`` does."""
    return x @ w.t()


_CALL = re.compile(
    r"^\s*(?:(?P<kind>triton_tem|cutedsl|nv_universal_gemm)_\w+\.run"
    r"|(?P<aten>extern_kernels\.\w*mm\w*))\(",
    re.MULTILINE,
)
_KINDS = {"triton_tem": "triton", "cutedsl": "tilecast", "nv_universal_gemm": "nvgemm"}
_TILECAST = re.compile(r"StaticMatmul\.named\(\s*['\"](?P<config>\w+)")
_NVGEMM = re.compile(r"_KERNEL_NAME = ['\"](?P<name>[^'\"]+)")


def gemm_calls(code: str) -> dict[str, int]:
    """How many GEMMs of generated code each backend does; of templates in CuteDSL only ours."""
    found: Counter[str] = Counter()
    for call in _CALL.finditer(code):
        found[_KINDS[call["kind"]] if call["kind"] else "aten"] += 1
    return dict(found)


def selection(code: str) -> str:
    """What does the one GEMM of generated code: the backend, and the kernel where it has a name."""
    calls = gemm_calls(code)
    if not calls:
        return "pointwise"  # with one row, Inductor multiplies and sums without a GEMM
    kind = " and ".join(sorted(calls))
    if kind == "tilecast" and (ours := _TILECAST.search(code)):
        return f"tilecast {ours['config']}"
    if kind == "nvgemm" and (theirs := _NVGEMM.search(code)):
        return f"nvgemm {theirs['name']}"
    if kind == "triton":
        facts = [_fact(code, f"BLOCK_{axis}") for axis in "MNK"]
        return (
            f"triton {'x'.join(facts)} stages {_fact(code, 'num_stages')} "
            f"warps {_fact(code, 'num_warps')}"
        )
    return kind


def _fact(code: str, name: str) -> str:
    found = re.search(rf"\b{name}\b(?:\s*:\s*tl\.constexpr)?\s*=\s*(\d+)", code)
    return found[1] if found else "?"
