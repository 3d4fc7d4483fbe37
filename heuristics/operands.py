"""How A, B and out of a GEMM are typed and stored, and the one text that says so.

The text is the only form in which operands are written down: in stores and data sets, names of
models, cache keys and generated code. ``bf16:rcr`` is a ``torch.nn.Linear`` in bfloat16;
``e4m3:rcr>bf16:row-scales+bias`` multiplies fp8 into bfloat16, scaled by rows, and adds a bias.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tilecast.heuristics.dtypes import DTYPES, DType, dtype
from tilecast.heuristics.errors import TilecastError

MAJORS = {"r": "row", "c": "col"}
"""Letter in a layout, and the way along which such an operand is contiguous."""
NUMBER, ONE, ROW, COLUMN, MATRIX = "number", "one", "row", "column", "matrix"
"""Kinds of further inputs: a float of the host; a tensor of one element; a vector along n; a vector
along m; a matrix stored as out is."""
GROUP_ENDS = "group-ends"
"""One more: for each group the row, or the place along k, behind its last, ascending."""
ROW_BLOCKS, COLUMN_BLOCKS = "row-blocks", "column-blocks"
"""And two: a number for each `BLOCK` elements along k, of every row of A and of every column of B.
They lie as tensor cores read them: 128 rows (or columns) x 4 blocks are 512 numbers, row i's at
16 (i % 32) + 4 (i // 32), of which whole ones are stored, those along k one after the other (PTX
ISA, tcgen05, scale factor layout 1X; ``torch.nn.functional.SwizzleType.SWIZZLE_32_4_4``)."""
BLOCK = 32
"""Elements that share a scale (OCP Microscaling Formats, MX)."""


@dataclass(frozen=True)
class Extra:
    """A further input of a fused product."""

    name: str
    """What it is called; two of one product never share a name."""
    kind: str
    """`NUMBER`, `ONE`, `ROW`, `COLUMN`, `MATRIX`, `GROUP_ENDS`, `ROW_BLOCKS` or `COLUMN_BLOCKS`."""
    dtype: str = ""
    """Short name of its type; "" for that of out."""


@dataclass(frozen=True)
class Fusion:
    """One thing that may be done to a product before it is stored."""

    meaning: str
    """What, in a line."""
    extras: tuple[Extra, ...] = ()
    """What it needs, in the order in which a launch takes it."""
    torch: str = ""
    """Where it is no sum: the function of PyTorch that does it, by its dotted name. It takes the
    product and then the extras."""
    options: tuple[tuple[str, object], ...] = ()
    """Keyword arguments of that function."""
    device: str = ""
    """The device function that does it to one element, which takes the same; a name that begins
    with a dot is relative to `kernels.quack`."""
    half: int | None = None
    """Where it is a gate: which half of the columns, 0 or 1, the functions take. The result is
    multiplied by the other half, so that out has half the columns."""

    @property
    def activation(self) -> bool:
        """Whether it computes each element of the product from that element alone."""
        return bool(self.torch) and not self.extras and self.half is None


ROW_GROUPS, K_GROUPS = "row-groups", "k-groups"
_ENDS = (Extra("offsets", GROUP_ENDS, "int32"),)
GROUPS = {
    ROW_GROUPS: Fusion("rows of A come in groups, each multiplied by a B of its own", _ENDS),
    K_GROUPS: Fusion("k comes in groups, each of which makes a matrix of out of its own", _ENDS),
}
"""How a product may be many, of extents that the device alone knows. Rows of out behind the last
group of rows are not written."""
_STACKED = {
    "": (True, True, True),
    ROW_GROUPS: (False, True, False),
    K_GROUPS: (False, False, True),
}
SCALES = {
    "tensor-scales": Fusion(
        "A and B are each scaled by one number",
        (Extra("scale_a", ONE, "fp32"), Extra("scale_b", ONE, "fp32")),
    ),
    "row-scales": Fusion(
        "rows of A and columns of B are each scaled by a number of their own",
        (Extra("scale_a", COLUMN, "fp32"), Extra("scale_b", ROW, "fp32")),
    ),
    "out-row-scales": Fusion(
        "the same, those of columns of B by numbers of out's type",
        (Extra("scale_a", COLUMN, "fp32"), Extra("scale_b", ROW)),
    ),
    "column-scales": Fusion(
        "columns of B are each scaled by a number of their own", (Extra("scale_b", ROW),)
    ),
    "fp32-column-scales": Fusion(
        "the same by numbers in fp32, whatever out is", (Extra("scale_b", ROW, "fp32"),)
    ),
    "block-scales": Fusion(
        f"{BLOCK} elements along k each are scaled by a power of two (MX)",
        (Extra("scale_a", ROW_BLOCKS, "e8m0"), Extra("scale_b", COLUMN_BLOCKS, "e8m0")),
    ),
}
"""How products may be scaled before the epilogue."""
_ACTIVATIONS = {
    "relu": Fusion("what is negative becomes 0", torch="torch.relu", device=".epilogue.relu"),
    "gelu": Fusion(
        "the Gaussian error linear unit",
        torch="torch.nn.functional.gelu",
        device=".epilogue.gelu",
    ),
    "gelu-tanh": Fusion(
        "its approximation by a hyperbolic tangent",
        torch="torch.nn.functional.gelu",
        options=(("approximate", "tanh"),),
        device="quack.activation.gelu_tanh_approx",
    ),
    "silu": Fusion(
        "the sigmoid linear unit",
        torch="torch.nn.functional.silu",
        device="quack.activation.silu",
    ),
}


def _gates(name: str, activation: Fusion) -> dict[str, Fusion]:
    """The two gates by an activation: of the first half of the columns, and of the second."""
    meaning = "{} of the {} half of the columns, times the other half"
    return {
        gate: replace(activation, meaning=meaning.format(name, which), half=half)
        for half, (gate, which) in enumerate(((f"{name}-mul", "first"), (f"mul-{name}", "second")))
    }


EPILOGUES = {
    "alpha": Fusion("times a number", (Extra("alpha", NUMBER),)),
    "bias": Fusion("a vector along n is added to every row", (Extra("bias", ROW),)),
    "c": Fusion("a matrix is added", (Extra("c", MATRIX),)),
    "beta-c": Fusion(
        "a matrix times a number is added", (Extra("c", MATRIX), Extra("beta", NUMBER))
    ),
    **_ACTIVATIONS,
    **{
        gate: fusion
        for name, activation in _ACTIVATIONS.items()
        for gate, fusion in _gates(name, activation).items()
    },
}
"""What may be done after the product, one after the other. A row with functions is all that another
activation or gate takes: operand texts, the search of graphs, the reference and kernels read it."""


def activations() -> list[str]:
    """Those of `EPILOGUES` that are activations, in alphabetical order."""
    return sorted(name for name, fusion in EPILOGUES.items() if fusion.activation)


def gates() -> list[str]:
    """Those that are gates, in alphabetical order."""
    return sorted(name for name, fusion in EPILOGUES.items() if fusion.half is not None)


def columns_for_one(epilogue: Sequence[str]) -> int:
    """Columns of B that make one of out: 2 where a gate at the end of an epilogue pairs them."""
    return 2 if epilogue and EPILOGUES[epilogue[-1]].half is not None else 1


GATED_COLUMNS = 16
"""A kernel reads the two halves of B that a gate pairs by 8 columns in turn."""
STRETCHES = 4
"""Into how many k is cut where its sums are added up in stretches; see `GemmProblem.invariant`."""
KINDS_REMEMBERED = 256
"""Kinds of operands of which anything is remembered: more than one collection or model has."""

_TEXT = re.compile(
    r"(?P<a>\w+?)(x(?P<b>\w+))?:(?P<layout>[rc]{3})(>(?P<out>\w+))?"
    r"(@((?P<stretches>[0-9])x)?(?P<acc>\w+))?"
    r"(:(?P<extras>[a-z0-9+-]+))?"
)


@dataclass(frozen=True)
class TensorSpec:
    """How one operand is typed and stored."""

    dtype: DType
    """Type of its elements."""
    major: str
    """``row``: contiguous along its columns; ``col``: along its rows."""


@dataclass(frozen=True)
class GemmOperands:
    """Together with a config, everything that a compiled kernel depends on.

    Extents and strides are run-time values.
    """

    a: TensorSpec
    """A, m x k."""
    b: TensorSpec
    """B, k x n, one for each group of rows; column-major as ``torch.nn.Linear`` stores weights."""
    out: TensorSpec
    """The result, m x n, or m x n/2 behind a gate; one for each group along k."""
    acc: DType
    """What products are added up in; fp32 for fp8 where every stage's sum is added to a more exact
    one, ``use_fast_accum=False`` of ``torch._scaled_mm``."""
    scales: str = ""
    """One of `SCALES`; "" for none."""
    epilogue: tuple[str, ...] = ()
    """Some of `EPILOGUES`, in the order in which they are applied."""
    groups: str = ""
    """One of `GROUPS`; "" for none."""
    stretches: int = 1
    """Equal stretches of k whose sums are added to each other, in order: 1, or `STRETCHES`."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            TilecastError: A or B is of a type that is not multiplied, or a name is not known.
        """
        for name, operand in (("A", self.a), ("B", self.b)):
            if operand.dtype.speed is None:
                fit = ", ".join(row.name for row in DTYPES.values() if row.speed)
                raise TilecastError(f"{name} is {operand.dtype}; allowed: {fit}")
        if self.out.dtype.name == "fp22":
            raise TilecastError("out is fp22, which only sums are; allowed: fp32")
        for what, value, known in (
            ("groups", self.groups, GROUPS),
            ("scales", self.scales, SCALES),
        ):
            if value and value not in known:
                raise TilecastError(f"{what} {value!r} are not known; allowed: {', '.join(known)}")
        for step in self.epilogue:
            if step not in EPILOGUES:
                raise TilecastError(
                    f"epilogue {step!r} is not known; allowed: {', '.join(EPILOGUES)}"
                )
        for place, step in enumerate(self.epilogue):
            if EPILOGUES[step].half is not None and place + 1 < len(self.epilogue):
                raise TilecastError(
                    f"epilogue {'+'.join(self.epilogue)!r} goes on behind the gate {step}, which "
                    "halves the columns; allowed: a gate at the end"
                )
        if self.gate and any(extra.kind == MATRIX for extra in self.extras):
            raise TilecastError(
                f"epilogue {'+'.join(self.epilogue)!r} adds a matrix before the gate, which no "
                "kernel does; allowed: a bias and what has no inputs"
            )
        if self.stretches not in (1, STRETCHES):
            raise TilecastError(
                f"k in {self.stretches} stretches is not known; allowed: 1 and {STRETCHES}"
            )
        names = [extra.name for extra in self.extras]
        if len(names) > len(set(names)):
            raise TilecastError(
                f"epilogue {'+'.join(self.epilogue)!r} takes one input twice; allowed: each of "
                f"{', '.join(dict.fromkeys(names))} once"
            )

    def __hash__(self) -> int:
        """Of the text, which is made once: operands are part of many keys."""
        return hash(self.text)

    @property
    def layout(self) -> str:
        """Majors of A, B and out as three letters, such as ``rcr`` for ``torch.nn.Linear``."""
        return self.a.major[0] + self.b.major[0] + self.out.major[0]

    @cached_property
    def text(self) -> str:
        """The one spelling of these operands; `parse` reads it."""
        a, b, out = self.a.dtype, self.b.dtype, self.out.dtype
        extras = "+".join(filter(None, (self.groups, self.scales, *self.epilogue)))
        stretches = f"{self.stretches}x" if self.stretches > 1 else ""
        return (
            a.name
            + (f"x{b}" if b != a else "")
            + f":{self.layout}"
            + (f">{out}" if out != a else "")
            + (f"@{stretches}{self.acc}" if stretches or self.acc.name != a.accumulator else "")
            + (f":{extras}" if extras else "")
        )

    @property
    def converted(self) -> bool:
        """Whether B is narrower than A, and becomes its type on the way to the tensor cores."""
        return self.b.dtype.bits < self.a.dtype.bits

    @property
    def promoted(self) -> bool:
        """Whether sums of fp8 products are themselves added up in float32."""
        return self.a.dtype.accumulator == "fp22" and self.acc.name == "fp32"

    @property
    def block_scaled(self) -> bool:
        """Whether elements along k have scales, which tensor cores read themselves."""
        return any(extra.kind == ROW_BLOCKS for extra in self.extras)

    @property
    def stacked(self) -> tuple[bool, bool, bool]:
        """Which of A, B and out are a matrix for each product, of a batch or of groups."""
        return _STACKED[self.groups]

    @property
    def fused(self) -> bool:
        """Whether more is done to a product than to store it."""
        return bool(self.scales or self.epilogue)

    @cached_property
    def extras(self) -> tuple[Extra, ...]:
        """What a launch takes behind A, B and out, in order."""
        fusions = [GROUPS[self.groups]] if self.groups else []
        fusions += [SCALES[self.scales]] if self.scales else []
        fusions += [EPILOGUES[step] for step in self.epilogue]
        return tuple(extra for fusion in fusions for extra in fusion.extras)

    @property
    def activation(self) -> str:
        """The first step of the epilogue that is no sum; "" where there is none."""
        return next((step for step in self.epilogue if EPILOGUES[step].torch), "")

    @property
    def gate(self) -> str:
        """The last step of the epilogue, if it is a gate; "" where there is none."""
        return self.epilogue[-1] if self.columns_for_one > 1 else ""

    @property
    def columns_for_one(self) -> int:
        """Columns of B that make one of out: 2 where a gate pairs them."""
        return columns_for_one(self.epilogue)

    def then(self, *steps: str) -> GemmOperands:
        """The same with some of `EPILOGUES` at the end of the epilogue."""
        return replace(self, epilogue=(*self.epilogue, *steps))

    def grouped(self, groups: str) -> GemmOperands:
        """The same with one of `GROUPS`."""
        return replace(self, groups=groups)

    def scaled(self, scales: str, fast: bool) -> GemmOperands:
        """The same with scales, added up as ``use_fast_accum`` of ``torch._scaled_mm`` asks for."""
        return replace(self, scales=scales, acc=self.acc if fast else dtype("fp32"))

    @classmethod
    def product(cls, a: TensorSpec, b: TensorSpec, out: TensorSpec) -> GemmOperands:
        """Those of a bare product, added up as A's dtype asks for."""
        return cls(a, b, out, dtype(a.dtype.accumulator))

    @classmethod
    @lru_cache(maxsize=KINDS_REMEMBERED)
    def parse(cls, text: str) -> GemmOperands:
        """Read operands back from their text.

        Raises:
            TilecastError: the text is not understood, or names what is not known.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise TilecastError(
                f"operands {text[:100]!r} are not understood; allowed: A's dtype, the majors of A, "
                "B and out as three letters r or c, and > with the dtype of out where it is "
                "another one, such as bf16:rcr or fp16:rcr>fp32"
            )
        a = dtype(match["a"])
        names = (a.name, match["b"] or a.name, match["out"] or a.name)
        extras = match["extras"].split("+") if match["extras"] else []
        groups = extras.pop(0) if extras and extras[0] in GROUPS else ""
        scales = extras.pop(0) if extras and extras[0] in SCALES else ""
        a_spec, b_spec, out_spec = (
            TensorSpec(dtype(name), MAJORS[letter])
            for name, letter in zip(names, match["layout"], strict=True)
        )
        acc = dtype(match["acc"] or a.accumulator)
        stretches = int(match["stretches"] or 1)
        return cls(a_spec, b_spec, out_spec, acc, scales, tuple(extras), groups, stretches)

    def __str__(self) -> str:
        """The text."""
        return self.text


LINEAR_BF16 = GemmOperands.parse("bf16:rcr")
"""bf16 with weights as ``torch.nn.Linear`` stores them."""
