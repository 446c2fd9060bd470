"""Event files for TensorBoard, written without torch and TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from decentnode.core.registry import WRITERS
from decentnode.formats.reader import EvaluationRow
from decentnode.results.extra import need
from decentnode.results.run import Run
from decentnode.results.writers.base import Writer, hyperparameters, scalars, start_of

EXTRA = "tensorboard"
PREFIX = "events.out.tfevents."


@WRITERS.register(EXTRA)
@dataclass(kw_only=True)
class TensorBoardWriter(Writer):
    """Scalars by round, and the settings as text, for `tensorboard --logdir runs` (Abadi et al., 2016).

    Each start of a run writes one file with all its rows, and removes those of earlier starts.
    """

    needs = ("tensorboard", EXTRA)

    folder: str = "tensorboard"
    """The directory of its event files, from the run's directory."""
    per_rank: bool = False
    """Whether each node has curves of its own."""
    _run: Run = field(init=False, repr=False)
    _file: BinaryIO = field(init=False, repr=False)
    _start: float = field(init=False, repr=False)

    def begin(self, run: Run, rows: Sequence[EvaluationRow]) -> None:
        self._run, self._start = run, start_of(run)
        folder = run.directory / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        former = sorted(folder.glob(f"{PREFIX}*"))
        # TensorBoard reads files in the order of their names.
        number = int(former[-1].name.split(".")[3]) + 1 if former else 0
        self._file = (folder / f"{PREFIX}{number:010d}.decentnode").open("wb")
        events = need("tensorboard.compat.proto.event_pb2", EXTRA)
        self._add(file_version="brain.Event:2")
        # A TensorBoard that shows the run already drops what it has from this step on.
        self._add(step=0, session_log=events.SessionLog(status=events.SessionLog.START))
        self._add(step=0, summary=self._settings())
        for row in rows:
            self._scalars(row)
        self._file.flush()
        for path in former:
            path.unlink(missing_ok=True)

    def row(self, row: EvaluationRow) -> None:
        self._scalars(row)
        self._file.flush()

    def close(self, summary: Mapping[str, Any]) -> None:
        self._file.close()

    def _scalars(self, row: EvaluationRow) -> None:
        summaries = need("tensorboard.compat.proto.summary_pb2", EXTRA)
        by_name = scalars(row, self._run.metrics, self.per_rank)
        values = [summaries.Summary.Value(tag=tag, simple_value=number) for tag, number in by_name.items()]
        elapsed = row.seconds if row.wall_seconds is None else row.wall_seconds
        self._add(elapsed, step=row.round + 1, summary=summaries.Summary(value=values))

    def _settings(self) -> Any:
        """The resolved configuration as a table in Markdown, for TensorBoard's tab of texts."""
        compat = "tensorboard.compat.proto"
        summaries, tensors = need(f"{compat}.summary_pb2", EXTRA), need(f"{compat}.tensor_pb2", EXTRA)
        pairs = "".join(f"| {key} | {value} |\n" for key, value in hyperparameters(self._run.settings))
        text = f"| key | value |\n|---|---|\n{pairs}".encode()
        shown = summaries.SummaryMetadata.PluginData(plugin_name="text")
        value = summaries.Summary.Value(
            tag="settings", metadata=summaries.SummaryMetadata(plugin_data=shown),
            tensor=tensors.TensorProto(dtype="DT_STRING", string_val=[text]),
        )  # fmt: skip
        return summaries.Summary(value=[value])

    def _add(self, seconds: float = 0.0, **content: Any) -> None:
        events = need("tensorboard.compat.proto.event_pb2", EXTRA)
        records = need("tensorboard.summary.writer.record_writer", EXTRA)
        event = events.Event(wall_time=self._start + seconds, **content)
        records.RecordWriter(self._file).write(event.SerializeToString())
