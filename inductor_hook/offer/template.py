"""Inductor's CuteDSL template of tilecast kernels: generated source, choice, benchmark request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, cast

import torch
from torch._inductor import config
from torch._inductor.autotune_process import CuteDSLBenchmarkRequest
from torch._inductor.codegen.cutedsl.cutedsl_kernel import CuteDSLTemplateKernel
from torch._inductor.codegen.cutedsl.cutedsl_template import (
    CuteDSLTemplate,
    CuteDSLTemplateCaller,
)
from torch._inductor.ir import StorageBox, TensorBox
from torch._inductor.virtualized import V

from tilecast.heuristics.config import KernelConfig
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.arguments import sources
from tilecast.inductor_hook.describe.matmul import Matmul
from tilecast.inductor_hook.offer.cpp_wrapper import OperatorCall
from tilecast.inductor_hook.patch.torch_versions import benchmarks_calls_here
from tilecast.inductor_hook.run.static import errors_raised
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.launch import preload
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec

FAILED_MS = 1e9
"""Milliseconds of a choice that does not run. Finite: Inductor refuses a graph whose choices are
all infinite, but a tilecast choice can still run torch's kernel."""
_KEY = "tilecast"
"""The beginning of the keys of timings."""

_SOURCE = """
import torch
from tilecast.inductor_hook.run.{{module}} import {{constructor}}
{%- if "row(" in extras %}
from tilecast.inductor_hook.run.static import row
{%- endif %}


# Chosen by model {{model}}.
matmul = {{constructor}}.named(
    {{arguments}}
)


{{def_kernel(*inputs)}}
    matmul(A, B, {{get_output()}}{{extras}})
"""


@dataclass(frozen=True)
class Choice:
    """A tilecast choice: everything that its generated source depends on."""

    matmul: Matmul
    configs: tuple[KernelConfig, ...]
    """The config; several where an extent is symbolic, of which each call picks one."""
    settings: Settings
    microseconds: float
    """What the model expects of the product."""
    unsure: bool = False
    """Whether ATen may win though there is one kernel alone: the two are benchmarked."""
    untried: bool = False
    """Whether nobody has run such kernels on such a GPU, so that first results are checked."""

    @property
    def specs(self) -> tuple[KernelSpec, ...]:
        """The kernels that it runs."""
        operands, batched = self.matmul.hint.operands, self.matmul.batched
        any_rows = self.matmul.any_rows
        return tuple(KernelSpec(config, operands, batched, any_rows) for config in self.configs)

    @property
    def name(self) -> str:
        """The name in Inductor's tables."""
        kernel = str(self.configs[0]) if len(self.configs) == 1 else "dynamic"
        activation = self.matmul.hint.operands.activation
        return "_".join(filter(None, ("tilecast", kernel, activation)))

    @property
    def is_one_kernel(self) -> bool:
        """Whether the measured time is the time of one config.

        It is not if calls pick a config by size, or if threads store the rows.
        """
        return not (self.matmul.dynamic or self.matmul.any_rows)

    def variables(self) -> dict[str, Any]:
        """The variables of the template."""
        operands = self.matmul.hint.operands
        numbers = {"alpha": self.matmul.alpha, "beta": self.matmul.beta}
        dynamic = self.matmul.dynamic
        names = tuple(config.name for config in self.configs)
        arguments = [
            repr(names if dynamic else names[0]),
            repr(operands.text),
            f"batched={self.matmul.batched}",
            *(["any_rows=True"] if self.matmul.any_rows else []),
            *(["untried=True"] if self.untried else []),
        ]
        if dynamic:
            arguments += [
                f"model={self.settings.model or ''!r}",
                f"power={self.settings.power!r}",
                f"digest={self.settings.digest!r}",
                *(["invariant=True"] if self.settings.invariant else []),
            ]
        return {
            "module": "dynamic" if dynamic else "static",
            "constructor": "DynamicMatmul" if dynamic else "StaticMatmul",
            "arguments": ", ".join(arguments),
            "model": repr(self.settings.digest),
            "inputs": self.matmul.inputs,
            "extras": "".join(f", {source}" for source in sources(operands.extras, numbers)),
        }


class TilecastKernel(CuteDSLTemplateKernel):
    """A generated module that imports the launcher and nothing of the DSL."""

    def gen_imports(self, *args: Any, **kwargs: Any) -> str:
        """No import beyond the template's: those of the DSL take a second."""
        return ""


class TilecastBenchmarkRequest(CuteDSLBenchmarkRequest):
    """Times a choice as Inductor times any other; one that fails is very slow, not an error."""

    @classmethod
    def of(cls, request: CuteDSLBenchmarkRequest) -> TilecastBenchmarkRequest:
        """The same request, which may fail."""
        found = cls.__new__(cls)
        vars(found).update(vars(request))
        return found

    def make_run_fn(self, *tensors: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """One call on the operands as the graph has them.

        Inductor hands templates the buffers that operands are views of, as Triton's sources spell
        strides out.
        """
        operands = [
            torch.as_strided(tensor, meta.sizes, meta.strides, meta.offset)
            for tensor, meta in zip(tensors, self.input_tensor_meta, strict=True)
        ]
        return super().make_run_fn(*operands, out=out)

    def benchmark(self, *tensors: Any, **kwargs: Any) -> float:
        """Milliseconds of one call; `FAILED_MS` when the kernel does not load or launch."""
        try:
            # The launcher would otherwise multiply with torch, whose time would be taken.
            with errors_raised():
                return super().benchmark(*tensors, **kwargs)
        except Exception as error:
            telemetry.warn_once("benchmarking", error)
            return FAILED_MS


class TilecastCaller(CuteDSLTemplateCaller):
    """A tilecast choice as Inductor's autotuner handles it."""

    def __init__(self, caller: CuteDSLTemplateCaller, choice: Choice):
        """Take what the template generated of a choice."""
        super().__init__(
            name=choice.name,
            input_nodes=caller.input_nodes,
            layout=caller.layout,
            make_kernel_render=self._render_compiled,
            bmreq=TilecastBenchmarkRequest.of(caller.bmreq),
            template=caller.template,
            mutated_inputs=caller.mutated_inputs,
        )
        self.choice = choice
        expected = f"predicted {choice.microseconds / 1000:.4f} ms"
        self.description = f"{expected}, model {choice.settings.digest}"
        self._render = caller.make_kernel_render

    def _render_compiled(self, *args: Any, **kwargs: Any) -> Any:
        """The source of the chosen kernel, once it is compiled: no call of the graph waits for it.

        Not earlier, so that the kernels of a whole graph compile at once while it is lowered.
        """
        self.await_kernels()
        return self._render(*args, **kwargs)

    def output_node(self) -> TensorBox:
        """The choice in the graph: a call of the module, or of ``tilecast::launch`` in C++."""
        if V.graph.cpp_wrapper:
            return TensorBox(StorageBox(OperatorCall(self, self.layout, self.input_nodes)))
        return super().output_node()

    def precompile(self) -> None:
        """Make ready to load the kernel that a worker has been compiling since this was lowered.

        Inductor benchmarks a choice when it is precompiled. Waiting here would delay the other
        choices. A process that benchmarks for this one would wait with workers of its own, and for
        a minute only.
        """
        try:
            preload()
        # Whatever it is, the benchmark meets it again and knows what to do.
        except Exception as error:
            telemetry.warn_once("compiling", error)
        if not benchmarks_calls_here([self]):
            self.await_kernels()

    def await_kernels(self) -> bool:
        """Whether its kernels are compiled, once they are or have failed to be."""
        try:
            for spec in self.choice.specs:
                object_builder().wait(spec)
        # Whatever it is, the launcher meets it again and knows what to do.
        except Exception as error:
            telemetry.warn_once("compiling", error)
            return False
        return True

    def hash_key(self) -> str:
        """Key of its timing in Inductor's autotune cache.

        It holds the model, power regime, kernel sources, compiler and list of backends. The list is
        part of it because stock choices are timed otherwise beside tilecast kernels, and Inductor
        reuses the cached times of a list.
        """
        kernels = (kernel_key(spec) for spec in self.choice.specs)
        variables = map(str, self.choice.variables().values())
        setting = (_KEY, config.max_autotune_gemm_backends, self.choice.settings.power)
        return "-".join((*setting, *kernels, *variables))


class TilecastTemplate(CuteDSLTemplate):
    """Renders a `Choice` into a module that launches it."""

    kernel_type = TilecastKernel

    def maybe_append_choice(self, choices: list[Any], **kwargs: Any) -> NotImplementedError | None:
        """Append the caller of a choice, or warn why there is none, which Inductor would not."""
        try:
            choices.append(self.generate(**kwargs))
        except Exception as error:
            telemetry.warn_once("generating source", error)
            return NotImplementedError(str(error))
        return None

    def generate(self, **kwargs: Any) -> TilecastCaller:
        """The caller of ``choice``, with ``input_nodes`` and ``layout`` as Inductor gives them."""
        choice = kwargs.pop("choice")
        stock = cast(CuteDSLTemplateCaller, super().generate(**kwargs, **choice.variables()))
        return TilecastCaller(stock, choice)


def without_failures(timings: dict[str, Any]) -> dict[str, Any]:
    """Inductor's cache of timings without those of tilecast choices that did not run.

    Kept on disk, they would retire a kernel for good, though a worker may only have run out of
    memory. Timings are milliseconds by ``hash_key``, in dictionaries by what they depend on.
    """
    return {
        key: without_failures(value) if isinstance(value, dict) else value
        for key, value in timings.items()
        if isinstance(value, dict) or not (key.startswith(_KEY) and value >= FAILED_MS)
    }


_making = Lock()


def template() -> TilecastTemplate:
    """The template; Inductor allows no second one of its name, from whatever thread."""
    with _making:
        return _template()


@cache
def _template() -> TilecastTemplate:
    return TilecastTemplate("tilecast_matmul", _SOURCE)
