"""The sections of a report on a data set and on a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.run.cards import card_times
from tilecast.models.evaluation.regret import by_rows
from tilecast.models.learning.labels import ProblemLabels
from tilecast.reporting.cards import (
    OTHER_RANKS,
    OTHER_TIMES,
    card_differences,
    card_table,
    trouble_table,
)
from tilecast.reporting.choices import Choices
from tilecast.reporting.noise import change_by_card, noise_figure, noise_table, repeats
from tilecast.reporting.page import Section
from tilecast.reporting.problem_plots import (
    KNOBS,
    coverage,
    doubt_figure,
    speed_figure,
    speed_table,
    winners,
)
from tilecast.reporting.regret import regret_figure
from tilecast.reporting.table import LIBRARY, LIBRARY_COLUMNS, REGRET, REGRET_COLUMNS, Table


def dataset_sections(dataset: Dataset, table: Sequence[ProblemLabels], power: str) -> list[Section]:
    """What was measured, what won, and how well times repeat.

    Args:
        dataset: the measurements.
        table: their labels.
        power: whose winners to show.
    """
    return [
        Section("What was measured", _provenance(dataset)),
        Section("Coverage", [_counts(table), coverage([labels.problem for labels in table])]),
        Section(
            f"Winners by region, {power}",
            [
                "The best measured config of each problem. Click a name to hide it, double-click "
                "to see it alone; drag to zoom, double-click to come back.",
                *(
                    part
                    for name, knob in KNOBS.items()
                    for part in (name, winners(table, power, knob))
                ),
            ],
        ),
        Section(
            "The best config beside cuBLAS",
            [
                "The time of cuBLAS over that of the best measured config, which is faster above "
                "the line. This is the most that a choice can gain, not what a model chooses.",
                speed_figure(table),
                speed_table(table),
            ],
        ),
        *_noise_and_drift(dataset),
        _cards(dataset),
    ]


def score_section(scored: Mapping[str, Any], power: str) -> Section:
    """Held-out regret, of what `tilecast.models.evaluation.evaluation.evaluate` returned."""
    rows = [row for row in scored["regret"] if row["power"] == power and row["problems"] == "all"]
    about = (
        f"{scored['problems']} problems of {scored['families']} (n, k) families, {power}. No "
        "family is both learned from and scored. Dotted: the config that is best by the labels, "
        "when it is timed again."
    )
    figure = regret_figure(rows, scored["noise_floor"][power])
    return Section("Held-out regret beside the baselines", [about, figure])


def doubt_section(found: Sequence[Choices], name: str) -> Section:
    """Where a model is unsure of some problems."""
    deferred = sum(one.first.deferred for one in found)
    about = (
        f"How many kernels {name} thinks worth compiling for each of these {len(found)} problems, "
        "some of which it may have learned from: one where it is sure of the first, up to eight "
        f"where it is not. For {deferred} of them it falls back to cuBLAS."
    )
    return Section("Where the model is unsure", [about, doubt_figure(found)])


def model_section(name: str, facts: Mapping[str, Any]) -> Section:
    """The training of a model, from its manifest."""
    used = facts["dataset"]
    counts = [f"{used[part]:,} {part}" for part in ("problems", "families", "rows") if part in used]
    about = f"{name}, learned from {', '.join(counts)} with the digest {used['sha256'][:16]}"
    versions = facts.get("versions", {}) | {
        part: ", ".join(found) for part, found in facts.get("library", {}).items()
    }
    beside = facts.get("beside_library", {}).items()
    rows = [(power, *map(row.get, LIBRARY)) for power, row in beside]
    return Section(
        "The model",
        [
            about,
            trained_table(facts),
            Table("First choices beside cuBLAS, held out", {"power": ""} | LIBRARY_COLUMNS, rows),
            Table("Versions", {"of": "", "version": ""}, sorted(versions.items())),
        ],
    )


def trained_table(facts: Mapping[str, Any]) -> Table:
    """Regret of each model by power, as its manifest states it, with the noise floor below."""
    rows = [
        (model, power, int(at.removeprefix("regret@")), *map(figures.get, REGRET))
        for model, powers in facts.get("held_out", {}).items()
        for power, metrics in powers.items()
        for at, figures in sorted(metrics.items(), key=lambda item: (len(item[0]), item[0]))
        if re.fullmatch("regret@[0-9]{1,3}", at)
    ]
    floors = facts.get("noise_floor", {}).items()
    rows += [("noise floor", power, None, *map(floor.get, REGRET)) for power, floor in floors]
    columns = {"model": "", "power": "", "k": "d"} | REGRET_COLUMNS
    return Table("Regret at k kernels on one fold of families, held out", columns, rows)


def _provenance(dataset: Dataset) -> list[str | Table]:
    """Counts, runs and versions."""
    rows, facts = dataset.rows, dataset.provenance
    counts: Any = rows.groupby(["stage", "regime"], observed=True)["microseconds"]
    sizes = [(*name, len(part), int(part.isna().sum())) for name, part in counts]
    runs = [
        (
            str(run.get("date", ""))[:16].replace("T", " "),
            ", ".join(sorted({gpu.get("name") or "" for gpu in run.get("gpus", ())})),
            ", ".join(gpu["uuid_hash"] for gpu in run.get("gpus", ()) if gpu.get("uuid_hash")),
            run.get("end", {}).get("seconds"),
            run.get("command"),
        )
        for run in facts["runs"]
    ]
    versions: dict[str, dict[str, None]] = {}
    for run in facts["runs"]:
        known = dict(run.get("versions", {})) | {"CUDA": run.get("cuda")}
        drivers = {gpu.get("driver_version") or "" for gpu in run.get("gpus", ())}
        known["driver"] = ", ".join(sorted(drivers))
        for name, version in known.items():
            if version:
                versions.setdefault(name, {})[version] = None
    stated = {f"{n} version": facts[f"{n}_version"] for n in ("space", "protocol")}
    shown = [(name, ", ".join(found)) for name, found in sorted(versions.items())]
    columns = {"date": "", "GPU": "", "cards": "", "seconds": ".0f", "command": ""}
    passes = {"pass": "", "regime": "", "rows": ",", "failed": ","}
    return [
        f"{len(rows):,} measurements, digest {dataset.digest[:16]}",
        Table("", passes, sizes),
        Table("Runs", columns, runs),
        Table("Versions", {"of": "", "version": ""}, [*shown, *stated.items()]),
    ]


def _counts(table: Sequence[ProblemLabels]) -> str:
    """How many problems there are, in all and by rows."""
    families = {labels.problem.family for labels in table}
    known = by_rows([labels.problem for labels in table])
    parts = [f"{inside.sum()} with {bucket}" for bucket, inside in known.items()]
    return f"{len(table)} problems of {len(families)} (n, k) families: {', '.join(parts)}."


def _noise_and_drift(dataset: Dataset) -> list[Section]:
    found = repeats(dataset.rows)
    noise: list[Any] = ["No kernel was both raced and verified."]
    drift: list[Any] = noise
    if not found.empty:
        about = (
            "The change of a kernel's time from the race, which is learned from, to the later "
            "verification, which scores. The change that all kernels of a problem share comes from "
            "the state of the card and alters no order."
        )
        noise = [about, noise_figure(found), noise_table(found)]
        about = (
            "The median change of each problem from race to verification, by the card that "
            "verified it: above the line the card had become slower."
        )
        drift = [about, change_by_card(found, dataset.rows)]
    return [Section("Label noise", noise), Section("Drift by card", drift)]


def _cards(dataset: Dataset) -> Section:
    runs = dataset.provenance["runs"]
    parts: list[Any] = ["No two cards timed the same problem."]
    if table := card_table(card_differences(card_times(runs))):
        about = (
            "Problems that every card timed. Times: over the median of the other cards'. Ranks "
            "lose: the loss of a card's fastest kernels by the other cards' times. A card differs "
            f"if its times are more than {OTHER_TIMES:.0%} off or its ranks lose more than "
            f"{OTHER_RANKS:.0%}."
        )
        parts = [about, table]
    troubles = trouble_table(runs)
    return Section("Cards beside each other", [*parts, *([troubles] if troubles else [])])
