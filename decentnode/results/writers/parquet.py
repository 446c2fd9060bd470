"""The tidy table in columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decentnode.core.atomic_files import write_durably
from decentnode.core.registry import WRITERS
from decentnode.formats.reader import EvaluationRow
from decentnode.results.extra import need
from decentnode.results.run import Run
from decentnode.results.tidy import TEXTS, WHOLE_NUMBERS, cells, columns
from decentnode.results.writers.base import Writer


@WRITERS.register("parquet")
@dataclass(kw_only=True)
class ParquetWriter(Writer):
    """A table with a row for each rank and evaluation, as `Run.evaluations` (Apache Parquet, 2013).

    It is written new beside itself and renamed after each evaluation, so it can always be read whole.
    """

    needs = ("pyarrow", "studies")

    file: str = "evaluations.parquet"
    """The path of the file, from the run's directory."""
    _run: Run = field(init=False, repr=False)
    _parts: list[Any] = field(init=False, repr=False)
    """Tables of pyarrow, one for each evaluation, which need 8 bytes a number."""

    def begin(self, run: Run, rows: Sequence[EvaluationRow]) -> None:
        self._run = run
        self._parts = [self._table([])] + [self._table([row]) for row in rows]
        self._write()

    def row(self, row: EvaluationRow) -> None:
        self._parts.append(self._table([row]))
        self._write()

    def close(self, summary: Mapping[str, Any]) -> None:
        """Does nothing: the file is complete after each row."""

    def _table(self, rows: Sequence[EvaluationRow]) -> Any:
        arrow, run, names = need("pyarrow"), self._run, columns(self._run.metrics)
        schema = arrow.schema([(name, _type(arrow, name)) for name in names])
        lines = [line for row in rows for line in cells(run.name, run.seed, run.metrics, row=row)]
        values = zip(*lines, strict=True) if lines else [[]] * len(names)
        return arrow.Table.from_arrays(
            [arrow.array(column, field.type) for column, field in zip(values, schema, strict=True)],
            schema=schema,
        )

    def _write(self) -> None:
        arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
        sink = arrow.BufferOutputStream()
        # One group of rows, so its size is that of a file written at once.
        parquet.write_table(arrow.concat_tables(self._parts).combine_chunks(), sink)
        write_durably(self._run.directory / self.file, [memoryview(sink.getvalue())])


def _type(arrow: Any, name: str) -> Any:
    if name in TEXTS:
        return arrow.string()
    return arrow.int64() if name in WHOLE_NUMBERS else arrow.float64()
