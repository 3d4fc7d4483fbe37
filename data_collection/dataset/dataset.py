"""The data set: one row per `Measurement`, as a Parquet file with its provenance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tilecast.data_collection.dataset.columns import COLUMNS, checked, digest
from tilecast.data_collection.dataset.measurement import REFERENCE
from tilecast.data_collection.dataset.provenance import check_provenance
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.files import check_regular, write_atomically
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.families import parse_config

if TYPE_CHECKING:
    import pandas as pd

DATASET_VERSION = 2
"""Raised when a column changes its meaning."""

METADATA_KEY = b"tilecast"
"""Key of version, provenance and seal among the file's metadata."""

MOST_BYTES, MOST_UNPACKED, MOST_ROWS = 2 << 30, 4 << 30, 50_000_000
"""Of a data set; the shipped ones have 600,000 rows in 4 MB, which are 11 MB unpacked."""


@dataclass(frozen=True)
class Dataset:
    """Measurements and where they come from."""

    rows: pd.DataFrame
    """One row per measurement, with the columns of `COLUMNS`."""
    provenance: dict
    """GPU, driver, versions, clocks, protocol, date and command, as recorded when it was
    measured."""

    @property
    def digest(self) -> str:
        """SHA-256 of the values in row order, whatever file they came from."""
        return digest(self.checked())

    def checked(self, name: str = "in memory") -> pd.DataFrame:
        """The rows, once they are checked; errors call the data set by the name.

        Raises:
            TilecastError: they break the contract of `COLUMNS`.
        """
        import pyarrow as pa

        try:
            table = pa.Table.from_pandas(self.rows, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TilecastError(
                f"data set {name} is no table ({one_line(error)}); allowed: columns of one type "
                "each"
            ) from error
        return checked(table, name)

    def problems(self) -> list[GemmProblem]:
        """Every problem once, in order of first appearance."""
        rows = self.rows[list(PROBLEM_FIELDS)].drop_duplicates()
        return [GemmProblem.from_row(row) for row in rows.itertuples(index=False)]

    def failing(self) -> dict[GemmOperands, frozenset[KernelConfig]]:
        """The configs of tilecast kernels that failed on any problem, by its operands."""
        failed = self.rows["failure"].notna() & ~is_reference(self.rows)
        pairs = self.rows.loc[failed, ["operands", "config"]].drop_duplicates()
        found: dict[GemmOperands, set[KernelConfig]] = {}
        for operands, config in pairs.itertuples(index=False):
            found.setdefault(GemmOperands.parse(operands), set()).add(parse_config(config))
        return {operands: frozenset(configs) for operands, configs in found.items()}


def joined(parts: Sequence[Dataset]) -> Dataset:
    """The measurements of several data sets, one behind the other, with the runs of all.

    Times of two measurement protocols are not compared: where one data set measured a problem by a
    newer protocol than another, the older times of the other are left out. The newest space and
    protocol are those of the result. A single data set stays as it is.
    """
    import pandas as pd

    kept = [part.rows for part in parts] if len(parts) == 1 else _not_measured_anew(parts)
    rows = pd.concat(kept, ignore_index=True).astype(COLUMNS)
    runs = [run for part in parts for run in part.provenance["runs"]]
    newest = max((part.provenance for part in parts), key=lambda facts: facts["space_version"])
    protocol = max(part.provenance["protocol_version"] for part in parts)
    return Dataset(rows, newest | {"protocol_version": protocol, "runs": runs})


def _not_measured_anew(parts: Sequence[Dataset]) -> list[pd.DataFrame]:
    """The rows of each data set of whose problem no other one has any of a newer protocol."""
    import pandas as pd

    keys = list(PROBLEM_FIELDS)
    stated: list[Any] = [
        part.rows[keys].astype({"operands": "object"}).assign(protocol=_protocols(part))
        for part in parts
    ]
    kept = []
    for place, (part, own) in enumerate(zip(parts, stated, strict=True)):
        others: Any = pd.concat(stated[:place] + stated[place + 1 :])
        newest = others.groupby(keys)["protocol"].max().rename("newest")
        older = own["protocol"] < own.join(newest, on=keys)["newest"]
        kept.append(part.rows[~older])
    return kept


def _protocols(part: Dataset) -> list[int]:
    """The protocol of each row: the newest of its card's runs, or the data set's if none has it."""
    of_card: dict[str, int] = {}
    for run in part.provenance["runs"]:
        for card in (gpu.get("uuid_hash") for gpu in run.get("gpus", ())):
            if "protocol_version" in run:
                of_card[card] = max(run["protocol_version"], of_card.get(card, 0))
    default: int = part.provenance["protocol_version"]
    return [of_card.get(card, default) for card in part.rows["device"]]


def write_dataset(dataset: Dataset, path: Path) -> None:
    """Write a Parquet file, whole or not at all.

    Raises:
        TilecastError: the rows break the contract of `COLUMNS`, or the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = dataset.checked(str(path))
    facts = {
        "version": DATASET_VERSION,
        "provenance": dataset.provenance,
        "seal": _seal(rows, dataset.provenance),
    }
    table = pa.Table.from_pandas(rows, preserve_index=False)
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(facts)})
    # Times hardly repeat, so a dictionary does not pay; only their exponents compress.
    split = {"microseconds": "BYTE_STREAM_SPLIT"}
    options = {
        "compression": "zstd",
        "write_page_checksum": True,
        "use_dictionary": [name for name in COLUMNS if name not in split],
        "column_encoding": split,
    }
    write_atomically(path, lambda file: pq.write_table(table, file, **options))


def read_dataset(path: Path) -> Dataset:
    """Read and check a Parquet file that `write_dataset` wrote.

    Raises:
        TilecastError: it is absent, no Parquet, of another version, damaged, breaks the contract of
            `COLUMNS`, or is one with another provenance than collections have.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_regular(path, MOST_BYTES)
        # Not by its path, which Parquet would try as an address, too.
        with pa.OSFile(str(path)) as source:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            facts = _facts((file.metadata.metadata or {}).get(METADATA_KEY, b""))
            if facts.get("version") != DATASET_VERSION:
                raise TilecastError(
                    f"data set {path} has version {repr(facts.get('version'))[:100]}; allowed: "
                    f"{DATASET_VERSION}; collect it again"
                )
            _check_size(file.metadata)
            table = file.read(columns=list(COLUMNS))
            table.validate(full=True)
            rows = checked(table, str(path))
    except FileNotFoundError as error:
        raise TilecastError(
            f"data set {path} does not exist; allowed: a file that `tilecast collect` exported"
        ) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise _unreadable(path, one_line(error)) from error
    provenance = facts.get("provenance")
    if not isinstance(provenance, dict) or facts.get("seal") != _seal(rows, provenance):
        raise _unreadable(path, "it is not what was written: the digests differ")
    try:
        check_provenance(provenance)
    except TilecastError as error:
        raise _unreadable(path, str(error)) from error
    return Dataset(rows, provenance)


def shipped_data(gpu: Hardware, *, groups: str = "") -> Path | None:
    """The data set of a GPU that comes with the package, or that of groups; None without.

    ``groups`` is what comes in groups, one of `tilecast.heuristics.operands.GROUPS`.
    """
    name = "-".join(filter(None, (gpu.name.lower(), groups))) + ".parquet"
    path = Path(__file__).parents[1].joinpath("data") / name
    return path if path.exists() else None


TIMED = ("config", "regime", "stage", "microseconds")
"""The columns that say what was timed and how."""


def shipped_rows(path: Path, problem: GemmProblem) -> dict[str, list[Any]]:
    """The rows that a data set of the package has of one problem, by column of `TIMED`.

    Takes a tenth of the time of `read_dataset`: pandas is not imported, and of the file only the
    checksums of its pages are checked, as it came with the package.

    Raises:
        TilecastError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    extents = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns=list(extents))
            # PyArrow's comparisons and its `to_numpy` import pandas; DLPack does not.
            columns = (np.from_dlpack(table[name].combine_chunks()) for name in extents)
            alike = [column == at for column, at in zip(columns, extents.values(), strict=True)]
            places = np.flatnonzero(np.logical_and.reduce(alike)).tolist()
            if not places:
                return {name: [] for name in TIMED}
            table = file.read(columns=["operands", *TIMED])
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, one_line(error)) from error
    operands = problem.operands.text
    places = [place for place in places if table["operands"][place].as_py() == operands]
    return {name: [table[name][place].as_py() for place in places] for name in TIMED}


def is_reference(rows: pd.DataFrame) -> pd.Series:
    """Which rows time PyTorch's kernel instead of a tilecast kernel."""
    return cast("pd.Series", rows["config"] == REFERENCE)


def _check_size(metadata: Any) -> None:
    """See, before they are read, that the rows are not too many; ArrowException where they are."""
    import pyarrow as pa

    groups = (metadata.row_group(place) for place in range(metadata.num_row_groups))
    if metadata.num_rows > MOST_ROWS or sum(one.total_byte_size for one in groups) > MOST_UNPACKED:
        raise pa.ArrowInvalid(f"it has {metadata.num_rows} rows, or too many bytes unpacked")


def _facts(text: bytes) -> dict:
    """Version, provenance and seal of a file's metadata; empty where these are damaged."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _seal(rows: pd.DataFrame, provenance: dict) -> str:
    """SHA-256 of values and provenance: checksums of pages do not cover the rest of a file."""
    return hashlib.sha256(f"{digest(rows)} {json.dumps(provenance)}".encode()).hexdigest()


def _unreadable(path: Path, why: str) -> TilecastError:
    return TilecastError(
        f"data set {path} cannot be read ({why}); allowed: a whole Parquet file that "
        "`tilecast collect` exported; export it again"
    )
