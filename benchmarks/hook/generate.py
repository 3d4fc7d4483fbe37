"""What does ``generate`` of Hugging Face gain from the eager switch, without a changed line?

``python benchmarks/hook/generate.py`` on one GPU. A model (`hf_models`) continues some sequences by
`NEW_TOKENS` each, greedily and with a cache of keys and values. Nothing is compiled, and the host's
time counts: where it is slower than the card, no kernel helps. The switch is off and on in turns,
as the host's speed drifts by more than the gain; of a turn's two calls the second counts. A gain is
the median over turns of one time over the other.
"""

import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tilecast.inductor_hook.eager import decide_again

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from hf_models import MODELS, built
from runner import Row, Sweep, quantiles
from steps import seconds
from variants import Variant, competing

NEW_TOKENS = 32
TURNS = 20  # of each variant, behind one in which kernels compile
STOCK, OURS = "eager", "eager TILECAST"


class Case(NamedTuple):
    """A model, and how many sequences of how many tokens it continues."""

    model: str
    batch: int
    tokens: int


CASES = {
    f"{case.model} {case.batch}x{case.tokens}": case
    for case in (
        *(Case("Llama 3.1 8B", batch, 128) for batch in (16, 64, 200)),
        Case("Llama 3.1 8B", 16, 2048),
        Case("Qwen2.5 7B", 64, 128),
    )
}


def measure(case: Case) -> list[Row]:
    """Time a case with the switch off and on."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = built(MODELS[case.model])
        prompts = torch.randint(model.config.vocab_size, (case.batch, case.tokens))
    step = partial(continued, model, prompts)
    found: dict[str, list[float]] = {STOCK: [], OURS: []}
    tokens = {}
    for turn, name in product(range(TURNS + 1), found):
        with competing(Variant(name)):
            tokens[name] = step()
            decide_again()
            if turn:
                found[name].append(seconds(step))
    same = (tokens[STOCK] == tokens[OURS])[:, case.tokens :].float().mean().item()
    return [{"seconds": found, "same_tokens": same}]


def continued(model: Any, prompts: torch.Tensor) -> torch.Tensor:
    """Prompts with `NEW_TOKENS` behind each."""
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )


def figures(rows: Sequence[Row]) -> Row:
    """Tokens a second by case, off and on, and the gain."""
    shown = {}
    for row in rows:
        case = CASES[row["case"]]
        medians = {name: statistics.median(times) for name, times in row["seconds"].items()}
        made = case.batch * NEW_TOKENS
        gains = [off / on for off, on in zip(*row["seconds"].values(), strict=True)]
        shown[row["case"]] = {
            "tokens_per_second": {name: made / taken for name, taken in medians.items()},
            "speedup": quantiles(gains, p25=0.25, p50=0.5, p75=0.75),
            "same_tokens": row["same_tokens"],
        }
    return {"cases": shown}


SETTINGS = {"new_tokens": NEW_TOKENS, "turns": TURNS}
SWEEP = Sweep("case", CASES, lambda: nullcontext(measure), figures, 40.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
