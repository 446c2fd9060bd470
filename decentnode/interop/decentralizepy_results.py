"""Results of a run in the files that decentralizepy's plot scripts read."""

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from decentnode.core.atomic_files import write_durably
from decentnode.formats.model_files import COORDINATES, model_rounds
from decentnode.formats.records import RoundRecord, records_by_rank
from decentnode.results import Run


def as_decentralizepy(run: Run, out: Path) -> list[Path]:
    """Writes a `RANK_results.json` per node for the plot scripts of decentralizepy (Dhasade et al., 2023).

    Rounds count from 1, accuracy is in percent. `total_meta` are the bytes of headers and positions, and
    `total_data_per_n` those of values. Training loss is that of the evaluated rounds. With
    `records.coordinates` `RANK_shared_parameters.json` has the number of rounds that sent each coordinate.
    """
    out.mkdir(parents=True, exist_ok=True)
    paths, records = [], records_by_rank(run.directory)
    for rank in sorted({rank for row in run.rows for rank in row.ranks}):
        path = out / f"{rank}_results.json"
        write_durably(path, [json.dumps(_results(run, rank, records.get(rank, []))).encode()])
        paths.append(path)
    for rank in model_rounds(run.directory, COORDINATES):
        path = out / f"{rank}_shared_parameters.json"
        write_durably(path, [json.dumps(run.coordinates(rank)["rounds"].tolist()).encode()])
        paths.append(path)
    return paths


def _results(run: Run, rank: int, records: Sequence[RoundRecord]) -> dict[str, dict[int, float | None]]:
    rows = {row.round + 1: row for row in run.rows if rank in row.ranks}
    values = _totals(records, "sent_payload")
    meta = {
        round: index + header
        for (round, index), header in zip(
            _totals(records, "sent_index").items(), _totals(records, "sent_header").values(), strict=True
        )
    }  # fmt: skip

    def metric(name: str, scale: float = 1.0) -> dict[int, float | None]:
        values = {round: row.metrics[name].get(rank) for round, row in rows.items() if name in row.metrics}
        return {round: None if value is None else scale * value for round, value in values.items()}

    return {
        "train_loss": {round: row.train_loss.get(rank) for round, row in rows.items()},
        "test_loss": metric("loss"), "test_acc": metric("accuracy", 100),
        "validation_loss": metric("validation_loss"), "validation_acc": metric("validation_accuracy", 100),
        "total_bytes": {round: row.bytes_sent.get(rank) for round, row in rows.items()},
        "total_meta": {round: meta[round] for round in rows if round in meta},
        "total_data_per_n": {round: values[round] for round in rows if round in values},
    }  # fmt: skip


def _totals(records: Sequence[RoundRecord], field: str) -> dict[int, int]:
    """Returns the sum of a field up to each round, by round from 1."""
    sums = accumulate(getattr(record, field) for record in records)
    return {record.round + 1: total for record, total in zip(records, sums, strict=True)}
