"""Makes QuACK's GEMMs importable; a module that takes anything of QuACK imports this one first."""

# pyright: reportMissingImports=false

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec

if "quack" not in sys.modules:
    # The package's own __init__ imports its norms and losses, and Triton with them: no GEMM needs
    # these.
    found = find_spec("quack")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("quack is not installed", name="quack")
    bare = ModuleSpec("quack", None, is_package=True)
    bare.submodule_search_locations = list(found.submodule_search_locations)
    sys.modules["quack"] = module_from_spec(bare)

# Before anything else of it: this teaches the DSL's preprocessor what the kernels are written in.
import quack.dsl  # noqa: E402, F401
