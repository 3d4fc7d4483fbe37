"""Are a prompt's logits the same bits alone, in any batch and in any order, and what does it cost?

``python benchmarks/hook/invariant_models.py`` on one GPU. Models of Hugging Face (`hf_models`) read
prompts alone, by seven, by 64 and by 64 in another order, as PyTorch runs them and with tilecast's
mode for rows that are the same in every batch: eager, compiled without max-autotune, and generating
eight tokens one after the other in eager mode. Rows of logits that differ in any bit from those in
the batch of 64 are counted. And seconds to compile the batch of 64 under max-autotune with
ATEN,TILECAST, five choices whose kernels are compiled already, with the mode and without.

Products are one part of a model. Norms are those of ``F.rms_norm``, whose kernel has a block a row,
as an operator of which Inductor makes no reduction: those take other blocks for other batches.
Attention is PyTorch's ``scaled_dot_product_attention``, which splits no keys of so few tokens.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch._inductor.utils import fresh_cache

from tilecast.inductor_hook import eager, installed

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from hf_models import MODELS, built
from runner import Row, Sweep
from steps import timed
from variants import share_ptxas

BATCH, SOME, TOKENS, NEW = 64, 7, 64, 8
NAMES = ("Llama 3.1 8B", "Qwen3 8B")
STOCK, USUAL, OURS = "stock", "usual", "invariant"
COMPILING, CHOICES, TURNS = "compiling", 5, 4


def measure(item: tuple[str, str]) -> list[Row]:
    """Count differing rows and time the batch of 64, without and with the mode; or compile it."""
    name, way = item
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = built(MODELS[name])
        prompts = torch.randint(model.config.vocab_size, (BATCH, TOKENS))
    one_kernel_norms(model)
    if way == COMPILING:
        return [compile_seconds(model, prompts)]
    found: Row = {}
    for mode in (STOCK, OURS):
        with running(mode):
            read = partial(*READERS[way](model))
            bits = differing(read, prompts)  # and whatever compiles, does
            times = {}
            for size in (1, BATCH):
                step = {mode: partial(read, prompts[:size])}
                times[f"{size} prompts"] = timed(step)[mode]["milliseconds"]
            found[mode] = {**bits, "milliseconds": times}
    return [found]


def compile_seconds(model: Any, prompts: torch.Tensor) -> Row:
    """Seconds of first calls, mode by mode; without the first turn, in which kernels compile."""
    share_ptxas()
    seconds: dict[str, list[float]] = {USUAL: [], OURS: []}
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TILECAST"}
    for turn in range(1 + TURNS):
        for mode, found in seconds.items():
            torch._dynamo.reset()
            call = torch.compile(model, dynamic=False, options=options)
            with installed(CHOICES, invariant=mode == OURS), fresh_cache():
                torch.cuda.synchronize()
                start = time.perf_counter()
                logits(call, prompts)
                torch.cuda.synchronize()
                found += [time.perf_counter() - start] if turn else []
    return {"seconds": seconds}


@contextmanager
def running(mode: str) -> Iterator[None]:
    """Inside, products run as the mode says."""
    torch._dynamo.reset()
    with ExitStack() as stack:
        if mode == OURS:
            stack.enter_context(installed(1, invariant=True))
            stack.callback(eager.disable)
            eager.enable(invariant=True)
        yield


def compiled(model: Any) -> Callable[..., Any]:
    """A model under `torch.compile`, for fixed shapes.

    Rounded wherever eager code rounds: Inductor leaves roundings out of what it fuses, and fuses
    other operators in a batch of one.
    """
    return torch.compile(model, dynamic=False, options={"emulate_precision_casts": True})


def one_kernel_norms(model: Any) -> None:
    """Have norms be one call: those of transformers are reductions that depend on the batch."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_norm, module)


def _norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, module.weight, module.variance_epsilon)


@torch.library.custom_op("benchmark::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`F.rms_norm`, which Inductor calls as it is."""
    return F.rms_norm(x, x.shape[-1:], weight, epsilon)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.no_grad()
def logits(call: Callable[..., Any], prompts: torch.Tensor) -> torch.Tensor:
    """Those behind each prompt."""
    return call(input_ids=prompts, logits_to_keep=1)[0][:, -1]


@torch.no_grad()
def generated(model: Any, prompts: torch.Tensor) -> torch.Tensor:
    """The logits of all tokens that are generated behind each prompt, one after the other."""
    options = {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}
    found = model.generate(
        prompts, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, **options
    )
    return torch.cat(found.logits, -1)


READERS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "eager": lambda model: (logits, model),
    "compiled": lambda model: (logits, compiled(model)),
    "generating": lambda model: (generated, model),
}


def differing(read: Callable[[torch.Tensor], torch.Tensor], prompts: torch.Tensor) -> Row:
    """Prompts whose logits differ from those in the whole batch, by how they are read."""
    whole = read(prompts).clone()
    order = torch.randperm(len(prompts), device=prompts.device)
    found = {
        "alone": [read(prompts[row : row + 1]) for row in range(0, BATCH, 9)],
        "by seven": [read(rows) for rows in prompts[: BATCH // SOME * SOME].split(SOME)],
        "in another order": [read(prompts[order])],
        "again": [read(prompts)],
    }
    places = {
        "alone": torch.arange(0, BATCH, 9),
        "by seven": torch.arange(BATCH // SOME * SOME),
        "in another order": order,
        "again": torch.arange(BATCH),
    }
    return {
        way: int((torch.cat(rows) != whole[places[way].to(whole.device)]).any(-1).sum())
        for way, rows in found.items()
    }


def figures(rows: Sequence[Row]) -> Row:
    """By case: differing prompts, and the mode's time over stock's at each batch; or seconds."""
    compiling = {
        row["case"]: {mode: median(seconds) for mode, seconds in row["seconds"].items()}
        for row in rows
        if "seconds" in row
    }
    return compiling | {
        row["case"]: {
            "differing": {
                mode: {way: row[mode][way] for way in row[mode] if way != "milliseconds"}
                for mode in (STOCK, OURS)
            },
            "invariant over stock": {
                size: row[OURS]["milliseconds"][size] / taken
                for size, taken in row[STOCK]["milliseconds"].items()
            },
        }
        for row in rows
        if "seconds" not in row
    }


CASES = {f"{name} {way}": (name, way) for name in NAMES for way in (*READERS, COMPILING)}
SETTINGS = {"batch": BATCH, "some": SOME, "tokens": TOKENS, "generated": NEW, "turns": TURNS}
SWEEP = Sweep("case", CASES, lambda: nullcontext(measure), figures, 30.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
