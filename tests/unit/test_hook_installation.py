"""Switching the hook on and off: what changes, what comes back, and what it lives together with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import choices as registry
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.kernel import mm
from torch._inductor.virtualized import V

sys.path.insert(0, str(Path(__file__).parent))

from hook_graph import biased_linear, choices_of, linear, lowering

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import install, installed, uninstall
from tilecast.inductor_hook.selection import Settings
from tilecast.inductor_hook.template import TilecastCaller

pytestmark = pytest.mark.usefixtures("hook")


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def _handler() -> Any:
    """The choices handler of this thread."""
    return V.choices


def _state() -> tuple[Any, ...]:
    return (config.inductor_choices_class, config.max_autotune_gemm_backends, _handler())


class Custom(InductorChoices):
    """A user's own choices: other arguments for Triton, and ATen alone for small products."""

    def __init__(self, name: str = "custom"):
        super().__init__()
        self.name = name

    def triton_kernel_kwargs(self, kernel_cls, features, groups, kernel_kwargs):
        return {**kernel_kwargs, "decided_by": self.name}

    def _finalize_template_configs(
        self, template_choices, kernel_inputs, templates, op_name, kwarg_overrides=None
    ):
        stock = super()._finalize_template_configs(
            template_choices, kernel_inputs, templates, op_name, kwarg_overrides
        )
        return stock[:1]

    def uuid(self) -> str:
        return self.name


class Idle(InductorChoices):
    """Choices that decide nothing."""

    def uuid(self) -> str:
        return "idle"


@pytest.fixture
def custom() -> Iterator[Custom]:
    """Such a handler in use."""
    handler = Custom()
    with V.set_choices_handler(handler):
        yield handler


def test_uninstalling_restores_everything() -> None:
    before = _state()
    install(k=3)
    assert config.max_autotune_gemm_backends == f"{before[1]},TILECAST"
    assert config.inductor_choices_class is not before[0]
    assert _handler() is not before[2]
    uninstall()
    assert _state() == before
    uninstall()
    assert _state() == before


@pytest.mark.parametrize("backends", ["ATEN", "", "TRITON, ATEN", "CUTLASS,ATEN,CPP"])
def test_the_list_of_backends_comes_back_as_it_was(backends: str) -> None:
    with config.patch(max_autotune_gemm_backends=backends):
        with installed():
            assert config.max_autotune_gemm_backends.split(",")[-1] == "TILECAST"
        assert config.max_autotune_gemm_backends == backends


def test_a_block_installs_for_its_time_and_cleans_up_after_an_error() -> None:
    before = _state()
    with pytest.raises(ZeroDivisionError), installed(k=2, power="burst"):
        assert "burst" in _handler().uuid()
        raise ZeroDivisionError
    assert _state() == before


def test_installing_again_replaces_the_settings() -> None:
    before = _state()
    install(k=3)
    first = _handler().uuid()
    install(k=7, power="sustained")
    assert _handler().uuid() != first
    assert config.max_autotune_gemm_backends.count("TILECAST") == 1
    with lowering():
        assert len(choices_of(linear(), "mm")) == 7
    uninstall()
    assert _state() == before


def test_settings_that_were_refused_leave_the_old_ones() -> None:
    install(k=3)
    before = _state()
    with pytest.raises(TilecastError):
        install(k=0)
    assert _state() == before


@pytest.fixture
def there() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Calls a function where a backward pass is compiled: in one thread that PyTorch keeps.

    It runs there with the caller's context, which holds Inductor's configuration.
    """
    with ThreadPoolExecutor(1) as thread:
        yield lambda function: thread.submit(copy_context().run, function).result()


def test_every_thread_gets_the_settings_installed_last(there: Callable) -> None:
    for count in (3, 5):
        install(k=count)
        assert there(lambda: _handler().uuid())[2] == count
    uninstall()
    # It keeps its handler, which adds nothing any more.
    assert there(lambda: _handler().uuid())[:2] == ("tilecast", None)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"k": 0}, "k=0 is out of range; allowed: 1 to 64, or 'auto'"),
        ({"k": 65}, "k=65 is out of range"),
        ({"k": -1}, "k=-1 is out of range"),
        ({"k": "many"}, "k='many' is out of range"),
        ({"k": 2.5}, "k=2.5 is out of range"),
        ({"k": True}, "k=True is out of range"),
        ({"k": None}, "k=None is out of range"),
        ({"power": "eco"}, "power 'eco' is not known; allowed: burst, sustained, robust"),
        ({"model": "/nowhere"}, "model /nowhere has no manifest.json; allowed: a folder that"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_in_one_line(arguments: dict[str, Any], reason: str) -> None:
    before = _state()
    with pytest.raises(TilecastError, match=reason) as refusal:
        install(**arguments)
    assert "\n" not in str(refusal.value)
    assert _state() == before


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null", '{"sha256": 7}'])
def test_a_manifest_that_is_none_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    before = _state()
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(TilecastError) as refusal:
        install(model=tmp_path)
    assert str(tmp_path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert _state() == before


def test_the_folder_of_a_model_holds_wherever_the_process_goes(
    another_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generated code names it, and runs in other processes."""
    monkeypatch.chdir(another_model.parent)
    install(k=1, model=another_model.name)
    factory: Any = config.inductor_choices_class
    assert Path(factory.settings.model) == another_model


def test_an_old_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _state()
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    with pytest.raises(TilecastError, match=r"PyTorch 2\.10 is too old; allowed: 2\.11 or later"):
        install()
    assert _state() == before


def test_a_handler_in_use_keeps_deciding_and_comes_back(custom: Custom) -> None:
    install(k=2)
    handler = _handler()
    assert handler is not custom
    assert isinstance(handler, Custom)
    assert handler.name == "custom"
    assert _handler().triton_kernel_kwargs(None, None, [], {"a": 1}) == {
        "a": 1,
        "decided_by": "custom",
    }
    with lowering():
        choices = choices_of(linear(), "mm", [mm.aten_mm, mm.mm_contiguous_subgraph_template])
    # The custom handler keeps the first stock choice only.
    assert [choice.name for choice in choices[:1]] == ["mm"]
    assert [isinstance(choice, TilecastCaller) for choice in choices] == [False, True, True]
    assert handler.uuid()[-1] == "custom"
    uninstall()
    assert _handler() is custom


def test_a_factory_in_use_keeps_deciding_and_comes_back(there: Callable) -> None:
    with config.patch(inductor_choices_class=Custom), V.set_choices_handler(Custom("older")):
        with installed(k=2):
            factory: Any = config.inductor_choices_class
            made: Any = factory()
            assert made.triton_kernel_kwargs(None, None, [], {}) == {"decided_by": "custom"}
            assert made.uuid()[-1] == "custom"
            assert there(lambda: _handler().uuid()) == made.uuid()
            assert config.save_config_portable()["inductor_choices_class"] == made.uuid()
        assert config.inductor_choices_class is Custom
        assert _handler().name == "older"


def test_a_factory_set_after_us_stays() -> None:
    install()
    with config.patch(inductor_choices_class=Custom):
        uninstall()
        assert config.inductor_choices_class is Custom
    # What the patch found, and put back, is ours: it adds nothing any more.
    found: Any = config.inductor_choices_class
    assert found().uuid()[:2] == ("tilecast", None)
    config.inductor_choices_class = None


def test_every_override_of_the_handler_in_use_is_kept(custom: Custom) -> None:
    """Of the hooks that this PyTorch has, all but ours go to it."""
    install(k=2)
    for name in dir(InductorChoices):
        if name.startswith("__") or name in ("_finalize_template_configs", "uuid"):
            continue
        theirs, ours = getattr(type(custom), name), getattr(type(_handler()), name)
        assert ours == theirs, name


@pytest.mark.skipif(
    not hasattr(registry, "register_inductor_choices"),
    reason="this PyTorch has no registry of choices",
)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_registered_choices_keep_deciding_beside_ours(before: int) -> None:
    """Two are registered, some before we are installed; from two on, PyTorch composes them."""
    register: Any = vars(registry)["register_inductor_choices"]
    unregister: Any = vars(registry)["unregister_inductor_choices"]
    contributors = {"test": Custom, "idle": Idle}
    with V.set_choices_handler(InductorChoices()):
        try:
            for position, (key, factory) in enumerate(contributors.items()):
                if position == before:
                    install(k=2)
                register(key, factory)
            if before == len(contributors):
                install(k=2)
            with lowering():
                choices = choices_of(linear(), "mm", [mm.aten_mm])
            assert [isinstance(choice, TilecastCaller) for choice in choices] == [False, True, True]
            decided = _handler().triton_kernel_kwargs(None, None, [], {})
            assert decided == {"decided_by": "custom"}
        finally:
            uninstall()
            for key in contributors:
                unregister(key)


def test_nothing_happens_before_inductor_is_imported() -> None:
    process = _python("""
import sys, torch
import tilecast.inductor_hook
assert "tilecast.inductor_hook.installation" not in sys.modules
from tilecast.inductor_hook import install, uninstall
finders = list(sys.meta_path)
install(k=4)
install(k=6)
uninstall()
assert sys.meta_path == finders
install(k=4)
assert "torch._inductor.config" not in sys.modules
import torch._inductor.config as config
assert sys.meta_path == finders
assert config.max_autotune_gemm_backends.endswith(",TILECAST")
assert config.inductor_choices_class.settings.k == 4
from torch._inductor.virtualized import V
assert V.choices.uuid()[:3:2] == ("tilecast", 4)
uninstall()
assert "TILECAST" not in config.max_autotune_gemm_backends
assert config.inductor_choices_class is None
""")
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""


def test_an_installation_that_waits_can_be_called_off() -> None:
    process = _python("""
import torch
from tilecast.inductor_hook import install, uninstall
install(k=4)
uninstall()
import torch._inductor.config as config
assert "TILECAST" not in config.max_autotune_gemm_backends
assert config.inductor_choices_class is None
""")
    assert process.returncode == 0, process.stderr


def test_a_model_that_goes_bad_while_waiting_does_not_break_inductor(another_model: Path) -> None:
    process = _python(f"""
import torch
from tilecast.inductor_hook import install
install(model={str(another_model)!r})
open({str(another_model / "manifest.json")!r}, "w").close()
import torch._inductor.config as config
assert "ATEN" in config.max_autotune_gemm_backends
""")
    assert process.returncode == 0, process.stderr


def test_settings_are_what_was_asked_for() -> None:
    install(k="auto", power="burst")
    factory: Any = config.inductor_choices_class
    assert factory.settings == Settings(k="auto", power="burst")
    with lowering():
        assert choices_of(biased_linear(), "addmm")
