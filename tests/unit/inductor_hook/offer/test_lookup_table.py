"""PyTorch's lookup table beside the hook: it chooses among PyTorch's templates alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hook_graph import choices_of, linear, lowering, names_of
from torch._inductor.kernel import mm
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V

from tilecast.inductor_hook import install
from tilecast.inductor_hook.handlers import bind
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.kernels.spec import KernelSpec

TEMPLATES = [mm.aten_mm, mm.mm_template]


class Table(LookupTableChoices):
    """A handler whose table does not ask which GPU is there."""

    entries: list[dict[str, Any]]

    def _get_lookup_table(self) -> dict[str, list[dict[str, Any]]]:
        return {"mm": self.entries}

    def make_lookup_key(
        self, kernel_inputs: Any, op_name: str, include_device: bool = False
    ) -> str | None:
        return op_name


@pytest.fixture
def table(hook: list[KernelSpec]) -> Iterator[Table]:
    install(k=2)
    with lowering():
        handler = Table()
        with V.set_choices_handler(bind(handler)):
            yield handler


def test_a_table_chooses_among_stock_templates_and_ours_stand_behind(table: Table) -> None:
    table.entries = [{"template_id": mm.aten_mm.uid}] * 2
    choices = choices_of(linear(), "mm", TEMPLATES)
    assert names_of(choices[:2]) == ["mm", "mm"]
    assert [type(one) for one in choices[2:]] == [TilecastCaller] * 2
