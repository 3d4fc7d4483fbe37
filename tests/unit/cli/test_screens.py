"""What people see of ``predict`` and ``doctor`` in terminals of 80, 100 and 140 columns.

The screens are files in tests/unit/data/screens. After a wanted change, write them anew with
``python tests/unit/cli/test_screens.py`` and read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilecast.cli.commands.doctor import report_lines
from tilecast.cli.diagnosis.finding import Finding
from tilecast.cli.options.mnk import TypedProblem, parse_mnk
from tilecast.cli.output.output import shown
from tilecast.cli.output.progress import show_each, show_steps
from tilecast.cli.output.ranking_tables import many_ranking_tables, ranking_tables
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.reporting.table import Table

SCREENS = Path(__file__).parents[1] / "data" / "screens"
WIDTHS = (80, 100, 140)
NAMES = (
    "swap_64x16x64_c1x1x1_s11_pong_o2_rm8",
    "swap_128x16x128_c1x1x1_s12_pong_o1_rm8",
    "128x256x64_c2x1x1_s5_coop_o1_rm8",
)
PROBLEM, OTHER = (parse_mnk(text, LINEAR_BF16) for text in ("16x6143x4096", "8x512x50264x16384"))
VARIABLE = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"


def _measured(times: tuple[float, ...], place: int) -> dict[str, float]:
    return {"microseconds": times[place], "slowdown": times[place] / min(times) - 1}


TIMES = {"burst": (14.2, 14.9, 15.3), "sustained": (14.6, 14.4, 15.9)}
LIBRARY = {
    "name": "torch.mm",
    "at_least_microseconds": 15.84,
    "at_least_over_first": 1.1,
    "deferred": False,
}
RANKING = [
    {
        "rank": place + 1,
        "config": name,
        "predicted_microseconds": 14.4 + place / 3,
        "predicted_slowdown": 0.011 + place / 60,
    }
    for place, name in enumerate(NAMES)
]


def _one(truths: dict[str, tuple[float, ...]]) -> list[Table | str]:
    measured = {
        regime: {
            "best": NAMES[times.index(min(times))],
            "microseconds": min(times),
            "rank": 1,
            "reference_microseconds": 16.2,
        }
        for regime, times in truths.items()
    }
    ranking = [
        {**entry, "measured": {name: _measured(times, i) for name, times in truths.items()}}
        for i, entry in enumerate(RANKING)
    ]
    reasons = [
        {
            "feature": "wave_efficiency_over_least",
            "value": 0.8864,
            "effect": -0.018,
            "meaning": "rounds of tiles over whole rounds: distance from the least of all",
        },
        {"feature": "cluster_m", "value": 1.0, "effect": 0.007, "meaning": "CTAs that share B"},
    ]
    document = {
        "gpu": "H200",
        "power": "robust",
        "candidates": 503,
        "library": LIBRARY,
        "ranking": ranking,
        "roofline": {"microseconds": 10.6, "bound": "memory"},
        "reasons": reasons,
        "measured": measured,
    }
    return ranking_tables(PROBLEM, document)


def _many(problems: list[TypedProblem]) -> list[Table | str]:
    found = {"library": LIBRARY | {"deferred": True}, "ranking": RANKING[:2]}
    document = {"gpu": "H200", "power": "robust", "problems": [found] * len(problems)}
    return many_ranking_tables(problems, document)


def _doctor(*, gpu: bool, torch: bool = True) -> Iterator[str]:
    findings = [
        Finding("python", "3.11.7", True),
        Finding("torch", "2.13.0", True) if torch else Finding("torch", "not installed", False),
        Finding("nvidia-cutlass-dsl", "4.8.0", True),
        Finding("quack-kernels", "0.6.5", True),
        Finding("nvidia-matmul-heuristics", "not installed", False, False, "run `pip install it`"),
        Finding("gpu", "2 x NVIDIA H200, known as H200", True, False)
        if gpu
        else Finding("gpu", "none visible", False, False, "run kernels where there is one"),
        Finding("model", "H200", True),
        Finding("object cache", "/home/somebody/.cache/tilecast: 12 objects", True),
        Finding(
            "inductor",
            f"{VARIABLE} does not name TILECAST",
            False,
            False,
            f"set {VARIABLE}=ATEN,TRITON,TILECAST, or call tilecast.inductor_hook.install()",
        ),
    ]
    about = [
        Finding("choices", f"{len(NAMES)}: {', '.join(NAMES)}", True, False),
        Finding("compiled", "0 of 3 in /home/somebody/.cache/tilecast", False, False, "compile"),
    ]
    document = {"usable": torch, "runs_kernels": gpu and torch}
    return report_lines(findings, about, "16x6143x4096", document)


CASES = {
    "predict": lambda: _one(TIMES),
    "predict_unmeasured": lambda: _one({}),
    "predict_many": lambda: _many([PROBLEM, OTHER]),
    "doctor_gpu": lambda: [*_doctor(gpu=True)],
    "doctor_no_gpu": lambda: [*_doctor(gpu=False)],
    "doctor_broken": lambda: [*_doctor(gpu=False, torch=False)],
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES)
def test_screen(case: str, width: int) -> None:
    screen = shown(CASES[case](), width)
    assert screen == (SCREENS / f"{case}_{width}.txt").read_text()
    wide = [line for line in screen.splitlines() if len(line) > width]
    # A word that is longer than a line is not broken.
    assert all(len(line.split()) <= 2 for line in wide), wide
    for name in NAMES[:2]:
        assert any(name in line for line in screen.splitlines())


def test_what_has_no_room_is_named_and_the_names_stay() -> None:
    table = Table("", {"config": "", "one us": ".1f", "two us": ".1f"}, [(NAMES[0], 1.0, 2.0)])
    assert shown([table], 41).splitlines() == [
        "config".ljust(38) + "one",
        " us".rjust(41),
        "------------------------------------  ---",
        f"{NAMES[0]}  1.0",
        "No room for two us: a wider terminal",
        "  shows more",
        "",
    ]
    assert NAMES[0] in shown([table], 10)
    assert "two us" in shown([table], None)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: show_steps("train", 6, 700.0), "train: 6 steps, some 12 minutes\n"),
        (lambda: show_steps("pack", 1, 61.0), "pack: some 61 s\n"),
        (lambda: show_steps("compile", 2, 1.8), ""),
    ],
    ids=["steps", "one step", "short"],
)
def test_long_work_is_announced_with_its_time(
    work: Callable, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with work() as step:
        step()
    assert capsys.readouterr().err == said


def test_what_is_asked_of_each_of_many_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(show_each("rank", range(3), 10.0)) == [0, 1, 2]
    assert list(show_each("rank", range(3), 1.0)) == [0, 1, 2]
    assert capsys.readouterr().err == "rank: 3 steps, some 30 s\n"


def test_steps_are_told_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((100.0, 120.0, 140.0))
    monkeypatch.setattr("tilecast.cli.output.progress.time.monotonic", lambda: next(now))
    with show_steps("train", 3, 0.0) as step:
        step()
        step()
    assert capsys.readouterr().err.splitlines() == [
        "train: 1 of 3 steps, 40 s left",
        "train: 2 of 3 steps, 20 s left",
    ]


if __name__ == "__main__":
    for case, make in CASES.items():
        for width in WIDTHS:
            (SCREENS / f"{case}_{width}.txt").write_text(shown(make(), width))
