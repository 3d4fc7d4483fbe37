"""What the checks need to know of PyTorch, whose import takes most of `tilecast doctor`'s time.

As a script this prints it as JSON: a process of its own may crash, and works beside the checks. It
imports PyTorch as a script of the user would, with the extensions that PyTorch loads by itself:
one that breaks the import, or warns, is found.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict, dataclass

from tilecast.heuristics.errors import one_line


@dataclass(frozen=True)
class TorchFacts:
    """What PyTorch says of itself."""

    version: str
    cuda: str | None
    """The version of CUDA that it is built with; None without."""
    sees_gpu: bool
    cute_dsl: list[str] | None
    """Versions of CuTe DSL under which it registers its own operators; None where it has none."""


def torch_facts() -> TorchFacts:
    """What the PyTorch of this process says; raises whatever its import does."""
    import torch

    try:
        from torch._native import cutedsl_utils

        listed = [str(one) for one in cutedsl_utils._CUTEDSL_REQUIRED_VERSIONS]
    # Both are private: another version of PyTorch may lack either.
    except (ImportError, AttributeError):
        listed = None
    version, cuda = str(torch.__version__), torch.version.cuda
    return TorchFacts(version, cuda, torch.cuda.is_available(), listed)


if __name__ == "__main__":
    gc.disable()
    try:
        facts = torch_facts()
    except Exception as error:
        sys.exit(one_line(error))
    print(json.dumps(asdict(facts)), flush=True)
    os._exit(0)
