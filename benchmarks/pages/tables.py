"""What do the results say? Renders the tables of README and docs from ``benchmarks/results``.

``python benchmarks/pages/tables.py``. A table stands in any of `PAGES` between ``<!-- table: NAME
-->`` and ``<!-- end of table -->``, and is written anew; a test asserts that nothing would change.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.operands import K_GROUPS

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import hook_tables
import learner_tables
from cells import Figures
from runner import RESULTS

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
TABLES: dict[str, Callable[[Figures], str]] = {
    "overview": hook_tables.overview,
    "locked": learner_tables.locked,
    "regret": learner_tables.regret,
    "regret by m": learner_tables.by_m,
    "beside library": learner_tables.beside_library,
    "deferral": learner_tables.deferral,
    "cross regime": learner_tables.cross_regime,
    "among stock": learner_tables.among_stock,
    "operands": learner_tables.operands,
    "new gpu": learner_tables.new_gpu,
    "unmeasured gpu": learner_tables.unmeasured_gpu,
    "adaptive k": learner_tables.adaptive_k,
    "learning on a gpu": learner_tables.learning,
    "common kernels": learner_tables.common_kernels,
    "screens": learner_tables.screens,
    "compile time": hook_tables.compile_time,
    "kernel speed": hook_tables.kernel_speed,
    "llama kinds": hook_tables.llama_kinds,
    "grouped": hook_tables.grouped,
    "grouped regret": learner_tables.grouped_regret,
    "grouped beside library": learner_tables.grouped_library,
    "gradients regret": partial(learner_tables.grouped_regret, groups=K_GROUPS),
    "gradients beside library": partial(learner_tables.grouped_library, groups=K_GROUPS),
    "real models": hook_tables.real_models,
    "real models 2.15": hook_tables.real_models_newer,
    "real models H100": hook_tables.real_models_h100,
    "int8 weights": hook_tables.int8_weights,
    "timing": hook_tables.timing,
}
"""What may stand in a page: by name, what renders it."""
_SLOT = re.compile(r"(<!-- table: (?P<name>[^>]*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


class Results(dict[str, Figures]):
    """The figures of each benchmark by the name of its result file, read when first asked for."""

    def __missing__(self, name: str) -> Figures:
        """Read a result file."""
        self[name] = json.loads((RESULTS / f"{name}.json").read_text())["figures"]
        return self[name]


def fill(text: str, figures: Figures) -> str:
    """Put each table that a text has a place for into it, from the figures of all benchmarks.

    Raises:
        TilecastError: a place asks for a table that is not known.
    """

    def table(slot: re.Match[str]) -> str:
        if (name := slot["name"]) not in TABLES:
            raise TilecastError(f"table {name!r} is not known; allowed: {', '.join(TABLES)}")
        return f"{slot[1]}{TABLES[name](figures)}\n{slot[3]}"

    return _SLOT.sub(table, text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    results = Results()
    for page in filter(Path.exists, PAGES):
        text = fill(page.read_text(), results)
        write_atomically(page, lambda path, text=text: path.write_text(text))
        print(json.dumps({"page": str(page), "tables": len(_SLOT.findall(text))}))
