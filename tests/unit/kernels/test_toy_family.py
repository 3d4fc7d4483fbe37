"""A second kernel family is a folder and a registration: everything else works with it as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_family.family import TOY, ToyConfig

from tilecast.cli.commands.compile import compile_output
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels import candidates as asking
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.families import FAMILIES, family_of
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_key, kernel_symbol
from tilecast.kernels.spec import KernelSpec
from tilecast.models.features.features import FEATURE_NAMES, featurize

H200 = hardware("H200")
PROBLEM = GemmProblem(64, 512, 512)
SMALL = ToyConfig(8, 32)
SPACE = asking.space(LINEAR_BF16, H200).configs


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, TOY.name, TOY)


def test_its_configs_are_candidates_behind_those_of_the_first_family() -> None:
    found = asking.candidates(PROBLEM, H200)
    assert list(found)[-2:] == [SMALL, ToyConfig(16, 16)]
    assert len(found.table.configs) == len(SPACE) + 2
    batched = asking.candidates(GemmProblem(64, 512, 512, batch=3), H200)
    assert not any(isinstance(config, ToyConfig) for config in batched)
    assert len(batched)


def test_kernels_of_both_families_are_told_in_onecompile_output(tmp_path: Path) -> None:
    specs = [KernelSpec(config, LINEAR_BF16) for config in (SMALL, SPACE[1], SPACE[0])]
    results = [CompileResult(spec, 0.0) for spec in specs]
    document: Any = compile_output(results, ObjectCache(tmp_path), 0.0).document
    assert [one["config"] for one in document["kernels"]] == [
        SPACE[0].name,
        SPACE[1].name,
        SMALL.name,
    ]


def test_features_are_finite_and_the_others_keep_theirs() -> None:
    found = asking.candidates(PROBLEM, H200)
    table = featurize(PROBLEM, found, H200)
    assert np.isfinite(table).all()
    alone = featurize(PROBLEM, found[:-2], H200)
    own = FEATURE_NAMES.index("waves_over_least")
    np.testing.assert_array_equal(table[:-2, :own], alone[:, :own])


def test_it_compiles_and_has_a_key_of_its_own(tmp_path: Path) -> None:
    specs = [KernelSpec(config, LINEAR_BF16) for config in (SMALL, ToyConfig(16, 16))]
    assert len({kernel_key(spec) for spec in specs}) == 2
    objects = ObjectCache(tmp_path / "objects")
    facts = objects.put(specs[0], family_of(SMALL).compile(specs[0], kernel_symbol(specs[0])))
    assert 0 < facts.registers < 256
    assert facts.spill_bytes == 0
    assert objects.resources(specs[0]) == facts
    assert kernel_symbol(specs[0]).encode() in objects.path(specs[0]).read_bytes()
