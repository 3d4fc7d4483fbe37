"""The entry point that PyTorch calls on import: one variable switches the hook on, at no cost."""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from processes import python

from tilecast.inductor_hook.autoload import autoload

BACKENDS = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
NAMED = {BACKENDS: "ATEN,TRITON,TILECAST"}
ISA = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
"""Has PyTorch believe the processor, instead of trying it with a compiler for seconds."""
UNCACHED = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}


def test_pytorch_finds_the_entry_point() -> None:
    (point,) = [point for point in entry_points(group="torch.backends") if point.name == "tilecast"]
    assert point.value == "tilecast.inductor_hook.autoload:autoload"


def test_naming_the_backend_is_enough(another_model: Path, tmp_path: Path) -> None:
    """Files are named wherever the process goes, what was done is said as it ends, and a list that
    names TILECAST alone has ATen multiply behind it."""
    process = python(
        """
import os, sys, torch
assert "torch._inductor.config" not in sys.modules
os.chdir("/")
from torch._inductor import config
from torch._inductor.virtualized import V
from tilecast import install, uninstall
from tilecast.inductor_hook.settings import active
settings = active()
print(config.max_autotune_gemm_backends, V.choices.uuid()[0], settings.k, settings.power,
      settings.digest, settings.fuse)
print(settings.record, settings.learn)
install(k=2)
uninstall()
options = {"max_autotune": True, "max_autotune_gemm_backends": "TILECAST"}
product = torch.compile(lambda a, b: a @ b + a @ b, options=options)
print(product(torch.ones(4, 8), torch.ones(8, 2)).sum().item())
torch._dynamo.utils.counters["tilecast"]["problems"] = 2
""",
        **NAMED | ISA,
        TILECAST_FUSE="0",
        TILECAST_K="3",
        TILECAST_MODEL=str(another_model),
        TILECAST_POWER="sustained",
        TILECAST_RECORD=os.path.relpath(tmp_path / "own.CSV"),
        TILECAST_LEARN=os.path.relpath(tmp_path / "own.jsonl"),
        TILECAST_SUMMARY="1",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    said = "tilecast: 2 GEMMs: 2 got tilecast kernels as choices; PyTorch's alone ran 0\n"
    assert process.stderr == said, "twice, or more than that"
    backends, name, count, power, digest, fuse, *files, product = process.stdout.split()
    assert product == "128.0"
    assert fuse == "False"
    assert (backends, name, count, power) == ("ATEN,TRITON,TILECAST", "tilecast", "3", "sustained")
    manifest = json.loads((another_model / "manifest.json").read_text())
    assert digest == manifest["sha256"][:16]
    written = [str(tmp_path / name) for name in ("own.CSV", "own.jsonl")]
    assert [os.path.normpath(path) for path in files] == written
    assert not any(Path(path).exists() for path in written)


def test_a_list_that_only_the_configuration_holds_is_said_to_be_in_vain() -> None:
    """Until then nothing but the entry point is loaded."""
    code = """
import sys, torch
print(*sorted(name for name in sys.modules if name.startswith("tilecast")))
from torch._inductor import config
for where in ("options", "config"):
    for backends in ("ATEN,TILECAST", "TILECAST"):
        torch._dynamo.reset()
        options = {"max_autotune": True, "max_autotune_gemm_backends": backends}
        if where == "config":
            config.max_autotune_gemm_backends, options = backends, {"max_autotune": True}
        product = torch.compile(lambda a, b: a @ b + a @ b, options=options)
        print(product(torch.ones(4, 8), torch.ones(8, 2)).sum().item())
"""
    process = python(code, **ISA | UNCACHED, **{BACKENDS: "ATEN,TRITON"})
    loaded, *products = process.stdout.splitlines()
    hook = "tilecast.inductor_hook"
    assert loaded.split() == ["tilecast", hook, f"{hook}.autoload", f"{hook}.names"]
    assert products == ["128.0"] * 4
    (said,) = (line for line in process.stderr.splitlines() if "tilecast" in line)
    assert "names TILECAST, but tilecast is not installed" in said
    assert "call tilecast.inductor_hook.install()" in said


def test_a_list_that_names_us_alone_has_atens_choices_where_loading_fails() -> None:
    code = """
import torch
product = torch.compile(lambda a, b: a @ b + a @ b, options={"max_autotune": True})
print(product(torch.ones(4, 8), torch.ones(8, 2)).sum().item())
"""
    names = {BACKENDS: "TILECAST", "TILECAST_INVARIANT": "maybe"}
    process = python(code, **ISA | UNCACHED, **names)
    assert process.stdout == "128.0\n"
    (said,) = (line for line in process.stderr.splitlines() if "tilecast" in line)
    assert "loading failed (TILECAST_INVARIANT='maybe' is not understood" in said


@pytest.mark.parametrize(
    ("variable", "module"),
    [
        (BACKENDS, "tilecast.inductor_hook.installation"),
        ("TILECAST_EAGER", "tilecast.inductor_hook.dispatch.switch"),
    ],
)
def test_what_does_not_import_leaves_pytorch_alone(
    hook: object,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    module: str,
) -> None:
    monkeypatch.setenv(variable, {BACKENDS: "TILECAST"}.get(variable, "1"))
    monkeypatch.setitem(sys.modules, module, None)
    autoload()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("tilecast: loading failed (import of ")
    assert record.getMessage().endswith("; PyTorch goes on without")
