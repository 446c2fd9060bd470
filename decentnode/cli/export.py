"""`decentnode export`: the evaluations of a run in the formats of other tools."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from decentnode.core.atomic_files import write_durably
from decentnode.errors import BadInput
from decentnode.results import Run, read_records
from decentnode.results.records import RoundRecord
from decentnode.results.writers import CsvWriter, ParquetWriter


def as_csv(run: Run, out: Path) -> list[Path]:
    """One row for each rank and evaluation, as `Run.to_frame`."""
    return _written(run, out.with_suffix(".csv"), CsvWriter)


def as_parquet(run: Run, out: Path) -> list[Path]:
    """The rows of `as_csv` as Parquet files; needs pyarrow."""
    return _written(run, out.with_suffix(".parquet"), ParquetWriter)


def _written(run: Run, path: Path, kind: type[CsvWriter] | type[ParquetWriter]) -> list[Path]:
    """What the writer of that format makes of the run; a path from here, not from the run's directory."""
    writer = kind(file=str(path.absolute()))
    writer.begin(run, run.rows)
    writer.close(run.summary)
    return [path]


def as_decentralizepy(run: Run, out: Path) -> list[Path]:
    """`RANK_results.json` for each node, for the plot scripts of decentralizepy (Dhasade et al., 2023).

    Rounds count from 1, accuracy is in percent. `total_meta` are the bytes of headers and positions, and
    `total_data_per_n` those of values. Training loss is that of the evaluated rounds.
    """
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in sorted({rank for row in run.rows for rank in row.ranks}):
        path = out / f"{rank}_results.json"
        write_durably(path, [json.dumps(_results(run, rank)).encode()])
        paths.append(path)
    return paths


def _results(run: Run, rank: int) -> dict[str, dict[int, float | None]]:
    rows = {row.round + 1: row for row in run.rows if rank in row.ranks}
    records = read_records(run.directory / "records" / f"{rank:05d}.jsonl")
    values = _totals(records, "sent_payload")
    meta = {
        round: index + header
        for (round, index), header in zip(
            _totals(records, "sent_index").items(), _totals(records, "sent_header").values(), strict=True
        )
    }  # fmt: skip

    def metric(name: str, scale: float = 1.0) -> dict[int, float | None]:
        found = {round: row.metrics[name].get(rank) for round, row in rows.items() if name in row.metrics}
        return {round: None if value is None else scale * value for round, value in found.items()}

    return {
        "train_loss": {round: row.train_loss.get(rank) for round, row in rows.items()},
        "test_loss": metric("loss"), "test_acc": metric("accuracy", 100),
        "validation_loss": metric("validation_loss"), "validation_acc": metric("validation_accuracy", 100),
        "total_bytes": {round: row.bytes_sent.get(rank) for round, row in rows.items()},
        "total_meta": {round: meta[round] for round in rows if round in meta},
        "total_data_per_n": {round: values[round] for round in rows if round in values},
    }  # fmt: skip


def _totals(records: Sequence[RoundRecord], field: str) -> dict[int, int]:
    """The sum of a field up to each round, by round from 1."""
    sums = accumulate(getattr(record, field) for record in records)
    return {record.round + 1: total for record, total in zip(records, sums, strict=True)}


FORMATS: Mapping[str, Callable[[Run, Path], list[Path]]] = {
    "csv": as_csv, "parquet": as_parquet, "decentralizepy": as_decentralizepy
}  # fmt: skip


def export(directory: Path, kind: str, out: Path | None) -> list[Path]:
    """Writes a run in one of the formats; returns the paths. Raises BadInput.

    `out`: default `evaluations.csv`, `evaluations.parquet`, or the folder `decentralizepy`, in the run.
    """
    if kind not in FORMATS:
        raise BadInput(f"--format: unknown format '{kind}' (known: {', '.join(FORMATS)})")
    run = Run(directory)
    if not run.rows:
        raise BadInput(f"{directory}: has no evaluation yet, so there is nothing to export")
    try:
        return FORMATS[kind](run, out or directory / (kind if kind == "decentralizepy" else "evaluations"))
    except OSError as error:
        raise BadInput(f"{error.filename or out}: cannot be written: {error.strerror}") from error
