"""Switching the hook on and off. Nothing here imports Inductor: that takes a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from wrapt import register_post_import_hook

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.names import BACKEND, names
from tilecast.inductor_hook.patch.torch_versions import (
    FLEX_GEMM_HOME,
    HANDLERS_HOME,
    NVGEMM_HOME,
    OLDEST,
    OLDEST_FLEX_GEMM,
    OLDEST_NVGEMM,
    PADDING_HOME,
    PATTERNS_HOME,
    ask_for_aten,
    change,
    torch_version,
)
from tilecast.inductor_hook.settings import Settings, activate, active, cache_key, from_environment

P = ParamSpec("P")
T = TypeVar("T")


def install(
    k: int | str = 5,
    model: str | Path | None = None,
    *,
    power: str = "robust",
    rank_nvgemm: bool = False,
    rank_flex_gemm: bool = False,
    record: str | Path | None = None,
    fuse: bool = False,
    learn: str | Path | None = None,
) -> None:
    """Give ``mode="max-autotune"`` our choices for matrix multiplications, from now on.

    Adds ``TILECAST`` to Inductor's list of GEMM backends and our choices to the choices handler in
    use. Installing again replaces the settings.

    Args:
        k: configs per problem that are generated and benchmarked; 1 takes the model's first choice
            without any benchmark; ``auto`` lets the model's uncertainty decide, from 1 to 8.
        model: folder of a model of one's own (``tilecast train --out``); the shipped ones when
            left out.
        power: the regime to aim at: ``burst``, ``sustained``, or ``robust`` for the smallest worst
            case of both.
        rank_nvgemm: also let the model rank the kernels of PyTorch's own NVGEMM backend.
        rank_flex_gemm: also let the model rank the configs of PyTorch's own FlexGEMM.
        record: CSV file that the multiplications are written to, for ``--problems`` of the command
            line; it is appended to when it is there already.
        fuse: where that is faster, also do a product together with the activation behind it, with
            an int8 weight's conversion and scales, or with the scales behind a product of int8.
        learn: file (``.jsonl``) that the autotuner's times of our choices are written to, for
            ``tilecast train --add``; it is appended to when it is there already.

    Raises:
        TilecastError: an argument is not allowed, or PyTorch is too old.
    """
    # The folder is spelled out in generated code, which may run anywhere.
    folder, problems, times = (
        str(Path(path).absolute()) if path else None for path in (model, record, learn)
    )
    settings = Settings(k, folder, power, rank_nvgemm, rank_flex_gemm, problems, fuse, times)
    _check_version(OLDEST)
    if rank_nvgemm:
        _check_version(OLDEST_NVGEMM, " for rank_nvgemm")
    if rank_flex_gemm:
        _check_version(OLDEST_FLEX_GEMM, " for rank_flex_gemm")
    _put(settings)


def _check_version(oldest: tuple[int, int], purpose: str = "") -> None:
    if torch_version() < oldest:
        found, allowed = (".".join(map(str, version)) for version in (torch_version(), oldest))
        raise TilecastError(
            f"PyTorch {found} is too old{purpose}; allowed: {allowed} or later; upgrade it"
        )


def uninstall() -> None:
    """Take the hook back, in whatever thread; nothing to do when it is not installed.

    ATen stays to be asked where a list of backends still names us alone.
    """
    if active():
        _put(None)


def _as(begin: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Have a function take, and show, the arguments of another one."""
    return wraps(begin, assigned=(), updated=())


@_as(install)
@contextmanager
def installed(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Install for the time of a ``with`` block; arguments and errors as `install`.

    What was installed before is so again behind it. All threads share it: blocks of several must
    not overlap.
    """
    outer = active()
    install(*args, **kwargs)
    try:
        yield
    finally:
        _put(outer)


def install_from_environment() -> None:
    """Install as ``TILECAST_K`` and the other variables that docs/inductor.md lists say.

    Where that cannot be, a warning says why, and a list that names us alone is left with ATEN.
    """
    record, learn = map(os.environ.get, ("TILECAST_RECORD", "TILECAST_LEARN"))
    fuse = os.environ.get("TILECAST_FUSE", "0") not in ("", "0")
    try:
        install(**from_environment(os.environ), record=record, learn=learn, fuse=fuse)
    # PyTorch loads us from its own import, which must not fail for our sake.
    except Exception as error:
        telemetry.warn_once("installing from the environment", error)
        _put(None)


class ChoicesFactory(NamedTuple):
    """Makes the choices handler; what ``config.inductor_choices_class`` is set to.

    Data, not a closure: PyTorch 2.11 puts it into its cache keys by pickling it. And a tuple:
    since 2.12 each thread that reads an entry keeps a copy of its own of anything mutable, where
    `uninstall` could not reach it.
    """

    settings: Settings
    """What was asked for."""
    key: tuple[Any, ...]
    """`cache_key` of the settings."""
    previous: Any
    """The factory that was set before, or None."""

    def __call__(self) -> Any:
        """A handler that decides like the one before and has our choices too."""
        from tilecast.inductor_hook.handlers import bind
        from tilecast.inductor_hook.patch.torch_versions import stock_handler

        return bind(stock_handler(self.previous))


def _put(settings: Settings | None) -> None:
    """Put settings in force, or none; those before stay where that fails."""
    before = active()
    activate(settings)
    try:
        _follow()
    except Exception:
        activate(before)
        _follow()
        raise


def _follow() -> None:
    """Bring what is loaded of Inductor in line with the settings in force, the rest once it is."""
    for module, follow in _FOLLOWERS.items():
        if module in sys.modules:
            follow()
        else:
            _follow_once_imported(module)


@cache
def _follow_once_imported(module: str) -> None:
    def follow(_: Any) -> None:
        try:
            _FOLLOWERS[module]()
        # The module is Inductor's, and shall work whatever becomes of us.
        except Exception as error:
            telemetry.warn_once("installing", error)

    register_post_import_hook(follow, module)


def _configure() -> None:
    """Have Inductor's configuration, and its handlers, say what is in force."""
    from torch._inductor import config

    change(config, "inductor_choices_class", _factory)
    change(config, "max_autotune_gemm_backends", _backends)
    handlers = sys.modules.get("tilecast.inductor_hook.handlers")
    if handlers and not active():
        handlers.release()


def _reach_handlers() -> None:
    """Have each thread's choices handler bound when it is asked for, or no longer.

    A thread keeps its handler for good, and none can be reached from another thread. One that
    compiled before, such as that of backward passes, would never come by ours otherwise.
    """
    handlers = vars(sys.modules[HANDLERS_HOME])["_choices"]
    if not active():
        vars(handlers).pop("_get_handler", None)
    elif "_get_handler" not in vars(handlers):
        vars(handlers)["_get_handler"] = partial(_bound, handlers._get_handler)


def _bound(stock: Callable[..., Any], *args: Any) -> Any:
    """The handler that Inductor gets, with our choices."""
    handler = stock(*args)
    try:
        from tilecast.inductor_hook.handlers import bind

        return bind(handler)
    # Inductor works on without us.
    except Exception as error:
        telemetry.warn_once("installing", error)
        return handler


def _factory(found: Any) -> Any:
    """The factory to be set in place of one; whoever set it, ours stands in front once at most."""
    settings = active()
    stock = found.previous if isinstance(found, ChoicesFactory) else found
    return ChoicesFactory(settings, cache_key(settings), stock) if settings else stock


def _backends(found: str) -> str:
    """The list of backends to be set in place of one; never empty: nothing compiles with that."""
    others = [name for name in found.split(",") if name.strip() and not names(name)]
    return ",".join([*others, BACKEND] if active() else others or ["ATEN"])


def _rank_nvgemm() -> None:
    """Put the model in front of the kernels of NVGEMM, or take it away."""
    settings = active()
    _rank(
        "stock_kernels.nvgemm", NVGEMM_HOME, settings if settings and settings.rank_nvgemm else None
    )


def _rank_flex_gemm() -> None:
    """Put the model in front of the configs of FlexGEMM, or take it away."""
    settings = active()
    _rank(
        "stock_kernels.flex_gemm",
        FLEX_GEMM_HOME,
        settings if settings and settings.rank_flex_gemm else None,
    )


def _rank(name: str, home: str, settings: Settings | None) -> None:
    """Have a module of ours rank what a module of Inductor keeps; without settings, no longer."""
    ours = f"tilecast.inductor_hook.{name}"
    if settings:
        import_module(ours).rank_with_model(sys.modules[home], partial(_choose, settings))
    elif ours in sys.modules:
        sys.modules[ours].restore(sys.modules[home])


def _choose(
    settings: Settings, problem: GemmProblem, configs: Sequence[KernelConfig], limit: int
) -> Sequence[KernelConfig]:
    """The configs that the model prefers on the GPU in use, best first."""
    import torch

    from tilecast.inductor_hook.select.selection import gpu_of, ranked

    gpu = gpu_of(torch.cuda.current_device(), settings)
    return ranked(settings, problem, gpu, tuple(configs), limit)


def _pass_over_graphs() -> None:
    """Put our pass behind Inductor's own patterns, or take it away."""
    _have_follow("fuse.fx_pass", sys.modules[PATTERNS_HOME].pass_patterns)


def _leave_rows() -> None:
    """Keep Inductor from adding rows that ours do not need, or no longer."""
    _have_follow("offer.row_padding", sys.modules[PADDING_HOME])


def _have_follow(name: str, what: Any) -> None:
    """Have a module of ours change something of Inductor's, or change it back."""
    ours = f"tilecast.inductor_hook.{name}"
    if active() or ours in sys.modules:
        import_module(ours).follow(what, active() is not None)


_FOLLOWERS: dict[str, Callable[[], None]] = {
    "torch._inductor.utils": ask_for_aten,
    "torch._inductor.config": _configure,
    HANDLERS_HOME: _reach_handlers,
    NVGEMM_HOME: _rank_nvgemm,
    FLEX_GEMM_HOME: _rank_flex_gemm,
    PATTERNS_HOME: _pass_over_graphs,
    PADDING_HOME: _leave_rows,
}
"""What is done once a module of Inductor is loaded, and whenever other settings come into force."""
