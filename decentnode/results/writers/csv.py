"""The tidy table as comma-separated values."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decentnode.core.atomic_files import write_durably
from decentnode.core.line_file import LineFile
from decentnode.core.registry import WRITERS
from decentnode.formats.reader import EvaluationRow
from decentnode.results.run import Run
from decentnode.results.tidy import Cell, cells, columns
from decentnode.results.writers.base import Writer


@WRITERS.register("csv")
@dataclass(kw_only=True)
class CsvWriter(Writer):
    """A table as `Run.evaluations`, a line for each rank and evaluation (RFC 4180, lines end in a newline).

    Lines are appended and synced after each evaluation, so a run that is killed leaves whole lines.
    """

    file: str = "evaluations.csv"
    """The path of the file, from the run's directory."""
    _run: Run = field(init=False, repr=False)
    _lines: LineFile = field(init=False, repr=False)

    def begin(self, run: Run, rows: Sequence[EvaluationRow]) -> None:
        self._run, path = run, run.directory / self.file
        # Written new, so rows that a resume has discarded are not in it.
        content = [_text([columns(run.metrics)]), *map(self._table, rows)]
        write_durably(path, (piece.encode() for piece in content))
        self._lines = LineFile(path)

    def row(self, row: EvaluationRow) -> None:
        if row.ranks:
            self._lines.append(self._table(row).encode()[:-1])
        if gap := self._lines.sync():
            raise OSError(gap)

    def close(self, summary: Mapping[str, Any]) -> None:
        if gap := self._lines.close():
            raise OSError(gap)

    def _table(self, row: EvaluationRow) -> str:
        return _text(list(cells(self._run.name, self._run.seed, self._run.metrics, row=row)))


def _text(lines: Sequence[Sequence[Cell]]) -> str:
    """The lines, each with its newline; an unknown number is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
