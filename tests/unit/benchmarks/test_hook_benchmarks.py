"""What the benchmarks of the Inductor hook do without a GPU: ratios, bars, merging, tables."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import compile_time
import inductor_timing
import kernel_speed
import llama_figure
import llama_shapes
import pytest
import real_models
import runner
import steps
import tables
import torch
import variants
from hook_graph import lowering

from tilecast.inductor_hook.fuse import unfused_baseline

# The runner


def _count(rows: Any) -> dict[str, Any]:
    return {"n": len(rows)}


def _sweep(measured: list[str], longest: float = 0.0) -> runner.Sweep:
    """A sweep over a, b and c that notes what it measures."""

    @contextmanager
    def measuring() -> Iterator[runner.Measure]:
        def measure(item: int) -> list[runner.Row]:
            measured.append("abc"[item])
            return [{"time": item}]

        yield measure

    return runner.Sweep("problem", {"a": 0, "b": 1, "c": 2}, measuring, _count, longest, {"k": 5})


def _asked(
    out: Path, items: slice = slice(None), seconds: float = 60, only: Sequence[str] = ()
) -> argparse.Namespace:
    return argparse.Namespace(out=out, benchmark="some", items=items, deadline=seconds, only=only)


def test_rows_replace_those_of_the_same_identity(tmp_path: Path) -> None:
    options, sweep = _asked(tmp_path / "result.json"), _sweep([])
    for problem, version, time in (("a", "1", 1), ("b", "1", 2), ("a", "1", 3), ("a", "2", 4)):
        sweep.keep(options, {"problem": problem, "torch": version}, [{"t": time}])
    document = json.loads(options.out.read_text())
    assert document["rows"] == [
        {"problem": "b", "torch": "1", "t": 2},
        {"problem": "a", "torch": "1", "t": 3},
        {"problem": "a", "torch": "2", "t": 4},
    ]
    assert document["figures"] == {"1": {"n": 2}, "2": {"n": 1}}


def test_a_result_grows_by_items_and_keeps_what_it_has(tmp_path: Path) -> None:
    out, measured = tmp_path / "made" / "result.json", []
    _sweep(measured).measure(_asked(out, slice(0, 2)))
    _sweep(measured).measure(_asked(out))
    document = json.loads(out.read_text())
    assert measured == ["a", "b", "c"]
    assert [row["run"] for row in document["rows"]] == [0, 0, 1]
    assert document["figures"] == {torch.__version__: {"n": 3}}
    assert (document["benchmark"], document["settings"]) == ("some", {"k": 5})


def test_only_items_of_some_name_are_measured(tmp_path: Path) -> None:
    out, measured = tmp_path / "result.json", []
    _sweep(measured).measure(_asked(out, only=["c", "b"]))
    assert measured == ["c", "b"]


def test_a_run_says_where_and_with_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    monkeypatch.setenv("TILECAST_MODEL", "/home/someone/model")
    _sweep([]).measure(_asked(tmp_path / "result.json"))
    (run,) = json.loads((tmp_path / "result.json").read_text())["provenance"]
    assert {"date", "command", "cpus", "python", "versions", "gpus"} <= run.keys()
    assert run["imported"]["torch"] == torch.__version__
    noted = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "TILECAST_MODEL": "model"}
    assert noted.items() <= run["environment"].items()
    assert run["end"].keys() == {"date", "gpus"}


def test_no_item_starts_that_would_not_end_in_time(tmp_path: Path) -> None:
    measured = []
    _sweep(measured, longest=30.0).measure(_asked(tmp_path / "result.json", seconds=20))
    assert measured == []


def test_what_took_longest_decides_whether_another_would_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two items of 45 of 120 s leave 30: enough for what was said, not for what was seen."""
    now, measured = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Slow(list):
        def append(self, name: str) -> None:
            now[0] += 45
            measured.append(name)

    _sweep(Slow(), longest=30.0).measure(_asked(tmp_path / "result.json", seconds=120))
    assert measured == ["a", "b"]


def test_what_was_measured_in_one_go_replaces_all_that_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = runner.parser("benchmarks/some.py", "?").parse_args([f"--out={tmp_path}/a.json"])
    for figure in (1, 2):
        runner.write(options, {"k": 5}, {"x": figure})
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["benchmark"], document["figures"]) == ("some", {"x": 2})
    assert len(document["provenance"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"] == {"x": 2}


def test_a_result_goes_beside_the_others_unless_told_otherwise() -> None:
    options = runner.parser("benchmarks/kernel_speed.py", "?").parse_args([])
    assert options.out == runner.RESULTS / "kernel_speed.json"


def test_every_committed_result_has_the_one_form() -> None:
    paths = sorted(runner.RESULTS.rglob("*.json"))
    assert len(paths) >= 11
    for path in paths:
        document = json.loads(path.read_text())
        assert [*document] == ["benchmark", "provenance", "settings", "rows", "figures"]
        assert document["benchmark"] == path.stem
        assert runner.RESULTS.with_name(f"{path.stem}.py").exists()
        for run in document["provenance"]:
            assert {"date", "command", "cpus", "python", "versions", "gpus"} <= run.keys()
        assert {row["run"] for row in document["rows"]} <= {*range(len(document["provenance"]))}
        assert runner.compact(document) == path.read_text()


def test_figures_of_committed_sweeps_follow_from_their_rows(tmp_path: Path) -> None:
    for script in (compile_time, real_models, kernel_speed, inductor_timing):
        paths = [*runner.RESULTS.rglob(f"{script.__name__}.json")]
        assert runner.RESULTS / f"{script.__name__}.json" in paths
        for path in paths:
            document = json.loads(path.read_text())
            assert {row["torch"] for row in document["rows"]} == document["figures"].keys()
            for version, figures in document["figures"].items():
                rows = [row for row in document["rows"] if row["torch"] == version]
                assert _near(script.figures(rows), figures)


def _near(found: Any, kept: Any) -> bool:
    """Whether two documents agree, numbers to rounding."""
    if isinstance(kept, dict):
        return found.keys() == kept.keys() and all(_near(found[k], kept[k]) for k in kept)
    return found == (pytest.approx(kept, rel=1e-9) if isinstance(kept, float) else kept)


def test_a_gpu_each_gets_its_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, pathlib\n"
        "name = os.environ['CUDA_VISIBLE_DEVICES']\n"
        "pathlib.Path(__file__).with_name(name).write_text(' '.join(sys.argv[1:]))\n"
    )
    monkeypatch.setattr("sys.argv", [str(script)])
    runner.over_gpus(["0:2", "2:3"], _asked(tmp_path / "out.json", seconds=5, only=["a"]))
    for gpu, piece in enumerate(("0:2", "2:3")):
        said = (tmp_path / str(gpu)).read_text()
        assert said == f"a --out={tmp_path}/out.json --deadline=5 --items {piece}"


def test_a_gpu_that_fails_or_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    monkeypatch.setattr("sys.argv", [str(script)])
    script.write_text("import sys; sys.exit(3)")
    with pytest.raises(subprocess.CalledProcessError):
        runner.over_gpus(["0:1"], _asked(tmp_path / "out.json", seconds=5))
    monkeypatch.setattr(runner, "PROCESS_SECONDS", 0.1)
    script.write_text("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        runner.over_gpus(["0:1"], _asked(tmp_path / "out.json", seconds=0.1))


def test_a_fresh_interpreter_is_timed_and_read() -> None:
    seconds, printed = runner.python("-c", "import time; time.sleep(0.2); print('done')")
    assert printed == "done\n"
    assert 0.2 < seconds < 30


@pytest.mark.parametrize(
    ("text", "expected"), [("0:3", [0, 1, 2]), ("8:", [8, 9]), (":2", [0, 1]), (":", [*range(10)])]
)
def test_span(text: str, expected: list[int]) -> None:
    assert list(range(10))[runner.span(text)] == expected


@pytest.mark.parametrize("text", ["", "3", "a:b", "-1:2", "1:2:3"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="allowed: START:STOP"):
        runner.span(text)


def test_shares_cover_a_span_once() -> None:
    assert runner.shares(slice(0, None), 10, 4) == ["0:2", "2:5", "5:7", "7:10"]
    assert runner.shares(slice(3, 5), 10, 4) == ["3:4", "4:5"]


# Generated code

TILECAST_CODE = """
cutedsl_fused_mm_t_1a2b3c4d = async_compile.cutedsl('cutedsl_fused_mm_t_1a2b3c4d', r\'\'\'
matmul = StaticMatmul.named(
    '128x256x64_c2x1x1_s4_coop_o1_rm8', 'rcr', 'bfloat16', 'bfloat16', batched=False, arch='sm_90a'
)
def call(args):
    cutedsl_fused_mm_t_1a2b3c4d.run(arg1_1, arg0_1, buf0, stream=stream0)
"""
TRITON_CODE = """
@triton_heuristics.template(
num_stages=4,
num_warps=8,
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 128
    BLOCK_K : tl.constexpr = 32
def call(args):
    triton_tem_fused_mm_t_0.run(arg1_1, arg0_1, buf0, 48, 1, 1, stream=stream0)
"""
ATEN_CODE = """
    extern_kernels.mm(arg1_1, reinterpret_tensor(arg0_1, (64, 32), (1, 64), 0), out=buf0)
    triton_poi_fused_add_0.run(buf0, 256, stream=stream0)
    extern_kernels.addmm(arg2_1, buf0, arg3_1, alpha=1, beta=1, out=buf1)
"""


def test_gemms_of_generated_code_are_counted_by_backend() -> None:
    assert variants.gemm_calls(TILECAST_CODE) == {"tilecast": 1}
    assert variants.gemm_calls(TRITON_CODE + ATEN_CODE) == {"triton": 1, "aten": 2}


def test_selection_names_the_kernel() -> None:
    assert variants.selection(TILECAST_CODE) == "tilecast 128x256x64_c2x1x1_s4_coop_o1_rm8"
    assert variants.selection(TRITON_CODE) == "triton 64x128x32 stages 4 warps 8"
    assert variants.selection(ATEN_CODE) == "aten"
    assert variants.selection("    triton_red_fused_mm_t_0.run(a, b)") == "pointwise"
    nvgemm = "_KERNEL_NAME = 'quack_sm90'\n    nv_universal_gemm_fused_mm_0a.run(a, b, c)"
    assert variants.selection(nvgemm) == "nvgemm quack_sm90"


def test_a_name_says_how_a_variant_compiles() -> None:
    found = variants.Variant("ATEN,TRITON,TILECAST k=5 pruned")
    assert (found.backends, found.k) == ("ATEN,TRITON,TILECAST", 5)
    assert (found.fuse, found.prune_triton) == (True, True)
    found = variants.Variant("TILECAST k=auto unfused")
    assert (found.k, found.fuse, found.prune_triton) == ("auto", False, False)
    assert [variants.Variant(f"eager{ours}").eager for ours in ("", " TILECAST")] == [True, True]
    assert variants.Variant("ATEN,TRITON").k is variants.Variant("default").backends is None


def test_generated_code_of_this_pytorch_is_read() -> None:
    variant = variants.Variant("default")
    x, w = torch.randn(8, 64), torch.randn(32, 64)
    with variants.competing(variant) as sources:
        out = variants.compiled(variants.linear, variant)(x, w)
    assert torch.allclose(out, x @ w.t(), atol=1e-5)
    assert variants.selection("\n".join(sources)) == "aten"


def test_code_of_a_product_that_is_compiled_to_be_timed_is_not_what_runs() -> None:
    from torch._inductor.debug import DebugContext
    from torch._inductor.virtualized import V

    unfused_baseline._compiled.cache_clear()
    x, w = torch.randn(8, 64), torch.randn(64, 32)
    stored = (x.shape, x.stride(), w.shape, w.stride(), x.dtype, w.dtype, x.device)
    competing = variants.competing(variants.Variant("default"))
    with competing as sources, lowering(), V.set_debug_handler(DebugContext()):
        call: Any = unfused_baseline._compiled(*stored, False, unfused_baseline.PRODUCT, "ATEN", "")
        (out,) = call([x, w])
    assert torch.allclose(out, x @ w, atol=1e-5)
    assert sources == []


def test_nvgemm_needs_a_pytorch_that_has_it() -> None:
    both = [variants.Variant("TRITON"), variants.Variant("NVGEMM")]
    assert variants.available(both, "2.11.0+cu130") == both[:1]
    assert variants.available(both, "2.15.0") == both


@pytest.mark.parametrize(
    ("name", "backends", "k"),
    [
        ("default", None, None),
        ("ATEN,TRITON", "ATEN,TRITON", None),
        ("TILECAST cold k=5", "TILECAST", 5),
        ("ATEN,TRITON,TILECAST k=auto", "ATEN,TRITON,TILECAST", "auto"),
    ],
)
def test_a_variant_is_what_its_name_says(name: str, backends: str | None, k: object) -> None:
    variant = variants.Variant(name)
    assert (variant.backends, variant.k) == (backends, k)


# Compile time


def _compile_record(variant: str, job: str, seconds: float, first: bool = False) -> dict[str, Any]:
    facts = {"torch": "2.15.0", "run": 0, "variant": variant, "job": job}
    return facts | {"seconds": seconds, "first": first}


@pytest.fixture
def compile_records() -> list[dict[str, Any]]:
    seconds = {
        "ATEN": (0.2, 0.2),
        "TRITON": (3.0, 2.0),
        "NVGEMM": (10.0,),
        "TILECAST cold k=5": (4.5, 1.0),
        "TILECAST k=1": (0.4, 0.2),
        "TILECAST k=5": (1.2, 0.4),
    }
    return [
        _compile_record(name, job, time, job == "a")
        for name, times in seconds.items()
        for job, time in zip("ab", times, strict=False)
    ]


def test_ratio_of_sums_is_over_what_both_compiled() -> None:
    assert compile_time.ratio_of_sums({"a": 1, "b": 2}, {"a": 2, "b": 4, "c": 9}) == 0.5
    assert compile_time.ratio_of_sums({"a": 1}, {"b": 2}) is None


def test_compile_time_figures_and_bars(compile_records: list[dict[str, Any]]) -> None:
    found = compile_time.figures(compile_records)
    assert found["gemm"]["TILECAST k=5"]["to"]["TRITON"] == pytest.approx(1.6 / 5)
    assert found["gemm"]["TILECAST k=5"]["to"]["NVGEMM"] == pytest.approx(0.12)
    assert found["gemm"]["TILECAST cold k=5"]["first"] == 4.5
    assert found["bars"] == {
        "k=5 warm at most 0.35 of TRITON": True,
        "k=5 cold at most TRITON": False,
        "k=1 warm at most 0.1 of TRITON": False,
        "k=5 warm at most 0.1 of NVGEMM": False,
    }


def test_what_failed_to_compile_is_told_and_counts_nowhere(
    compile_records: list[dict[str, Any]],
) -> None:
    broken = _compile_record("NVGEMM", "b", 0) | {"error": "NoValidChoicesError"}
    del broken["seconds"]
    found = compile_time.figures([*compile_records, broken])
    assert found["failed"] == ["NVGEMM b: NoValidChoicesError"]
    assert found["gemm"]["NVGEMM"]["problems"] == 1


def test_turns_rotate_but_cold_comes_first() -> None:
    names = ["ATEN", "TRITON", compile_time.COLD, "TILECAST k=5"]
    assert compile_time.turn(names, 1) == [compile_time.COLD, "TRITON", "TILECAST k=5", "ATEN"]
    assert compile_time.turn(names[:2], 3) == ["TRITON", "ATEN"]


def test_jobs_spare_nvgemm_most_gemms() -> None:
    jobs = compile_time.jobs(compile_time.NAMES)
    assert [extents for job in jobs for extents in job.extents] == [*compile_time.PROBLEMS]
    assert sum("NVGEMM" in job.variants for job in jobs) == 3
    rows = {min(4, next(i for i, top in enumerate((16, 64, 256, 1024, 1e9)) if m <= top))
            for m, _, _ in compile_time.PROBLEMS}  # fmt: skip
    assert len(rows) == 5


def test_ptxas_is_shared_if_pytorch_brings_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", "put back after the test")
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    variants.share_ptxas()
    assert "TRITON_PTXAS_PATH" not in os.environ
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ptxas").touch()
    variants.share_ptxas()
    assert os.environ["TRITON_PTXAS_PATH"] == str(tmp_path / "bin/ptxas")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "the user's")
    variants.share_ptxas()
    assert os.environ["TRITON_PTXAS_PATH"] == "the user's"


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the processes of `compile_time` are asked for; threads stand for them."""
    asked: list[tuple[str, str]] = []

    def compile_job(extents: Any, variant: variants.Variant) -> dict[str, Any]:
        asked.append((variant.name, str(extents)))
        if variant.name == "TRITON":
            raise BrokenProcessPool("killed")
        return {"seconds": 1.0, "selected": "aten"}

    monkeypatch.setattr(compile_time, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(compile_time, "compile_job", compile_job)
    monkeypatch.setattr(compile_time, "warm_up", lambda: asked.append(("all", "warm-up")))
    monkeypatch.setattr(compile_time, "available", list)
    monkeypatch.setenv("TILECAST_CACHE", "put back after the test")
    return asked


def test_all_processes_warm_up_and_take_turns(compilers: list[tuple[str, str]]) -> None:
    first, second = compile_time.jobs(["ATEN", compile_time.COLD, "TILECAST k=5"])[:2]
    with compile_time.measuring() as measure:
        assert compilers == [("all", "warm-up")] * len(compile_time.NAMES)
        rows = measure(first)
        again = measure(second)
    assert [row["variant"] for row in rows] == [compile_time.COLD, "ATEN", "TILECAST k=5"]
    assert [row["variant"] for row in again] == [compile_time.COLD, "TILECAST k=5", "ATEN"]
    assert all(row["first"] for row in rows) and not any(row["first"] for row in again)
    assert rows[0] == {
        **{"variant": compile_time.COLD, "first": True},
        **{"seconds": 1.0, "selected": "aten"},
    }


def test_a_process_that_dies_is_told_and_the_others_go_on(
    compilers: list[tuple[str, str]],
) -> None:
    job = compile_time.jobs(["TRITON", "ATEN"])[0]
    with compile_time.measuring() as measure:
        rows = measure(job)
    assert rows[0] == {"variant": "TRITON", "first": True, "error": "its process died"}
    assert rows[1]["seconds"] == 1.0


def test_what_a_backend_cannot_compile_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_call(extents: Any, variant: variants.Variant) -> dict[str, Any]:
        raise RuntimeError("no " + "x" * 400)

    monkeypatch.setattr(compile_time, "first_call", first_call)
    row = compile_time.compile_job([(1, 2, 3)], variants.Variant("NVGEMM"))
    assert row["error"].startswith("RuntimeError: no xxx")
    assert len(row["error"]) == 300


# Kernel speed


def _speed_record(problem: str, burst: dict[str, list[float]]) -> dict[str, Any]:
    facts = {"torch": "2.15.0", "problem": problem, "variants": "all", "run": 0}
    return facts | {"error": {}, "selected": {}, "microseconds": {"burst": burst}}


@pytest.fixture
def speed_records() -> list[dict[str, Any]]:
    def times(ours: float, theirs: float) -> dict[str, list[float]]:
        return {
            "cuBLAS": [10.0, 10.0],
            "TRITON": [10.0, 10.0],
            "NVGEMM": [12.0, 12.0],
            "ATEN,TRITON": [theirs, theirs],
            "ATEN,TRITON,TILECAST k=5": [ours, ours],
            "TILECAST k=5": [ours, ours * 1.001],
        }

    names = [str(problem) for problem in kernel_speed.PROBLEMS[:2]]
    rows = zip(names, (times(9.0, 10.0), times(10.05, 10.0)), strict=True)
    return [_speed_record(*row) for row in rows]


def test_ratios_are_of_one_record_and_the_last_one_counts() -> None:
    records = [
        _speed_record("a", {"x": [1.0, 1.0], "y": [2.0, 2.0]}),
        _speed_record("b", {"x": [1.0, 1.0]}),
        _speed_record("a", {"x": [3.0, 3.0], "y": [2.0, 1.0]}),
    ]
    assert kernel_speed.ratios(records, "burst", "x", "y") == {"a": [1.5, 3.0]}
    assert kernel_speed.ratios(records, "sustained", "x", "y") == {}


def test_comparison_counts_by_problem() -> None:
    pairs = {"a": [0.9, 0.9], "b": [1.0, 1.004], "c": [1.1, 1.1], "d": [0.98, 0.98]}
    found = kernel_speed.comparison(pairs)
    assert found["faster"] == 0.5
    assert found["faster_by_3_percent"] == 0.25
    assert found["level"] == 0.25
    assert (found["worst_problem"], found["worst"]) == ("c", pytest.approx(1.1))
    assert 0 < found["noise"] < 0.004
    assert found["slower_beyond_noise"] == 1


def test_slower_in_one_batch_alone_is_noise() -> None:
    pairs = {"a": [1.03, 1.0], "b": [1.0, 1.03], "c": [1.0, 1.0]}
    assert kernel_speed.comparison(pairs)["slower_beyond_noise"] == 0


def test_kernel_speed_figures_and_bars(speed_records: list[dict[str, Any]]) -> None:
    random = _speed_record(str(kernel_speed.RANDOM[0]), speed_records[0]["microseconds"]["burst"])
    groups = kernel_speed.figures([*speed_records, random])["groups"]
    assert {group: found["problems"] for group, found in groups.items()} == {
        "layers": 2,
        "random": 1,
    }
    found = groups["layers"]
    assert list(found["compared"]) == ["burst"]
    assert {promise: holds["burst"] for promise, holds in found["bars"].items()} == {
        "selected at most 0.95x of cuBLAS in burst, 0.99x sustained": False,
        "selected never above 1.03x of cuBLAS": True,
        "added to ATEN,TRITON never slower beyond noise": False,
        "k=5 level with or faster than TRITON on 90%": True,
        "k=5 at least 5% faster than NVGEMM in geometric mean": True,
        "k=5 never more than 3% slower than NVGEMM": True,
    }
    assert groups["random"]["bars"][
        "selected at most 0.95x of cuBLAS in burst, 0.99x sustained"
    ] == {"burst": True}


def test_bars_of_what_was_not_measured_are_empty() -> None:
    assert all(holds == {} for holds in kernel_speed.bars({"burst": {}}).values())


def test_wrong_results_are_told(speed_records: list[dict[str, Any]]) -> None:
    errors = {"TRITON": 0.001, "NVGEMM": "RuntimeError: no", "ATEN": float("nan")}
    speed_records[0]["error"] = errors
    assert kernel_speed.figures(speed_records)["failed"] == [
        f"{speed_records[0]['problem']} NVGEMM: RuntimeError: no",
        f"{speed_records[0]['problem']} ATEN: nan",
    ]


def test_load_matters_from_256_rows_on() -> None:
    small, large = (kernel_speed.GemmProblem(m, 64, 64) for m in (255, 256))
    assert kernel_speed.regimes(small) == ("burst",)
    assert kernel_speed.regimes(large) == ("burst", "sustained")


# Steps


def test_steps_take_turns() -> None:
    order: list[str] = []

    def timer(step: Any, count: int) -> float:
        order.append(f"{step()} {count}")
        return {"fast": 1.0, "slow": 20.0}[step()]

    times = steps.interleaved({"a": lambda: "fast", "b": lambda: "slow"}, 3, timer)
    assert times == {"a": [1.0] * 3, "b": [20.0] * 3}
    # Once to learn how many steps fill a round, then in turns.
    assert order == ["fast 2", "slow 2"] + ["fast 5", "slow 1"] + ["slow 1", "fast 5"] + [
        "fast 5",
        "slow 1",
    ]


def test_share_of_no_gemms_is_none() -> None:
    assert variants.tilecast_share({}) is None
    assert variants.tilecast_share({"tilecast": 1, "aten": 3}) == 0.25


# Real models


def _step(milliseconds: float, gemms: dict[str, int], **facts: Any) -> dict[str, Any]:
    """What is kept of a case and a variant."""
    compiled = {"compile_seconds": 9.0, "error": 0.004, "graph_breaks": 0, "hook": {}}
    times = {"milliseconds": milliseconds, "spread": 0.01, "tokens_per_second": 1.0}
    return compiled | {"gemms": gemms, "reasons": {}} | times | facts


@pytest.fixture
def model_records() -> list[dict[str, Any]]:
    hook = {"left to the library: mm": 2, "not covered: mm": 1, "problems": 12, "won": 8}
    steps = {
        "default": _step(2.0, {"aten": 15}),
        "ATEN,TRITON": _step(2.0, {"aten": 15}, compile_seconds=20.0),
        "ATEN,TRITON again": {"milliseconds": 2.02, "spread": 0.01},
        "ATEN,TRITON,TILECAST k=5": {"failed": "RuntimeError: no"},
        "ATEN,TILECAST k=1": _step(1.6, {"aten": 3, "tilecast": 12}, hook=hook),
        "eager": _step(4.0, {}),
    }
    case = {"torch": "2.15.0", "run": 0, "variants": steps}
    alone = {"default": steps["default"], "ATEN,TRITON": {"failed": "RuntimeError: no"}}
    return [
        *(case | {"case": f"GPT-2 XL decode {rows}x1"} for rows in (200, 16)),
        case | {"case": "Llama 3.1 8B int8 decode 16x1", "variants": alone},
    ]


def test_real_models_figures(model_records: list[dict[str, Any]]) -> None:
    found = real_models.figures(model_records)
    cases = found["cases"]["GPT-2 XL decode 16x1"]
    ours = cases["ATEN,TILECAST k=1"]
    assert (ours["speedup"], ours["products"], ours["tilecast_share"]) == (1.25, 15, 0.8)
    assert (ours["left_to_library"], ours["not_covered"]) == (2, 1)
    assert cases["ATEN,TRITON,TILECAST k=5"] == {"failed": "RuntimeError: no"}
    assert "ATEN,TRITON again" not in cases


def test_real_models_beside_aten_and_triton(model_records: list[dict[str, Any]]) -> None:
    found = real_models.figures(model_records)
    # Where they fail there is nothing to be beside of.
    assert [*found["beside"]] == ["GPT-2 XL decode 200x1", "GPT-2 XL decode 16x1"]
    faster = {"cases": 2} | dict.fromkeys(("geomean", "least", "most"), pytest.approx(1.25))
    decoding = found["summary"]["bf16 decode"]
    assert decoding["ATEN,TILECAST k=1"] == faster
    assert decoding["ATEN,TRITON again"]["least"] == pytest.approx(2 / 2.02)
    assert decoding.keys() == {"default", "ATEN,TRITON again", "ATEN,TILECAST k=1", "eager"}
    seconds = found["compiling"]
    assert seconds.keys() == {"default", "ATEN,TILECAST k=1"}
    assert seconds["default"]["most"] == pytest.approx(20 / 9)


def test_cases_are_of_models_and_run_what_they_have_something_for() -> None:
    assert {case.model for case in real_models.CASES.values()} == real_models.MODELS.keys()
    plain, quantized, trained = (
        set(real_models.variants_of(real_models.CASES[f"Llama 3.1 8B {name}"]))
        for name in ("decode 16x1", "int8 decode 16x1", "train 1x2048")
    )
    assert quantized == {*real_models.VARIANTS}
    assert trained == {*quantized, real_models.UNFUSED}
    assert plain == {*trained, *real_models.EAGER}


def test_error_is_over_all_tensors() -> None:
    expected = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])]
    found = [torch.tensor([3.0]), torch.tensor([0.0, 4.5])]
    assert real_models.relative_error(found, expected) == pytest.approx(0.1)


def test_why_nothing_is_offered_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    from torch._inductor.utils import fresh_cache

    variant = variants.Variant("ATEN,TILECAST k=1")
    x, w = torch.randn(8, 64), torch.randn(32, 64)
    with fresh_cache(), variants.without_choice() as reasons, variants.competing(variant):
        variants.compiled(variants.linear, variant)(x, w)
    assert reasons == {"mm: device cpu": 1}
    assert "no choice" not in capsys.readouterr().err


# Llama's shapes


@pytest.fixture
def shape_records() -> list[dict[str, Any]]:
    def record(problem: str, **microseconds: float) -> dict[str, Any]:
        inductor = {b: {"choices": 4, "microseconds": t} for b, t in microseconds.items()}
        times = dict.fromkeys(("burst", "sustained"), microseconds)
        facts = {"torch": "2.15.0", "run": 0, "problem": problem, "inductor": inductor}
        return facts | {"microseconds": times}

    return [
        record("bf16 64x4096x4096", ATEN=10.0, TRITON=20.0, TILECAST=8.0),
        record("bf16 64x4096x11008", ATEN=40.0, TRITON=20.0, TILECAST=8.0),
        record("int8 16x4096x4096", TRITON=5.0),
    ]


def test_means_are_of_backends_that_have_all(shape_records: list[dict[str, Any]]) -> None:
    found = llama_shapes.figures(shape_records)["means"]
    assert found["bf16 64"]["burst"] == pytest.approx({"ATEN": 20, "TRITON": 20, "TILECAST": 8})
    assert found["bf16 64"]["choices"] == pytest.approx(dict.fromkeys(llama_shapes.ALONE, 4))
    assert found["int8 16"]["inductor"] == pytest.approx({"TRITON": 5})


def test_ours_stand_beside_the_better_of_the_others(shape_records: list[dict[str, Any]]) -> None:
    shape_records[0]["microseconds"]["burst"] = {"ATEN": 10.0, "TRITON": 5.0, "TILECAST": 8.0}
    found = llama_shapes.figures(shape_records)["beside"]
    speed = pytest.approx((5 / 8 * 20 / 8) ** 0.5)
    assert found["bf16"]["burst"] == {"problems": 2, "ahead": 1, "speed": speed, "least": 5 / 8}
    assert found["bf16"]["sustained"]["ahead"] == 2
    assert found["int8"]["burst"] == {"problems": 0, "ahead": 0}


def test_each_kind_has_all_shapes_and_the_inputs_of_its_function() -> None:
    assert len(llama_shapes.ITEMS) == 4 * 20
    for kind in llama_shapes.KINDS.values():
        problem = llama_shapes.GemmProblem(32, 64, 128, operands=kind.operands)
        a, b, *scales = inputs = llama_shapes.random_inputs(problem, "cpu")
        out = kind.function(a, b, *llama_shapes.shaped(scales)).float()
        right = llama_shapes.reference(problem, inputs)
        assert torch.linalg.norm(out - right) < 0.01 * torch.linalg.norm(right)


def test_what_inductor_times_is_noted_by_backend() -> None:
    from torch._inductor.kernel.mm import aten_mm
    from torch._inductor.select_algorithm import ExternKernelCaller, get_algorithm_selector_cache

    from tilecast.inductor_hook.fuse.unfused_baseline import without_us

    told = get_algorithm_selector_cache().feedback_saver_fns
    before = list(told)
    aten, without = (ExternKernelCaller.__new__(ExternKernelCaller) for _ in range(2))
    aten.choice, without.choice = aten_mm, without_us()
    with llama_shapes.inductor_timings() as found:
        tell: Any = told[0]
        tell({aten: 0.02, "triton": 0.03, "failed": float("inf")}, "mm", [])
        # Of the same product, ours with its conversion.
        tell({without: 0.05, "triton": 0.04}, "mixed_mm", [])
    assert found == {"ATEN": [20.0], "TRITON": [40.0]}
    assert told == before


def test_shapes_are_drawn_in_panels(shape_records: list[dict[str, Any]]) -> None:
    axes = llama_figure.draw(shape_records).axes
    assert [panel.get_ylabel() for panel in axes] == ["bf16, TFLOP/s", "int8, TFLOP/s"]
    aten, missing = (panel.containers[0].datavalues[0] for panel in axes)  # type: ignore
    assert (aten, missing) == (pytest.approx(2 * 64 * 4096 * 4096 / 10.0 / 1e6), 0)


# Tables


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _figures(script: ModuleType, records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"2.15.0": script.figures(records)}


def test_compile_time_table(compile_records: list[dict[str, Any]]) -> None:
    lines = tables.compile_time(_figures(compile_time, compile_records)).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    ours = ["**TILECAST k=5**", "2", "1.20", "0.80", "1.60", "0.32x", "0.12x"]
    assert _cells(lines[-1]) == ours


def test_kernel_speed_table(speed_records: list[dict[str, Any]]) -> None:
    text = tables.kernel_speed(_figures(kernel_speed, speed_records))
    assert len({line.count("|") for line in text.splitlines()}) == 1
    row = "| **ATEN,TRITON,TILECAST k=5**, ATEN,TRITON | burst | layers | 2 | 0.951x | 50% | 50% |"
    assert row in text


def test_real_models_table(model_records: list[dict[str, Any]]) -> None:
    for record in model_records[:2]:
        record["variants"]["ATEN,TRITON,TILECAST k=5"] = _step(1.5, {"tilecast": 15})
    lines = tables.real_models("2.15", _figures(real_models, model_records)).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert [_cells(line)[0] for line in lines[2:]] == [
        "GPT-2 XL decode 16x1",
        "GPT-2 XL decode 200x1",
    ]
    speeds = ["0.99x", "1.00x", "1.33x", "1.25x", "0.50x"]  # none was switched on, or unfused
    assert _cells(lines[-1])[1:] == ["2.000", *speeds, "100% / 80%", "20.0", "9.0", "9.0"]


def test_llama_shapes_table(shape_records: list[dict[str, Any]]) -> None:
    lines = tables.llama_shapes(_figures(llama_shapes, shape_records)).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert _cells(lines[2]) == ["bf16 64", *["4"] * 3, *["20.0", "20.0", "8.0"] * 3]
    assert _cells(lines[3]) == ["int8 16", "", "4", "", *["", "5.0", ""] * 3]


def test_tables_show_the_newest_pytorch() -> None:
    figures = {"2.9.1": {"means": {"old": {}}}, "2.15.0+cu130": {"means": {}}}
    assert "old" not in tables.llama_shapes(figures)
