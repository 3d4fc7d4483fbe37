"""What the model answers the hook: for other operands, for some configs, with own choices."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from fixtures import change_manifest

from tilecast.data_collection.gpu import gpu_model
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.matmul import Matmul
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.select.selection import (
    first,
    hardware_of,
    portfolio,
    ranked,
    shortlist,
)
from tilecast.inductor_hook.settings import Settings, cache_key
from tilecast.kernels.candidates import candidates
from tilecast.kernels.quack_sm90.space import stock_configs
from tilecast.models.runtime import artifact
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic
from tilecast.models.runtime.nearest_gpu import shipped_for

H200 = hardware("H200")
FAMILIES = ((4096, 4096), (12288, 4096), (2112, 7168), (7168, 2048))
EXTENTS = (*range(1, 17, 3), *range(24, 200, 8), *range(210, 2000, 91), *range(2100, 16384, 611))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.usefixtures("hook")
def test_a_symbolic_m_runs_what_a_fixed_one_runs(family: tuple[int, int]) -> None:
    """Wherever the portfolio holds it; and no config that is excluded for an extent."""
    single = Settings(k=1)
    matmul = Matmul(GemmProblem(1024, *family), batched=False, m_range=(1, 16384))
    configs = portfolio(single, tuple(matmul.sweep()), H200)
    assert len(configs) > 5
    held = 0
    for m in EXTENTS:
        problem = GemmProblem(m, *family)
        (picked,) = ranked(single, problem, H200, configs, 1)
        best = shortlist(single, problem, H200)[0].config
        held += best in configs
        assert picked == best or best not in configs, m
        valid = set(candidates(problem, H200))
        assert picked in valid or valid.isdisjoint(configs), m
    assert held >= len(EXTENTS) / 3


@pytest.mark.parametrize(("columns", "k"), [(50257, 4096), (30522, 1024), (51866, 1280)])
def test_a_symbolic_m_with_rows_of_any_length_holds_what_large_ones_run(
    leaving_model: Path, columns: int, k: int
) -> None:
    """The library would win on rows of multiples of 16 bytes, and does not on these."""
    single, longer = Settings(k=1, model=str(leaving_model)), -(-columns // 8) * 8
    matmul = Matmul(GemmProblem(1024, longer, k), False, m_range=(1, 16384), any_rows=True)
    sweep = [problem for problem in matmul.sweep() if problem.m >= 16]
    firsts = [first(single, problem, H200) for problem in sweep]
    assert all(one.deferred for one in firsts)
    assert portfolio(single, tuple(sweep), H200) == ()
    configs = portfolio(single, tuple(matmul.sweep()), H200, matmul.any_rows)
    assert {one.prediction.config for one in firsts} <= set(configs)


@pytest.mark.parametrize("extents", [(1, 6144, 4096), (37, 1112, 1032), (4096, 24576, 1536)])
def test_a_part_of_the_candidates_stands_in_the_order_of_all(
    extents: tuple[int, int, int],
) -> None:
    """Stock kernels, some of which are no candidates: these come last."""
    problem, stock = GemmProblem(*extents), tuple(stock_configs(LINEAR_BF16, H200))
    rivals = candidates(problem, H200)
    order = load_heuristic(H200, LINEAR_BF16).rank(problem, rivals)
    ranking = ranked(Settings(), problem, H200, stock, len(stock))
    known = [config for config in order if config in stock]
    assert list(ranking[: len(known)]) == known
    assert set(ranking) == set(stock)
    assert len(ranking) == len(stock) > len(known) > 0
    for limit in (1, len(known), len(known) + 1):
        assert ranked(Settings(), problem, H200, stock, limit) == ranking[:limit]
    assert ranked(Settings(), problem, H200, stock[::-1], len(stock)) == ranking


@pytest.mark.parametrize(
    ("layout", "dtype", "extents"),
    [
        ("crr", "bf16", (512, 4096, 1001)),
        ("crr", "fp16", (512, 4096, 1001)),
        ("rrr", "bf16", (1001, 4096, 4104)),
        ("ccr", "bf16", (512, 4096, 4104)),
        ("rcr", "fp16", (512, 4096, 4096)),
        ("rcr:bias", "bf16", (512, 4096, 4096)),
        ("rrr:bias", "fp16", (1001, 4096, 4104)),
    ],
)
def test_a_model_of_other_operands_ranks_the_problem_as_it_is(
    layout: str, dtype: str, extents: tuple[int, ...]
) -> None:
    """It was trained on bf16 rcr, whose rows may not be 1001 deep, nor aligned as these are."""
    problem = GemmProblem(*extents, operands=GemmOperands.parse(f"{dtype}:{layout}"))
    heuristic = load_heuristic(H200, LINEAR_BF16)
    rivals = heuristic.candidates(problem)
    expected = list(heuristic.artifact.ranker.rank(problem, rivals))
    predictions = shortlist(Settings(k=5), problem, H200)
    assert [prediction.config for prediction in predictions] == expected[:5]
    assert ranked(Settings(), problem, H200, tuple(rivals), 9) == tuple(expected[:9])


def test_a_model_that_could_not_be_loaded_once_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = GemmProblem(520, 4096, 4096)
    monkeypatch.setattr(selection, "load_heuristic", _refusing)
    selection._heuristic.cache_clear()
    with pytest.raises(TilecastError, match="is on a disk that is away"):
        shortlist(Settings(), problem, H200)
    monkeypatch.undo()
    assert shortlist(Settings(), problem, H200)


def _refusing(*asked: object) -> LearnedHeuristic:
    raise TilecastError("the model is on a disk that is away")


def test_a_kernel_that_failed_where_the_model_was_measured_is_never_offered(
    another_model: Path,
) -> None:
    problem = GemmProblem(512, 4096, 4096)
    own = partial(Settings, model=str(another_model))
    best, second, *_ = (one.config for one in shortlist(own(k=8), problem, H200))
    change_manifest(another_model, lambda m: m.update(failing={"bf16:rcr": [best.name]}))
    assert shortlist(own(k=1), problem, H200)[0].config == second
    for k in (8, "auto"):
        assert best not in {one.config for one in shortlist(own(k=k), problem, H200)}
    assert ranked(own(), problem, H200, (best, second), 2) == (second,)
    assert best not in portfolio(own(k=1), (problem,), H200)


@pytest.mark.parametrize("digest", ["0" * 64, "A" * 64, '"""\nimport os', 7, None])
def test_a_digest_that_is_none_never_gets_into_generated_source(
    another_model: Path, digest: object
) -> None:
    path = another_model / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": digest}))
    with pytest.raises(TilecastError, match="was edited: its digest does not match"):
        Settings(model=str(another_model))


def test_a_model_of_ones_own_says_which_gpu_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a GPU that nobody wrote down here is served without a change of code."""
    new = replace(H200, name="H20", device_names=("NVIDIA H20",), sm_count=78)
    model = shipped_for(new)
    artifact.save(replace(model, measured=model.operands), tmp_path)
    names = ["NVIDIA H20", "NVIDIA H200"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device])
    monkeypatch.setattr(gpu_model, "visible_gpu_names", lambda: names)
    selection._gpu_here.cache_clear()
    settings = Settings(k=3, model=str(tmp_path))
    gpu = hardware_of(0, settings)
    assert gpu == new
    assert hardware_of(1, settings) is H200
    selection._gpu_here.cache_clear()
    assert len(shortlist(settings, GemmProblem(96, 3072, 2048), gpu)) == 3
    with pytest.raises(TilecastError, match="is for H20; allowed: one for H200"):
        shortlist(settings, GemmProblem(96, 3072, 2048), H200)
    # Trained anew after the GPU was described anew.
    later = shipped_for(replace(new, sm_count=77))
    artifact.save(replace(later, measured=later.operands), tmp_path)
    assert hardware_of(0, Settings(model=str(tmp_path))).sm_count == 77
    assert hardware_of(0, settings) == new


@pytest.fixture
def chosen(tmp_path: Path) -> Path:
    """A file that names three configs for a problem, its own order, and leaves another one."""
    few = [one.config.name for one in shortlist(Settings(40), GemmProblem(512, 4096, 4096), H200)]
    path = tmp_path / "choices.csv"
    rows = [f"512,4096,4096,{rank},{few[at]},False" for rank, at in ((2, 20), (1, 30), (3, 0))]
    rows.append(f"64,4096,4096,1,{few[0]},True")
    path.write_text("\n".join(["m,n,k,rank,config,left_to_library", *rows]) + "\n")
    return path


@pytest.mark.usefixtures("hook")
def test_a_file_of_choices_decides_for_its_problems_alone(chosen: Path) -> None:
    problem, plain = GemmProblem(512, 4096, 4096), Settings(40)
    few = [one.config for one in shortlist(plain, problem, H200)]
    expected = {one.config: one.microseconds for one in shortlist(plain, problem, H200)}
    for k, places in ((5, (30, 20, 0)), (2, (30, 20)), (1, (30,)), ("auto", (30, 20, 0))):
        found = shortlist(Settings(k, choices=str(chosen)), problem, H200)
        assert [one.config for one in found] == [few[place] for place in places]
        assert found[0].microseconds == pytest.approx(expected[few[30]])
    for other in (GemmProblem(64, 4096, 4096), GemmProblem(512, 4096, 2048)):
        for k in (1, 3):
            assert shortlist(Settings(k, choices=str(chosen)), other, H200) == shortlist(
                Settings(k), other, H200
            )
    decided = first(Settings(1, choices=str(chosen)), problem, H200)
    assert (decided.prediction.config, decided.deferred) == (few[30], False)


@pytest.mark.usefixtures("hook")
def test_a_file_decides_where_no_model_ranks(chosen: Path) -> None:
    problem, b200 = GemmProblem(512, 4096, 4096), hardware("B200")
    first, *_, last = candidates(problem, b200)
    chosen.write_text(f"m,n,k,config\n512,4096,4096,{last}\n512,4096,4096,{first}\n")
    found = shortlist(Settings(choices=str(chosen)), problem, b200)
    assert [one.config for one in found] == [last, first]
    assert all(type(one.slowdown) is float for one in found)


@pytest.mark.usefixtures("hook")
def test_a_file_decides_for_problems_that_are_added_up_in_stretches_too(tmp_path: Path) -> None:
    problem, path = GemmProblem(16, 512, 16384), tmp_path / "choices.csv"
    last = list(candidates(problem.invariant(), H200, invariant=True))[-1]
    path.write_text(f"m,n,k,config\n16,512,16384,{last}\n")
    settings = Settings(choices=str(path), invariant=True)
    (found,) = shortlist(settings, settings.posed(problem), H200)
    assert found.config == last


@pytest.mark.usefixtures("hook")
def test_graphs_depend_on_what_the_file_of_choices_says(chosen: Path, tmp_path: Path) -> None:
    one, again = Settings(choices=str(chosen)), Settings(choices=str(chosen))
    assert one == again != Settings()
    moved = tmp_path / "moved.csv"
    moved.write_text(chosen.read_text())
    assert Settings(choices=str(moved)) == one
    assert cache_key(one) == cache_key(Settings(choices=str(moved))) != cache_key(Settings())
    chosen.write_text(chosen.read_text().replace(",3,", ",4,"))
    assert Settings(choices=str(chosen)) != one
    with pytest.raises(TilecastError, match="has changed since it was installed"):
        shortlist(one, GemmProblem(512, 4096, 4096), H200)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("m,n,k,config\n512,4096,4096,128x128", "row 1: "),
        ("m,n,k\n512,4096,4096", "row 1: "),
        ("m,n,k,config,rank\n512,4096,4096,64x64x64_c1x1x1_s12_pong_o1_rm8,x", "row 1: "),
        ("", "has no row"),
    ],
)
def test_a_file_that_names_no_choices_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "choices.csv"
    path.write_text(text)
    with pytest.raises(TilecastError, match=reason):
        Settings(choices=str(path))
    with pytest.raises(TilecastError, match="cannot hold choices; allowed: a name that ends in"):
        Settings(choices=str(tmp_path / "choices.txt"))


@pytest.mark.usefixtures("hook")
def test_a_config_that_is_no_candidate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    config = "128x256x64_c2x1x1_s4_coop_o1_rm8"
    path.write_text(json.dumps([{"m": 16, "n": 64, "k": 64, "config": config}]))
    problem = GemmProblem(16, 64, 64)
    assert config not in {one.name for one in candidates(problem, H200)}
    with pytest.raises(TilecastError, match=f"names {config} for 16x64x64, which is no cand"):
        shortlist(Settings(choices=str(path)), problem, H200)
