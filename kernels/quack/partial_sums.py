"""A split of k through memory: a product of each part, and a kernel that adds these up.

Nothing in it belongs to one architecture.
"""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from quack.layout_utils import expand, select

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack.epilogue import Epilogue, FusedArguments
from tilecast.kernels.quack.parts import TOGETHER
# isort: on

_THREADS = 128


class SplitGemm:
    """Two kernels: a product whose parts of k stay apart, in float32, and what adds them up.

    Called with a tuple of the operands' extras behind out, at the end of which is room for as many
    matrices like out, in float32, as there are parts; `PartialSums.tensor` says how they lie.
    Nothing has to be in it.
    """

    def __init__(
        self,
        product: Callable[..., None],
        config: Any,
        operands: GemmOperands,
        any_rows: bool = False,
    ):
        """Set what does not depend on extents.

        Args:
            product: called as a bare GEMM of `tilecast.kernels.quack.parts.parts_of` the operands,
                whose out has the parts where a batch is, those of one product in a row.
            config: says how many there are.
            operands: what is done to their sum.
            any_rows: whether rows of out may begin anywhere.
        """
        self.product, self.sums = product, PartialSums(config, operands, any_rows)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        extras: tuple,
        clusters: Int32,
        stream,
    ):
        """Launch both; see the class."""
        parts = self.sums.tensor(extras[-1], out)
        self.product(a, b, parts, clusters, stream)
        self.sums.launch(parts, out, extras[:-1], stream)


class PartialSums(Epilogue):
    """out = what operands ask for of a product whose stretches of k were added up apart.

    Sums of an element are added in the order of the stretches, so that they are the same in every
    run. The epilogue is that of all other kernels.
    """

    acc_dtype = Float32

    def __init__(self, config: Any, operands: GemmOperands, any_rows: bool = False):
        """Take how many stretches there are, what is done to their sum, and how it is stored.

        By the 16-byte rule out has a multiple of `TOGETHER` elements along what is contiguous, and
        they are stored at once; with ``any_rows`` it has any number, and one by one is stored.
        """
        self.any_rows = any_rows
        # Here rows are the problem's own.
        self.config, self.operands = replace(config, swap_ab=False), operands
        self._along_n = operands.out.major == "row"

    @cute.jit
    def tensor(self, parts: cute.Tensor, out: cute.Tensor):
        """Where all sums lie: (batch x stretches, m, n), stored as out is but for gaps.

        Between lines, as rows or columns are, gaps make the length a multiple of `TOGETHER`.

        Args:
            parts: float32, flat, and large enough.
            out: (batch, m, n), or the same without the batch.
        """
        extents: Any = out.shape
        batch, m, n = (1, *extents) if const_expr(cute.rank(out) == 2) else extents
        pieces = cute.ceil_div(n if const_expr(self._along_n) else m, TOGETHER)
        line = cute.assume(Int64(pieces * TOGETHER), divby=TOGETHER)
        matrix = (line, 1) if const_expr(self._along_n) else (1, line)
        whole = line * Int64(m if const_expr(self._along_n) else n)
        shape = (batch * self.config.split_k, m, n)
        strides = (cute.assume(whole, divby=TOGETHER), *matrix)
        return cute.make_tensor(parts.iterator, cute.make_layout(shape, stride=strides))

    @cute.jit
    def launch(self, parts: cute.Tensor, out: cute.Tensor, extras: tuple, stream):
        """Launch on the sums of `tensor`, behind the kernel that wrote them."""
        arguments, *_ = self.arguments(extras)
        # Lines of what is contiguous, and the batch last.
        order = [1, 2, 0] if const_expr(self._along_n) else [2, 1, 0]
        parts = select(parts, order)
        if const_expr(cute.rank(out) == 2):
            out = expand(out, 0, 1)
        out = select(out, order)
        extents: Any = out.shape
        lines, length, batch = extents
        blocks = cute.ceil_div(lines * cute.ceil_div(length, TOGETHER), _THREADS)
        self.kernel(parts, out, arguments).launch(
            grid=[blocks, 1, batch], block=[_THREADS, 1, 1], stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(self, parts: cute.Tensor, out: cute.Tensor, arguments: FusedArguments):
        """Finish `TOGETHER` elements a thread; all tensors are (lines, along them, batch)."""
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        block, _, batch = cute.arch.block_idx()
        index = block * _THREADS + cute.arch.thread_idx()[0]
        extents: Any = out.shape
        lines, length, _ = extents
        pieces = cute.ceil_div(length, TOGETHER)
        line = index // pieces
        piece = index - line * pieces
        if line < lines:
            stretches = self.config.split_k
            sums = [cute.make_rmem_tensor(TOGETHER, Float32) for _ in range(stretches)]
            for i in cutlass.range_constexpr(stretches):
                part = parts[line, None, batch * stretches + i]
                cute.autovec_copy(_piece(part, piece), sums[i])
            total = sums[0].load()
            for i in cutlass.range_constexpr(1, stretches):
                total = total + sums[i].load()
            sums[0].store(total)
            given = self._given(arguments, line, piece * TOGETHER, length)
            for i in cutlass.range_constexpr(TOGETHER):
                sums[0][i] = self._finished(sums[0][i], given, None, i)
            stored = cute.make_rmem_tensor(TOGETHER, out.element_type)
            stored.store(sums[0].load().to(out.element_type))
            if const_expr(self.any_rows):
                for i in cutlass.range_constexpr(TOGETHER):
                    if piece * TOGETHER + i < length:
                        out[line, piece * TOGETHER + i, batch] = stored[i]
            else:
                cute.autovec_copy(stored, _piece(out[line, None, batch], piece))

    def _given(self, arguments: Any, line: Int32, place: Int32, length: Int32) -> dict[str, Any]:
        """What the epilogue reads for a thread's elements, by name: a number, or one for each."""
        given: dict[str, Any] = {}
        for name, value in zip(arguments._fields, arguments, strict=True):
            if value is None:
                continue
            if name.startswith(("row_", "column_")):
                along = name.startswith("row_") == self._along_n
                places = [place + i if along else line for i in range(TOGETHER)]
                if self.any_rows and along:
                    places = [cutlass.min(at, length - 1) for at in places]
                given[name] = [value[at].to(Float32) for at in places]
            elif name.startswith("one_"):
                given[name] = cute.make_tensor(value, 1)[0]
            else:
                given[name] = value
        return given


def _piece(line: Any, piece: Int32) -> cute.Tensor:
    """A thread's elements of a line."""
    aligned = TOGETHER * line.element_type.width // 8
    return cute.make_tensor((line.iterator + piece * TOGETHER).align(aligned), TOGETHER)
