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
from tilecast.inductor_hook.names import BACKEND, SUMMARY, switched_on, without
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.patch.torch_versions import (
    ATEN,
    CONFIG,
    DECOMPOSITIONS,
    FLEX_GEMM,
    FUSION,
    GROUPED,
    HANDLERS,
    NEWEST,
    NVGEMM,
    OLDEST,
    PADDING,
    PATTERNS,
    Place,
    ask_for_aten,
    torch_version,
)
from tilecast.inductor_hook.settings import (
    Settings,
    absolute,
    activate,
    active,
    cache_key,
    from_environment,
)

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
    fuse: bool = True,
    learn: str | Path | None = None,
    choices: str | Path | None = None,
    invariant: bool = False,
) -> None:
    """Offer tilecast kernels to ``mode="max-autotune"`` for matrix multiplications, from now on.

    Adds ``TILECAST`` to Inductor's list of GEMM backends and tilecast's choices to the choices
    handler in use. Installing again replaces the settings.

    Args:
        k: configs per problem that are generated and benchmarked; 1 takes the model's first choice,
            which is timed beside ATen's where the model is not sure; ``auto`` lets the model's
            uncertainty decide, from 1 to 8.
        model: folder of your own model (``tilecast train --out``); the shipped ones when
            left out.
        power: the regime to aim at: ``burst``, ``sustained``, or ``robust`` for the smallest worst
            case of both.
        rank_nvgemm: also let the model rank the kernels of PyTorch's own NVGEMM backend.
        rank_flex_gemm: also let the model rank the configs of PyTorch's own FlexGEMM.
        record: CSV file that the multiplications are written to, for ``--problems`` of the command
            line; it is appended to when it is there already.
        fuse: also do a product together with the activation or gate behind it, with an int8
            weight's conversion and scales, or with the scales behind a product of int8, if that is
            faster.
        learn: file (``.jsonl``) that the autotuner's times of tilecast kernels are written to, for
            ``tilecast train --add``; it is appended to when it is there already.
        choices: file (``.csv`` or ``.json``) of the configs that some problems get, in this order,
            instead of what the model ranks first; ``tilecast predict --choices`` writes it. Of a
            problem of fixed extents the first k are benchmarked, or the first is taken.
        invariant: give each row of a product the same bits whatever else is in its batch: the model
            chooses among kernels that agree bit for bit, also without max-autotune, and nothing is
            fused. Products without such a kernel are one warning for each operator.

    Raises:
        TilecastError: an argument is not allowed, or PyTorch is too old.
    """
    # The folder is spelled out in generated code, which may run anywhere.
    given = {"model": model, "record": record, "learn": learn, "choices": choices}
    folder, problems, times, chosen = (absolute(name, path) for name, path in given.items())
    settings = Settings(
        *(k, folder, power, rank_nvgemm, rank_flex_gemm, problems, fuse, invariant, times, chosen)
    )
    _check_version(CONFIG)
    if rank_nvgemm:
        _check_version(NVGEMM, " for rank_nvgemm")
    if rank_flex_gemm:
        _check_version(FLEX_GEMM, " for rank_flex_gemm")
    if torch_version() > NEWEST:
        found, oldest, newest = map(_text, (torch_version(), OLDEST, NEWEST))
        telemetry.say_once(
            "a newer PyTorch",
            f"PyTorch {found} is newer than what tilecast is tested on, {oldest} to {newest}; "
            "where something has changed, PyTorch's own kernels are used",
        )
    if switched_on(SUMMARY, os.environ):
        telemetry.summarise_at_exit()
    _put(settings)


def _check_version(place: Place, purpose: str = "") -> None:
    if torch_version() < place.since:
        found, allowed = map(_text, (torch_version(), place.since))
        raise TilecastError(
            f"PyTorch {found} is too old{purpose}; allowed: {allowed} or later; upgrade it"
        )


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def uninstall() -> None:
    """Take the hook back, in whatever thread; nothing to do when it is not installed.

    Lists of backends that name TILECAST alone keep getting ATen's choices.
    """
    if active():
        _put(None)


def _as(begin: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the signature of another one."""
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
    """Install as ``TILECAST_K`` and the other variables that docs/variables.md lists say.

    Where that fails, a warning says why, and a list that names TILECAST alone becomes ATEN.
    """
    try:
        install(**from_environment(os.environ))
    # PyTorch's own import calls this, and must not fail.
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
    key: tuple[Any, ...]
    """`cache_key` of the settings."""
    previous: Any
    """The factory that was set before, or None."""

    def __call__(self) -> Any:
        """A handler that decides like the one before and has tilecast's choices too."""
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
    """Apply the settings in force to what is loaded of Inductor, and to the rest once it is."""
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
        # Inductor's module works without tilecast.
        except Exception as error:
            telemetry.warn_once("installing", error)

    register_post_import_hook(follow, module)


def _configure() -> None:
    from torch._inductor import config

    patching.change(config, "inductor_choices_class", _factory)
    patching.change(config, "max_autotune_gemm_backends", _backends)
    handlers = sys.modules.get("tilecast.inductor_hook.handlers")
    if handlers and not active():
        handlers.release()


def _reach_handlers() -> None:
    """Have each thread's choices handler bound when it is asked for, or no longer.

    A thread keeps its handler for good, and none can be reached from another thread.
    """
    handlers = vars(sys.modules[HANDLERS.module])["_choices"]
    if not active():
        patching.restore(handlers, "_get_handler")
    elif not patching.is_replaced(handlers, "_get_handler"):
        patching.replace(handlers, "_get_handler", partial(_bound, handlers._get_handler))


def _bound(stock: Callable[..., Any], *args: Any) -> Any:
    """The handler that Inductor gets, with tilecast's choices."""
    handler = stock(*args)
    try:
        from tilecast.inductor_hook.handlers import bind

        return bind(handler)
    # Inductor works on without tilecast.
    except Exception as error:
        telemetry.warn_once("installing", error)
        return handler


def _factory(found: Any) -> Any:
    """The factory in place of ``found``: tilecast's, which wraps another one at most once."""
    settings = active()
    stock = found.previous if isinstance(found, ChoicesFactory) else found
    return ChoicesFactory(settings, cache_key(settings), stock) if settings else stock


def _backends(found: str) -> str:
    """The list of backends in place of one; never empty: nothing compiles with that."""
    others = without(found)
    return ",".join([*others, BACKEND] if active() else others or ["ATEN"])


def _rank(name: str, place: Place) -> None:
    """Have the model rank PyTorch's own kernels, or no longer."""
    settings = active()
    ranking = f"tilecast.inductor_hook.stock_kernels.{name}"
    home = sys.modules[place.module]
    if settings and getattr(settings, f"rank_{name}"):
        choose = lambda device: partial(_choose, settings, device)  # noqa: E731
        import_module(ranking).rank_with_model(home, choose)
    elif ranking in sys.modules:
        sys.modules[ranking].restore(home)


def _choose(
    settings: Settings,
    device: int,
    problem: GemmProblem,
    configs: Sequence[KernelConfig],
    limit: int,
) -> Sequence[KernelConfig]:
    from tilecast.inductor_hook.select import selection

    gpu = selection.hardware_of(device, settings)
    return selection.ranked(settings, problem, gpu, tuple(configs), limit)


def _pass_over_graphs() -> None:
    """Have Inductor apply tilecast's pass to graphs, or no longer.

    Not as its ``post_grad_custom_post_pass``: that place is the user's.
    """
    passes = sys.modules[PATTERNS.module].pass_patterns
    if active() or "tilecast.inductor_hook.fuse.engine" in sys.modules:
        from tilecast.inductor_hook.fuse.engine import PASS

        patching.include(passes, PASS, active() is not None)


def _swap(place: Place, make: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what is made of a module and its function in that one's place, or no longer."""
    home = sys.modules[place.module]
    if active():
        patching.replace(home, place.name, make(home, patching.stock(home, place.name)))
    else:
        patching.restore(home, place.name)


def _keeping_rows(home: Any, stock: Callable[..., bool]) -> Callable[..., bool]:
    from tilecast.inductor_hook.offer.row_padding import can_pad

    return can_pad(home, stock)


def _with_choices_of_groups(
    stock: Callable[..., T],
    op: str,
    choices: list[Any],
    nodes: list[Any],
    layout: Any,
    *rest: Any,
    **options: Any,
) -> T:
    """What Inductor makes of its choices for a grouped product with tilecast's beside them."""
    # Only here: Inductor is half imported when this is put in its place.
    from tilecast.inductor_hook.offer.grouped import with_tilecast

    every, options = with_tilecast(op, choices, nodes, layout, options)
    return stock(op, every, nodes, layout, *rest, **options)


def _fuse_nothing_beside() -> None:
    """Have CuteDSL templates say that nothing is fused with them, where they do not, or no longer.

    PyTorch 2.13 has them say so, and 2.11 has not; about kernels behind them both do.
    """
    scheduling, name = sys.modules[FUSION.module].CuteDSLScheduling, FUSION.name.split(".")[-1]
    if not active():
        patching.restore(scheduling, name)
    elif name not in vars(scheduling):
        patching.replace(scheduling, name, lambda self, node1, node2: False)


def _keep_products() -> None:
    """Have products of one row or column on a GPU stay products, or no longer.

    Inductor makes sums of some: with ``coordinate_descent_tuning``, which max-autotune sets.
    """
    from torch._ops import OpOverload

    home = sys.modules[DECOMPOSITIONS.module]
    settings = active()
    wrapper = _undecomposed if settings and settings.invariant else None
    for table in (home.decompositions, home.fast_random_decomps()):
        for op in [*table]:
            if isinstance(op, OpOverload) and op.overloadpacket._qualified_op_name in _PRODUCTS:
                patching.wrap_entry(table, op, wrapper)


_PRODUCTS = ("aten::mm", "aten::bmm")


def _undecomposed(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def decomposed(a: Any, b: Any, *rest: Any, **options: Any) -> Any:
        from torch.fx.experimental.symbolic_shapes import statically_known_true as known

        vector = known(a.shape[-2] == 1) or known(b.shape[-1] == 1)
        # With a k of 1 there is nothing to add up: each element is one number times another.
        if a.device.type == "cuda" and vector and not known(a.shape[-1] == 1):
            return NotImplemented
        return stock(a, b, *rest, **options)

    return decomposed


_FOLLOWERS: dict[str, Callable[[], None]] = {
    ATEN.module: ask_for_aten,
    CONFIG.module: _configure,
    HANDLERS.module: _reach_handlers,
    NVGEMM.module: partial(_rank, "nvgemm", NVGEMM),
    FLEX_GEMM.module: partial(_rank, "flex_gemm", FLEX_GEMM),
    PATTERNS.module: _pass_over_graphs,
    PADDING.module: partial(_swap, PADDING, _keeping_rows),
    GROUPED.module: partial(
        _swap, GROUPED, lambda home, stock: partial(_with_choices_of_groups, stock)
    ),
    FUSION.module: _fuse_nothing_beside,
    DECOMPOSITIONS.module: _keep_products,
}
"""What is done once a module of Inductor is loaded, and whenever other settings come into force."""
