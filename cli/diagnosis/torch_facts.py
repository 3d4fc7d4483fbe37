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
from typing import NamedTuple, NoReturn

from tilecast.heuristics.errors import one_line


class TorchFacts(NamedTuple):
    """What PyTorch says of itself."""

    version: str
    cuda: str | None
    """The version of CUDA that it is built with; None without."""
    sees_gpu: bool
    cute_dsl: list[str] | None
    """Versions of CuTe DSL under which it registers its own operators; None where it has none."""


def print_facts() -> NoReturn:
    """Print what PyTorch says, and end this process; where it does not import, say why."""
    gc.disable()
    try:
        import torch
    except Exception as error:
        sys.exit(one_line(error))
    try:
        from torch._native import cutedsl_utils

        listed = [str(one) for one in cutedsl_utils._CUTEDSL_REQUIRED_VERSIONS]
    # Both are private: another version of PyTorch may lack either.
    except (ImportError, AttributeError):
        listed = None
    version, cuda = str(torch.__version__), torch.version.cuda
    facts = TorchFacts(version, cuda, torch.cuda.is_available(), listed)
    print(json.dumps(facts._asdict()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    print_facts()
