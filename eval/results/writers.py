"""Runs every writer with the real package behind it, and reads back what the tool has.

    pip install 'decentnode[studies,tensorboard,wandb,mlflow]'
    python eval/results/writers.py

Needs no network: W&B is offline, MLflow has a database in a temporary directory. A run is killed by its
writers' side and continued: each evaluation must be there once. A package that is missing is a failure.
"""

import sqlite3
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import yaml

from decentnode.core.registry import WRITERS
from decentnode.formats.metrics import CLASSIFICATION
from decentnode.formats.reader import SCHEMA, EvaluationRow
from decentnode.formats.records import write_atomically
from decentnode.results import Run

NODES, ROUNDS = 4, range(4, 40, 5)
RUN_ID = "00ab5f1e00ab5f1e"
BLOCK = 1 << 15
"""W&B's files are logs of LevelDB: blocks with records of checksum, length and type."""
Curve = list[tuple[int, float]]


def made_run(directory: Path) -> Run:
    """The files of a run with a few evaluations."""
    directory.mkdir()
    settings = {"name": "trial", "seed": 1, "training": {"optimizer": {"name": "SGD", "lr": 0.1}}}
    (directory / "config.yaml").write_text(yaml.safe_dump(settings))
    described = [msgspec.to_builtins(metric) for metric in CLASSIFICATION]
    write_atomically(directory / "run.json", {"schema": SCHEMA, "run_id": RUN_ID, "metrics": described})
    lines = [msgspec.json.encode(made_row(round)) + b"\n" for round in ROUNDS]
    (directory / "evaluations.jsonl").write_bytes(b"".join(lines))
    return Run(directory)


def made_row(round: int) -> EvaluationRow:
    """One evaluation of all nodes; the loss of the last one is not finite."""
    accuracy = {rank: (round + rank) / 100 for rank in range(NODES)}
    loss: dict[int, float | None] = {rank: 1 / (1 + round) for rank in range(NODES - 1)} | {NODES - 1: None}
    sent = dict.fromkeys(range(NODES), 1000 * round)
    return EvaluationRow(
        round, 0.5 * round, {"accuracy": {**accuracy}, "loss": loss}, {0: 0.1}, sent, 0.125, {"accuracy": 0.5}
    )


def from_csv(run: Run) -> Curve:
    """The curve in evaluations.csv."""
    import pandas

    return from_table(pandas.read_csv(run.directory / "evaluations.csv"))


def from_parquet(run: Run) -> Curve:
    """The curve in evaluations.parquet."""
    import pandas

    return from_table(pandas.read_parquet(run.directory / "evaluations.parquet"))


def from_table(frame: object) -> Curve:
    """Mean accuracy by round; each round must have each rank once."""
    groups = frame.groupby("round")["accuracy"]  # type: ignore[attr-defined]
    assert (groups.count() == NODES).all(), "a row is missing, or there twice"
    return list(groups.mean().items())


def from_tensorboard(run: Run) -> Curve:
    """The curve as TensorBoard loads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.directory / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("accuracy/mean")]


def from_wandb(run: Run) -> Curve:
    """The curve in the newest file that `wandb sync` would upload."""
    from wandb.proto.wandb_internal_pb2 import Record

    newest = max(run.directory.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    curve = []
    for content in log_records(newest.read_bytes()):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            curve.append((int(items["_step"]), float(items["accuracy/mean"])))
    return curve


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log; its header of 7 bytes counts as part of the first block."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if BLOCK - place % BLOCK < 7:  # no room for a header: zeros
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def from_mlflow(run: Run) -> Curve:
    """The curve in MLflow's database."""
    with sqlite3.connect(database(run)) as connection:
        (runs,) = connection.execute("select count(*) from runs").fetchone()
        assert runs == 1, "a resumed run must continue the one that is there"
        query = "select step, value from metrics where key = 'accuracy/mean' order by step"
        return list(connection.execute(query))


def database(run: Run) -> Path:
    """MLflow's database."""
    return run.directory / "mlflow.db"


READERS: dict[str, Callable[[Run], Curve]] = {
    "csv": from_csv, "mlflow": from_mlflow, "parquet": from_parquet, "tensorboard": from_tensorboard,
    "wandb": from_wandb,
}  # fmt: skip


def check(name: str, directory: Path) -> str:
    """Why the writer does not do what it must, in one line; empty if it does."""
    cls = WRITERS.find(name)
    if lack := cls.lack():
        return str(lack)
    run = made_run(directory)
    options = {"mlflow": {"tracking_uri": f"sqlite:///{database(run)}"}, "wandb": {"mode": "offline"}}
    expected = [(row.round + 1, sum(row.metrics["accuracy"].values()) / NODES) for row in run.rows]
    first, resumed = (cls(**options.get(name, {})) for _ in range(2))
    first.begin(run, [])
    for row in run.rows[:5]:
        first.row(row)
    # Not closed, and the resumed run has gone back by one evaluation.
    resumed.begin(run, run.rows[:4])
    for row in run.rows[4:]:
        resumed.row(row)
    resumed.close({"nodes": NODES, "finished_nodes": NODES, "model_hash": "00"})
    read_rows = [(round, float(f"{mean:.6f}")) for round, mean in READERS[name](run)]
    return "" if read_rows == [(r, float(f"{m:.6f}")) for r, m in expected] else f"reads back as {read_rows}"


def main() -> int:
    """One line for each writer; returns 1 if one has failed."""
    defects = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in WRITERS.classes():
            try:
                defects[name] = check(name, Path(folder) / name)
            except Exception as error:
                defects[name] = f"{type(error).__name__}: {error}"
            print(f"{name:<12} {defects[name] or 'each evaluation once, in order'}", flush=True)
    return int(any(defects.values()))


if __name__ == "__main__":
    sys.exit(main())
