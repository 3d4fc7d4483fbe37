"""What the hook's benchmarks compile with: GEMM backends that compete, and what became of them."""

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, cast
from unittest.mock import patch

MODE = "max-autotune-no-cudagraphs"
BASELINE = "default"
NVGEMM = "NVGEMM"
NVGEMM_SINCE = [2, 14]  # the first PyTorch whose NVGEMM backend knows Hopper


@dataclass(frozen=True)
class Variant:
    """One way to run: ``eager``, ``default``, or GEMM backends and, behind ``k=``, a shortlist.

    ``unfused`` behind that keeps scales and activations out of tilecast kernels. ``eager TILECAST``
    is eager mode with tilecast's switch on.
    """

    name: str

    @property
    def eager(self) -> bool:
        """Whether nothing is compiled."""
        return self.name.split()[0] == "eager"

    @property
    def backends(self) -> str | None:
        """Those that compete under max-autotune; None where nothing is tuned."""
        return None if self.eager or self.name == BASELINE else self.name.split()[0]

    @property
    def k(self) -> int | str | None:
        """How long tilecast's shortlist is, where tilecast competes."""
        k = self.name.partition("k=")[2].partition(" ")[0]
        return int(k) if k.isdigit() else k or None

    @property
    def fuse(self) -> bool:
        """Whether scales and activations may be part of a tilecast kernel."""
        return "unfused" not in self.name.split()


def share_ptxas() -> None:
    """Have this process use the kernels of Triton that Inductor's workers compile for it.

    Those of PyTorch 2.11 take the ptxas that PyTorch brings, if it brings one; the process itself
    takes Triton's. If their versions differ, it compiles all that they compiled once more, one
    after the other (kernels/EXPERIMENTS.md).
    """
    import torch

    ptxas = Path(torch.__file__).parent / "bin" / "ptxas"
    if ptxas.exists():
        os.environ.setdefault("TRITON_PTXAS_PATH", str(ptxas))


def available(variants: Iterable[Variant], torch_version: str | None = None) -> list[Variant]:
    """Those that a PyTorch, by default the one here, has all backends of."""
    import torch

    found = (torch_version or torch.__version__).split(".")[:2]
    return [v for v in variants if v.backends != NVGEMM or [*map(int, found)] >= NVGEMM_SINCE]


@contextmanager
def competing(variant: Variant) -> Iterator[list[str]]:
    """Inside, what `compiled` made runs as the variant says; yields the code it is compiled to."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    from tilecast.inductor_hook import installed
    from tilecast.inductor_hook.offer.offer import ON_TRIAL

    sources: list[str] = []

    def save(code: str) -> None:
        # A product that is compiled to be timed is not what runs. What is cached has no graph.
        if getattr(V.graph, "name", None) != ON_TRIAL:
            sources.append(code)

    # As `torch._inductor.utils.run_and_get_code`, which also forgets all that was compiled before.
    saving = patch.object(GraphLowering, "save_output_code", save)
    hook: AbstractContextManager[None] = nullcontext()
    if variant.k is not None:
        hook = installed(variant.k, fuse=variant.fuse)
    if variant.eager and "TILECAST" in variant.name:
        hook = _switched_on()
    with hook, saving:
        yield sources


@contextmanager
def _switched_on() -> Iterator[None]:
    from tilecast.inductor_hook import eager

    eager.enable()
    try:
        yield
    finally:
        eager.disable()


def compiled(
    function: Callable[..., Any], variant: Variant, *, only_gemms: bool = False
) -> Callable[..., Any]:
    """A function under `torch.compile`, for fixed shapes; compiles when first called.

    Under max-autotune, or with nothing but GEMMs tuned.

    The function itself where the variant compiles nothing. Else one of its own code object: that is
    where Dynamo keeps what it compiled, and where one variant would find another's. With options,
    not a patched configuration: a backward pass compiles in another thread, which sees no patch.
    """
    import torch
    from torch._inductor import list_mode_options

    if variant.eager:
        return function
    options: dict[str, Any] = {}
    if variant.backends is not None:
        options |= {"max_autotune_gemm": True} if only_gemms else list_mode_options(MODE)
        options |= {"max_autotune_gemm_backends": variant.backends}
    plain = cast(FunctionType, function)
    name = re.sub(r"\W", "_", f"{plain.__name__}_{variant.name}")
    code = plain.__code__.replace(co_name=name)
    own = FunctionType(code, plain.__globals__, name, None, plain.__closure__)
    return torch.compile(own, options=options, dynamic=False)


@contextmanager
def without_choice() -> Iterator[Counter[str]]:
    """Inside, why the hook offers nothing for a product, and for how many."""
    from tilecast.inductor_hook.offer.offer import log

    found: Counter[str] = Counter()

    def note(record: logging.LogRecord) -> bool:
        if record.msg == "tilecast: no choice for %s: %s":
            found[": ".join(map(str, record.args or ()))] += 1
        return False  # nothing of it is printed

    level = log.level
    log.setLevel(logging.INFO)
    log.addFilter(note)
    try:
        yield found
    finally:
        log.removeFilter(note)
        log.setLevel(level)


def linear(x: Any, w: Any) -> Any:
    """Multiply x (m, k) by w (n, k) transposed, as ``torch.nn.Linear`` does."""
    return x @ w.t()


_CALL = re.compile(
    r"^\s*(?:(?P<kind>triton_tem|cutedsl|nv_universal_gemm)_\w+\.run|extern_kernels\.\w*mm\w*)\(",
    re.MULTILINE,
)
_KINDS = {"triton_tem": "triton", "cutedsl": "tilecast", "nv_universal_gemm": "nvgemm"}
_NAMES = {
    "tilecast": re.compile(r"StaticMatmul\.named\(\s*['\"](\w+)"),
    "nvgemm": re.compile(r"_KERNEL_NAME = ['\"]([^'\"]+)"),
}


def gemm_calls(code: str) -> dict[str, int]:
    """How many GEMMs of generated code each backend does; a CuteDSL template is tilecast's."""
    return dict(Counter(_KINDS.get(call["kind"], "aten") for call in _CALL.finditer(code)))


def tilecast_share(gemms: Mapping[str, int]) -> float | None:
    """Share of the GEMMs that tilecast does; None where Inductor does without GEMMs."""
    return gemms.get("tilecast", 0) / sum(gemms.values()) if gemms else None


def selection(code: str) -> str:
    """What does the one GEMM of generated code: the backend, and the kernel where it has a name."""

    def fact(name: str) -> str:
        found = re.search(rf"\b{name}\b(?:\s*:\s*tl\.constexpr)?\s*=\s*(\d+)", code)
        return found[1] if found else "?"

    calls = gemm_calls(code)
    if not calls:
        return "pointwise"  # with one row, Inductor multiplies and sums without a GEMM
    kind = " and ".join(sorted(calls))
    if kind == "triton":
        block = "x".join(fact(f"BLOCK_{axis}") for axis in "MNK")
        return f"triton {block} stages {fact('num_stages')} warps {fact('num_warps')}"
    name = kind in _NAMES and _NAMES[kind].search(code)
    return f"{kind} {name[1]}" if name else kind
