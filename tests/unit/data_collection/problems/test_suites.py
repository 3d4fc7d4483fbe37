"""The suites hold what they promise, the same every time."""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
from tilecast.data_collection.problems.language_models import MODELS
from tilecast.data_collection.problems.mixtures import (
    COUNT,
    GRADIENTS,
    MIXTURES,
    MOST_BYTES,
    ROWS,
    TRAINED_ROWS,
    weight_bytes,
)
from tilecast.data_collection.problems.suites import (
    LOCKED_PROBLEMS,
    SUITES,
    problems,
    suite,
)
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16

PEAK_FLOPS = 6e14
"""What a good bf16 kernel sustains on an H200, FLOP a second."""


OTHERS = {"grouped", "grouped_random", "gradients", "gradients_random", "locked"}


def families(name):
    return {problem.family for problem in suite(name)}


def model(name):
    (found,) = [model for model in MODELS if model.name == name]
    return found


@pytest.mark.parametrize("name", sorted(SUITES.keys() - OTHERS))
def test_problems_are_distinct_linear_layers_in_bf16(name):
    found = suite(name)
    assert len(set(found)) == len(found) > 0
    for problem in found:
        assert problem.operands == LINEAR_BF16
        assert problem.batch == 1
        assert problem.n % 8 == 0
        assert problem.k % 8 == 0


def test_grouped_problems_are_layers_of_experts_of_every_size():
    found = suite("grouped")
    assert len(set(found)) == len(found) == COUNT
    assert {problem.operands.text for problem in found} == {
        "bf16:rcr:row-groups",
        "bf16:rrr:row-groups",
    }
    layers = {layer for mixture in MIXTURES for layer in mixture.layers()}
    assert {(problem.batch, problem.n, problem.k) for problem in found} == layers
    # Of this many, no size is missing from the first ones.
    assert {problem.m for problem in found[:60]} == set(ROWS)
    assert (8, 28672, 4096) in layers
    assert (8, 7168, 2048) in layers


def test_gradients_are_of_weights_of_experts_as_they_are_stored():
    found = suite("gradients")
    assert len(set(found)) == len(found) == GRADIENTS
    assert {problem.operands.text for problem in found} == {"bf16:crr:k-groups"}
    layers = {layer for mixture in MIXTURES for layer in mixture.layers()}
    # Of the models whose weights are stored the other way no two extents are each other's.
    shapes = {(problem.batch, problem.m, problem.n) for problem in found}
    assert shapes <= layers | {(experts, k, n) for experts, n, k in layers}
    assert {problem.k for problem in found} == set(TRAINED_ROWS)
    assert (min(TRAINED_ROWS), max(TRAINED_ROWS)) == (1024, 32768)
    assert max(map(weight_bytes, found)) <= MOST_BYTES


def test_random_groups_have_few_rows_and_an_n_and_k_that_no_layer_has():
    found = suite("grouped_random")
    assert len(set(found)) == len(found) == 270
    assert len(families("grouped_random")) == 90
    assert not families("grouped_random") & families("grouped")
    assert {problem.operands.text for problem in found} == {
        "bf16:rcr:row-groups",
        "bf16:rrr:row-groups",
    }
    for least, most in ((17, 64), (65, 256), (257, 1024)):
        assert sum(least <= problem.m <= most for problem in found) == 90
    assert max(problem.stored_bytes for problem in found) < 1.05 * MOST_BYTES
    groups = sorted({problem.batch for problem in found})
    assert groups[0] == 2 and groups[-1] >= 100


def test_random_gradients_have_extents_that_no_layer_has():
    found = suite("gradients_random")
    assert len(set(found)) == len(found) == 80
    assert len(families("gradients_random")) == 40
    assert not families("gradients_random") & families("gradients")
    assert {problem.operands.text for problem in found} == {"bf16:crr:k-groups"}
    for least, most in ((1024, 4096), (4096, 32768)):
        assert sum(least <= problem.k <= most for problem in found) == 40
    assert max(map(weight_bytes, found)) <= MOST_BYTES
    assert max(problem.flops for problem in found) <= 1e12


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # QKV, attention out, gate and up, down, (router,) lm_head
        (
            "Mistral-7B-v0.3",
            [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (32768, 4096)],
        ),
        # A vocabulary of 49155 breaks the 16-byte rule, one of 256000 is too wide.
        ("granite-3.1-8b-base", [(6144, 4096), (4096, 4096), (25600, 4096), (4096, 12800)]),
        ("gemma-2-2b", [(4096, 2304), (2304, 2048), (18432, 2304), (2304, 9216)]),
        (
            "Qwen3-30B-A3B",
            [(5120, 2048), (2048, 4096), (1536, 2048), (2048, 768), (128, 2048), (151936, 2048)],
        ),
    ],
)
def test_layers_of_published_models(name, expected):
    assert list(model(name).families()) == expected


def test_training_covers_every_suite_and_every_band_of_m():
    ms = defaultdict(list)
    for problem in suite("training"):
        ms[problem.family].append(problem.m)
    assert len(ms) >= 70
    assert all(4 <= len(found) <= 9 for found in ms.values())
    # The random ones came later, and are no layer of any model; the locked ones are for scoring.
    for name in set(SUITES) - (OTHERS - {"grouped"}) - {"random"}:
        assert families(name) & set(ms), name

    found = [problem.m for problem in suite("training")]
    assert len(found) >= 400
    assert (min(found), max(found)) == (1, 16384)
    bands = Counter("small" if m <= 64 else "medium" if m <= 1024 else "large" for m in found)
    assert all(0.3 <= count / len(found) <= 0.37 for count in bands.values())
    assert {3, 7, 24, 48, 96, 192, 384, 768, 1000, 1536, 3000, 6144} <= set(found)
    # The rotation wears no m out and forgets none.
    assert all(count >= 10 for count in Counter(found).values())


def test_training_stays_affordable():
    found = suite("training")
    assert 2e12 < max(problem.flops for problem in found) <= 4e12
    assert max(problem.min_bytes for problem in found) <= 4e9
    assert sum(problem.flops for problem in found) / PEAK_FLOPS <= 0.25


def test_problems_of_several_suites_are_distinct_and_in_order():
    both = problems(["int8_issue", "llama_shapes"])
    assert len(set(both)) == len(both) < len(suite("int8_issue")) + len(suite("llama_shapes"))
    assert both[: len(suite("int8_issue"))] == suite("int8_issue")
    assert problems([]) == ()


def test_an_unknown_suite_is_refused_with_the_known_ones():
    with pytest.raises(TilecastError, match="'lama_shapes'.*allowed: training, llm"):
        problems(["square", "lama_shapes"])


def test_random_problems_are_spread_over_n_k_and_every_band_of_m() -> None:
    problems = suite("random")
    assert len(problems) >= 9_900
    assert len({problem.family for problem in problems}) == 1_998
    for extents in ([p.n for p in problems], [p.k for p in problems]):
        assert min(extents) >= 256 and max(extents) <= 32768
        # Log-uniform: half lie below the geometric middle.
        assert 0.4 < sum(extent < 2896 for extent in extents) / len(extents) < 0.6
    for least, most in ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 16384)):
        assert sum(least <= p.m <= most for p in problems) >= 1_900
    assert not {p.family for p in problems} & {p.family for p in suite("training")}


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_no_locked_family_is_near_one_that_was_measured(gpu: str) -> None:
    data = shipped_data(hardware(gpu))
    assert data is not None
    measured = np.log([problem.family for problem in read_dataset(data).problems()])
    for problem in suite("locked"):
        apart = abs(measured - np.log(problem.family)).max(1)
        assert apart.min() >= 0.03, problem


def test_locked_problems_are_of_200_families_and_every_size() -> None:
    found = suite("locked")
    assert len({problem.family for problem in found}) == len(found) == 200
    linear = [problem.m for problem in found if problem.operands == LINEAR_BF16]
    assert len(linear) == 180
    for least, most, count in ((1, 16, 40), (17, 64, 20), (65, 256, 50), (257, 16384, 45)):
        assert sum(least <= m <= most for m in linear) >= count
    other = families("training") | families("llm") | families("random")
    assert not other & {problem.family for problem in found}
    # A run that is cut short stands for all: any part has problems of every size and origin.
    sources = [row[-1] == "random" for row in json.loads(LOCKED_PROBLEMS.read_text())]
    assert sum(sources) == 100
    for start in range(0, 200, 50):
        assert 15 <= sum(sources[start : start + 50]) <= 35
