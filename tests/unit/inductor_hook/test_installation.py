"""Switching the hook on and off: what changes, what comes back, and what it lives together with."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_graph import choices_of, linear, lowered, lowering, names_of, warnings_told
from processes import python
from torch._inductor import choices as registry
from torch._inductor import config, select_algorithm
from torch._inductor.choices import InductorChoices
from torch._inductor.fx_passes import pad_mm, post_grad
from torch._inductor.kernel import mm
from torch._inductor.select_algorithm import get_algorithm_selector_cache
from torch._inductor.virtualized import V

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import install, installation, installed, telemetry, uninstall
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.patch.torch_versions import FUSION, torch_version
from tilecast.inductor_hook.settings import active
from tilecast.inductor_hook.timing import choice_benchmark
from tilecast.inductor_hook.timing import decide as timings

pytestmark = pytest.mark.usefixtures("hook")


restored = pytest.mark.skipif(
    torch_version() >= (2, 15), reason="there a patch puts back what threads see that set nothing"
)


def _handler() -> Any:
    """The choices handler of this thread."""
    return V.choices


def _entry(name: str) -> Any:
    """An entry of Inductor's configuration, with its value for threads that set none."""
    return vars(config)["_config"][name]


def _state() -> tuple[Any, ...]:
    """All of Inductor that we change, as this thread sees it and as new ones do."""
    entries = ("inductor_choices_class", "max_autotune_gemm_backends")
    tuner = get_algorithm_selector_cache()
    return (
        *((getattr(config, name), _entry(name).default) for name in entries),
        *(_handler(), set(vars(_handler()))),
        *(list(tuner.preprocessing_fns), list(tuner.feedback_saver_fns)),
        *(list(post_grad.pass_patterns), pad_mm.can_pad),
    )


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
    assert config.max_autotune_gemm_backends == f"{before[1][0]},TILECAST"
    assert all(here != there for here, there in zip(before[:2], _state()[:2], strict=True))
    assert all(here != there for here, there in zip(before[3:], _state()[3:], strict=True))
    uninstall()
    assert _state() == before
    uninstall()
    assert _state() == before


@pytest.mark.parametrize("backends", ["TILECAST", " tilecast ,", ""])
def test_a_list_that_names_us_alone_is_left_with_aten(backends: str) -> None:
    with config.patch(max_autotune_gemm_backends=backends):
        install()
        uninstall()
        assert config.max_autotune_gemm_backends == "ATEN"
        with lowering():
            assert names_of(lowered(torch.ops.aten.mm, *linear().nodes())) == ["mm"]


def test_a_block_installs_for_its_time_and_cleans_up_after_an_error() -> None:
    before = _state()
    with pytest.raises(ZeroDivisionError), installed(k=2, power="burst"):
        assert "burst" in _handler().uuid()
        raise ZeroDivisionError
    assert _state() == before


def test_blocks_nest() -> None:
    before = _state()
    with installed(k=2):
        outer = _state()
        with installed(k=3):
            assert _handler().uuid()[2] == 3
            with pytest.raises(TilecastError), installed(k=0):
                raise AssertionError("entered")
            assert _handler().uuid()[2] == 3
            with installed(k=4, power="burst"):
                uninstall()
            assert _handler().uuid()[2] == 3
        assert _state() == outer
    assert _state() == before
    install(k=5)
    with installed(k=6):
        assert config.max_autotune_gemm_backends.count("TILECAST") == 1
    assert _handler().uuid()[2] == 5


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


@pytest.fixture
def there() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Calls a function where a backward pass is compiled: in one thread that PyTorch keeps.

    It runs there with the caller's context, which holds Inductor's configuration.
    """
    with ThreadPoolExecutor(1) as thread:
        yield lambda function: thread.submit(copy_context().run, function).result()


def test_another_thread_uninstalls_for_all(there: Callable) -> None:
    before = _state()
    install(k=3)
    for function in (_state, _handler().uuid, lambda: there(_handler().uuid)):
        function()  # reading leaves no copy behind
    assert there(lambda: _handler().uuid()[2]) == 3
    there(uninstall)
    assert _state() == before
    assert there(lambda: dict(vars(_handler()))) == {}


@restored
@pytest.mark.parametrize("backends", ["TILECAST", "ATEN,TILECAST", "ATEN"])
def test_what_a_patch_brings_back_does_nothing(there: Callable, backends: str) -> None:
    """``config.patch`` found our entries and restores them; nobody can tell it not to."""
    before = _state()
    install(k=2)
    with config.patch(max_autotune_gemm_backends=backends, inductor_choices_class=None):
        uninstall()
        assert config.max_autotune_gemm_backends == "ATEN"
    assert config.max_autotune_gemm_backends.endswith("TILECAST")
    with lowering(), config.patch(max_autotune_gemm_backends="TILECAST"):
        products = lowered(torch.ops.aten.mm, *linear().nodes())
        assert names_of(products) == ["mm"]
        assert there(lambda: _handler().uuid()[:2]) == ("tilecast", None)
    assert get_algorithm_selector_cache().preprocessing_fns == before[4]
    for name in ("max_autotune_gemm_backends", "inductor_choices_class"):
        delattr(config, name)
        _entry(name).hide = False
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
    assert handler is custom
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
    assert vars(custom) == {"name": "custom"}
    assert custom.uuid() == "custom"


class Unhashable(Custom):
    """A user's choices that compare by what they say."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.name == other.name


class Nameless(InductorChoices):
    """A user's choices that no key can tell from an edited version of them."""


def test_a_users_choices_without_a_uuid_are_pytorchs_to_refuse() -> None:
    with config.patch(inductor_choices_class=Nameless):
        install(k=2)
        factory: Any = config.inductor_choices_class
        assert not hasattr(factory(), "uuid") or hasattr(InductorChoices, "uuid")
    uninstall()
    install(k=2)
    assert _handler().uuid()[-1] == "InductorChoices"


def test_a_newer_pytorch_than_was_tested_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for version, count in (((2, 15), 0), ((2, 16), 1), ((2, 16), 1)):
        monkeypatch.setattr(installation, "torch_version", lambda version=version: version)
        install(k=2)
        assert len(caplog.records) == count
    assert "PyTorch 2.16 is newer than what tilecast is tested on, 2.11 to 2.15" in caplog.text


class Joined(InductorChoices):
    """As PyTorch 2.15 joins handlers: a method is looked for in the instance, then in each."""

    def __init__(self, handlers: list[InductorChoices]):
        super().__init__()
        self.handlers = handlers

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in own:
            return own[name]
        default = inspect.getattr_static(InductorChoices, name, None)
        for handler in own.get("handlers", ()) if callable(default) else ():
            if inspect.getattr_static(handler, name) is not default:
                return getattr(handler, name)
        return object.__getattribute__(self, name)

    def uuid(self) -> tuple[Any, ...]:
        return ("joined", *(vars(type(handler))["uuid"](handler) for handler in self.handlers))


@pytest.mark.parametrize("kind", [Unhashable, lambda: Joined([Idle(), Custom()])])
def test_any_handler_can_be_in_use(kind: Callable[[], Any]) -> None:
    handler = kind()
    before = dict(vars(handler))
    with V.set_choices_handler(handler):
        for _ in range(2):
            with installed(k=2), lowering():
                choices = choices_of(
                    linear(), "mm", [mm.aten_mm, mm.mm_contiguous_subgraph_template]
                )
                assert len([c for c in choices if isinstance(c, TilecastCaller)]) == 2
                assert names_of(choices[:1]) == ["mm"]
                assert handler.triton_kernel_kwargs(None, None, [], {}) == {"decided_by": "custom"}
                assert handler.uuid()[0] == "tilecast"
            assert vars(handler) == before


def test_a_factory_in_use_keeps_deciding_and_comes_back(there: Callable) -> None:
    with config.patch(inductor_choices_class=Custom), V.set_choices_handler(Custom("older")):
        with installed(k=2):
            factory: Any = config.inductor_choices_class
            made: Any = factory()
            assert made.triton_kernel_kwargs(None, None, [], {}) == {"decided_by": "custom"}
            assert made.uuid()[-1] == "custom"
            assert there(lambda: _handler().uuid()) == made.uuid()
            # PyTorch 2.11 pickles the factory into its keys, later ones ask it.
            portable: Any = config.save_config_portable()["inductor_choices_class"]
            assert portable in (made.uuid(), factory)
        assert config.inductor_choices_class is Custom
        assert _handler().name == "older"


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("inductor_choices_class", Custom, "inductor_choices_class was set after tilecast"),
        ("distributed_max_autotune_gemm", True, "distributed_max_autotune_gemm is set"),
    ],
)
def test_nothing_is_offered_where_inductor_could_not_keep_it(
    graph: Any, caplog: pytest.LogCaptureFixture, setting: str, value: Any, reason: str
) -> None:
    """Its caches would take our graph for another one, or its ranks fail to share our choices."""
    install(k=1)
    with config.patch({setting: value}):
        for _ in range(2):
            assert names_of(choices_of(linear(), "mm", [mm.aten_mm])) == ["mm"]
    (warning,) = warnings_told(caplog)
    assert reason in warning
    (ours,) = choices_of(linear(), "mm", [mm.aten_mm])
    assert isinstance(ours, TilecastCaller)


def test_what_was_cleared_by_others_is_asked_again(graph: Any) -> None:
    install(k=1)
    _handler()
    for clear in ("clear_preprocessing_fns", "clear_feedback_savers"):
        getattr(select_algorithm, clear)()
    _handler()
    autotuner = select_algorithm.get_algorithm_selector_cache()
    assert choice_benchmark.benchmarked in autotuner.preprocessing_fns
    assert timings.settle in autotuner.feedback_saver_fns


needs_registry = pytest.mark.skipif(
    not hasattr(registry, "register_inductor_choices"),
    reason="this PyTorch has no registry of choices",
)


@needs_registry
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
    process = python("""
import sys, torch
import tilecast.inductor_hook
assert "tilecast.inductor_hook.installation" not in sys.modules
from tilecast.inductor_hook import install, uninstall
install(k=4)
install(k=6)
uninstall()
install(k=4)
assert "torch._inductor.config" not in sys.modules
import torch._inductor.config as config
assert config.max_autotune_gemm_backends.endswith(",TILECAST")
assert config.inductor_choices_class.settings.k == 4
from torch._inductor.virtualized import V
assert V.choices.uuid()[:3:2] == ("tilecast", 4)
uninstall()
assert "TILECAST" not in config.max_autotune_gemm_backends
assert config.inductor_choices_class is None
""")
    assert process.stderr == ""


def test_what_goes_wrong_while_inductor_is_imported_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        if active():
            raise KeyError("a setting")

    (tmp_path / "part_of_inductor.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(installation._FOLLOWERS, "part_of_inductor", fails)
    install(k=4)
    assert importlib.import_module("part_of_inductor")
    (warning,) = warnings_told(caplog)
    assert "installing failed (KeyError: 'a setting')" in warning


def test_an_installation_that_fails_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    install(k=3)
    before = _state()

    def fails() -> None:
        settings = active()
        if settings and settings.k == 4:
            raise TilecastError("home keeps no ranking object")

    monkeypatch.setitem(installation._FOLLOWERS, "torch._inductor.ir", fails)
    with pytest.raises(TilecastError, match="home keeps no"):
        install(k=4)
    assert _state() == before
    assert _handler().uuid()[2] == 3


def test_a_thread_that_compiled_before_gets_our_choices(there: Callable) -> None:
    """As that of backward passes may have, which keeps its handler, and nobody else can reach."""
    uninstall()
    handler = there(_handler)
    assert vars(handler) == {}
    for count in (1, 2):
        with installed(k=count):
            assert there(_handler) is handler
            assert there(lambda: _handler().uuid()[2]) == count
            assert "_finalize_template_configs" in vars(handler)
        assert vars(handler) == {}


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ({}, ""),
        ({"failed: ranking": 2}, ""),
        (
            {
                "problems": 11,
                "won": 9,
                "lost": 1,
                "fell back to ATen: mm": 2,
                "not covered: bmm": 1,
            },
            "14 GEMMs: 11 got tilecast kernels as choices, which won 9 of 10 benchmarks; PyTorch's "
            "alone ran 3",
        ),
        ({"problems": 2}, "2 GEMMs: 2 got tilecast kernels as choices; PyTorch's alone ran 0"),
    ],
)
@pytest.mark.usefixtures("hook")
def test_the_summary_counts_products(counted: dict[str, int], said: str) -> None:
    from torch._dynamo.utils import counters

    counters["tilecast"].update(counted)
    assert telemetry.summary() == said


@pytest.mark.parametrize("stated", [True, False])
def test_a_cutedsl_template_says_that_nothing_is_fused_beside_it(
    monkeypatch: pytest.MonkeyPatch, stated: bool
) -> None:
    """As PyTorch 2.13 does, and 2.11 does not."""
    scheduling = importlib.import_module(FUSION.module).CuteDSLScheduling
    if not stated:
        monkeypatch.delattr(scheduling, "can_fuse_horizontal")
    before = scheduling.can_fuse_horizontal
    for _ in range(2):
        with installed():
            assert scheduling.can_fuse_horizontal(None, None, None) is False
            assert (scheduling.can_fuse_horizontal is before) is stated
        assert scheduling.can_fuse_horizontal is before
