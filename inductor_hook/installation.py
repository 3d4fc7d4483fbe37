"""Switching the hook on and off. Nothing here imports Inductor: that takes a second."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import report
from tilecast.inductor_hook.autoload import BACKEND
from tilecast.inductor_hook.selection import Settings
from tilecast.inductor_hook.versions import (
    NVGEMM_HOME,
    OLDEST,
    OLDEST_NVGEMM,
    change,
    torch_version,
)

_CONFIG = "torch._inductor.config"
_CHOICES, _BACKENDS = "inductor_choices_class", "max_autotune_gemm_backends"

_undo: Callable[[], None] | None = None
_active: Settings | None = None


def active() -> Settings | None:
    """The settings in force, or None.

    Handlers ask for them anew each time: a thread keeps its handler when another one installs.
    """
    return _active


def install(
    k: int | str = 5,
    model: str | Path | None = None,
    *,
    power: str = "robust",
    rank_nvgemm: bool = False,
) -> None:
    """Give ``mode="max-autotune"`` our choices for matrix multiplications, from now on.

    Adds ``TILECAST`` to Inductor's list of GEMM backends and wraps the choices handler in use.
    Installing again replaces the settings.

    Args:
        k: configs per problem that are generated and benchmarked; 1 takes the model's first choice
            without any benchmark; ``auto`` lets the model's uncertainty decide, from 1 to 8.
        model: folder of a model of one's own (``tilecast train --out``); the shipped ones when
            left out.
        power: the regime to aim at: ``burst``, ``sustained``, or ``robust`` for the smallest worst
            case of both.
        rank_nvgemm: also let the model rank the kernels of PyTorch's own NVGEMM backend.

    Raises:
        TilecastError: an argument is not allowed, or PyTorch is too old.
    """
    global _undo, _active
    # The folder is spelled out in generated code, which may run anywhere.
    folder = str(Path(model).absolute()) if model else None
    settings = Settings(k, folder, power, rank_nvgemm)
    oldest = OLDEST_NVGEMM if rank_nvgemm else OLDEST
    if torch_version() < oldest:
        raise TilecastError(
            f"PyTorch {'.'.join(map(str, torch_version()))} is too old"
            f"{' for rank_nvgemm' if rank_nvgemm else ''}; allowed: "
            f"{'.'.join(map(str, oldest))} or later; upgrade it"
        )
    uninstall()
    with ExitStack() as undo:
        undo.callback(_once_imported(_CONFIG, lambda: _attach(settings)))
        if rank_nvgemm:
            undo.callback(_once_imported(NVGEMM_HOME, lambda: _attach_nvgemm(settings)))
        _undo = undo.pop_all().close
    _active = settings


def uninstall() -> None:
    """Put everything back as `install` found it; nothing to do when it is not installed."""
    global _undo, _active
    undo, _undo, _active = _undo, None, None
    if undo:
        undo()


@contextmanager
def installed(
    k: int | str = 5,
    model: str | Path | None = None,
    *,
    power: str = "robust",
    rank_nvgemm: bool = False,
) -> Iterator[None]:
    """Install for the time of a ``with`` block; arguments and errors as `install`."""
    install(k, model, power=power, rank_nvgemm=rank_nvgemm)
    try:
        yield
    finally:
        uninstall()


def install_from_environment() -> None:
    """Install as ``TILECAST_K`` and ``TILECAST_MODEL`` say; a warning where that cannot be."""
    k = os.environ.get("TILECAST_K", "5")
    try:
        install(int(k) if k.isdigit() else k, os.environ.get("TILECAST_MODEL"))
    # PyTorch loads us from its own import, which must not fail for our sake.
    except Exception as error:
        report.warn_once("installing from the environment", error)


@dataclass(frozen=True)
class ChoicesFactory:
    """Makes the choices handler; what ``config.inductor_choices_class`` is set to.

    Data, not a closure: PyTorch 2.11 puts it into its cache keys by pickling it.
    """

    settings: Settings
    """What was asked for, of which model: another one makes another cache key."""
    previous: Any
    """The factory that was set before, or None."""

    def __call__(self) -> Any:
        """A handler that decides like the one before and has our choices too."""
        from tilecast.inductor_hook.choices import compose
        from tilecast.inductor_hook.versions import stock_handler

        return compose(stock_handler(self.previous))


def _attach(settings: Settings) -> Callable[[], None]:
    """Set Inductor's configuration; returns what undoes it."""
    from torch._inductor import config

    change(config, _CHOICES, lambda factory: ChoicesFactory(settings, factory))
    change(config, _BACKENDS, lambda names: ",".join([*_others(names), BACKEND]))
    _set_handler(lambda choices, handler: choices.compose(handler))

    def undo() -> None:
        change(config, _CHOICES, _without_ours)
        # Named in the environment, TILECAST is in the list that was found, and goes too.
        change(config, _BACKENDS, lambda names: ",".join(_others(names)))
        _set_handler(lambda choices, handler: choices.without(handler))

    return undo


def _without_ours(factory: Any) -> Any:
    """The factory that ours stands before; any other as it is, whoever set it since."""
    return factory.previous if isinstance(factory, ChoicesFactory) else factory


def _attach_nvgemm(settings: Settings) -> Callable[[], None]:
    """Put the model in front of the kernels of NVGEMM; returns what undoes it."""
    import torch

    from tilecast.inductor_hook import nvgemm
    from tilecast.inductor_hook.selection import gpu_of, ranked

    home = sys.modules[NVGEMM_HOME]
    nvgemm.rank_with_model(
        home,
        lambda problem, configs, limit: ranked(
            settings, problem, gpu_of(torch.cuda.current_device()), tuple(configs), limit
        ),
    )
    return lambda: nvgemm.restore(home)


def _set_handler(how: Callable[[Any, Any], Any]) -> None:
    """Change the choices handler that this thread already uses, if it does.

    Threads that have none yet, such as those of a backward pass, ask the factory for theirs.
    """
    virtualized = sys.modules.get("torch._inductor.virtualized")
    handler = virtualized and getattr(virtualized.threadlocal, virtualized._choices._key, None)
    if virtualized and handler:
        from tilecast.inductor_hook import choices

        virtualized.V.set_choices_handler(how(choices, handler))


def _others(backends: str) -> list[str]:
    return [name for name in backends.split(",") if name.strip().upper() != BACKEND]


class _ImportWatch:
    """A finder that finds nothing itself, and acts once a module that others find is loaded."""

    def __init__(self, name: str, action: Callable[[], object]):
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: Any) -> None:
            execute(module)
            try:
                self._action()
            # The module is Inductor's, and shall work whatever becomes of us.
            except Exception as error:
                report.warn_once("installing", error)

        spec.loader.exec_module = execute_and_act
        return spec


def _once_imported(name: str, attach: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Attach now if a module is loaded, else once it is; returns what undoes it or calls it off."""
    if name in sys.modules:
        return attach()
    undo = ExitStack()
    watch = _ImportWatch(name, lambda: undo.callback(attach()))
    sys.meta_path.insert(0, watch)

    def undo_all() -> None:
        if watch in sys.meta_path:
            sys.meta_path.remove(watch)
        undo.close()

    return undo_all
