"""A tilecast kernel in Inductor's C++ wrapper: a call of the operator ``tilecast::launch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.ir import ExternKernelOut, Layout
from torch._inductor.virtualized import V

from tilecast.inductor_hook.describe.arguments import tensor_names
from tilecast.inductor_hook.run import cpp_operator

OPERATOR = torch.ops.tilecast.launch.default
NAME = f"torch.ops.{OPERATOR}"
IMPORT = f"import {cpp_operator.__name__}"
"""What defines the operator, in Python."""


class OperatorCall(ExternKernelOut):
    """Writes a product to a buffer that Inductor allocates.

    Inductor's own node for operators that it does not know would let each call allocate.
    """

    def __init__(self, caller: Any, layout: Layout, inputs: Sequence[Any]):
        """Take a `TilecastCaller`, where its result lies, and the buffers that it reads."""
        super().__init__(layout, inputs, python_kernel_name=NAME)
        self.caller = caller

    def codegen(self, wrapper: Any) -> None:
        """Write the call, once its kernel is compiled: no call of the graph waits for it."""
        self.caller.await_kernels()
        self.codegen_comment(wrapper)
        wrapper.add_import_once(IMPORT)
        arguments = self._arguments()
        if V.graph.cpp_wrapper:
            wrapper.generate_fallback_kernel_with_runtime_lookup(
                self.get_name(), NAME, lambda: [], OPERATOR, arguments, []
            )
        else:  # Inductor runs the graph once in Python, to tune Triton's kernels.
            spelled = ", ".join(map(wrapper.val_to_arg_str, arguments))
            wrapper.writeline(f"{NAME}({spelled})")

    def _arguments(self) -> list[Any]:
        """What `cpp_operator.launch` is called with."""
        choice = self.caller.choice
        matmul, settings = choice.matmul, choice.settings
        operands = matmul.hint.operands
        given = dict(zip(matmul.inputs, self.inputs, strict=True))
        folder = settings.model or ""
        if V.graph.cpp_wrapper:  # Inductor puts a text between quotes as it is.
            folder = folder.replace("\\", "\\\\").replace('"', '\\"')
        model = [folder, settings.power, settings.digest]
        model += ["invariant"] if settings.invariant else []
        return [
            *(given["A"], given["B"], self),
            [given[name] for name in tensor_names(operands.extras)],
            [config.name for config in choice.configs],
            operands.text,
            model if matmul.dynamic else [],
            *(float(matmul.alpha), float(matmul.beta), choice.untried),
        ]
